"""Static findings from two given files: prompts or request bodies. The verdict decides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from detdiag.evidence.finding import Finding, Remedy
from detdiag.inputs.bytes_diff import TextDiff, diff_texts
from detdiag.inputs.json_diff import Change, diff_json
from detdiag.inputs.json_text import parse_json
from detdiag.layers import Layer

_REMEDIES: Final[dict[str, Remedy]] = {
    "input.bytes-differ": Remedy(
        "send the same bytes: normalise text once, at the edge, before templating",
        verify="detdiag diff A B",
    ),
    "input.key-order": Remedy(
        "serialise tools and schemas with one fixed key order before every call",
        verify="detdiag diff A B",
    ),
    "input.volatile-content": Remedy(
        "take the clock, id or counter out of the prompt, or pin it for the comparison",
        verify="detdiag diff A B",
    ),
    "input.doubled-bos": Remedy(
        "tokenise templated text with add_special_tokens=False (the template writes the BOS)",
        verify="detdiag diff IDS_A IDS_B",
    ),
    "input.token-ids-differ": Remedy(
        "send token ids, or pin the tokenizer and the template on both paths",
    ),
}


def prompt_finding(
    a: bytes, b: bytes, names: tuple[str, str] = ("prompt_a.txt", "prompt_b.txt")
) -> Finding:
    """One finding on two rendered prompts: ``passed`` if equal to the byte."""
    diff = diff_texts(a, b)
    if diff.equal:
        return Finding(
            "input",
            "input.bytes-differ",
            "passed",
            f"{names[0]} and {names[1]} are equal to the byte ({diff.bytes_a} bytes)",
            where=names[1],
        )
    return failed_finding(
        "input.bytes-differ",
        f"{names[0]} and {names[1]} differ: {describe(diff)}",
        data={"input_diff": diff.to_dict(*names)},
        where=names[1],
    )


def request_findings(
    a: bytes, b: bytes, names: tuple[str, str] = ("request_a.json", "request_b.json")
) -> list[Finding]:
    """What two request bodies differ in, one finding a layer; inert differences pass."""
    left, right = parse_json(a, names[0]), parse_json(b, names[1])
    if isinstance(left, str) and isinstance(right, str):
        return [prompt_finding(left.encode(), right.encode(), names)]
    changes = diff_json(left, right)
    live = [change for change in changes if change.can_matter]
    if not live:
        return [_same_request(a == b, changes, names)]
    return [_request_finding(layer, group, names) for layer, group in _by_layer(live).items()]


_REACH_LAYERS: Final[dict[str, Layer]] = {"parameter": "config", "model": "version"}


def _by_layer(changes: Iterable[Change]) -> dict[Layer, list[Change]]:
    out: dict[Layer, list[Change]] = {}
    for change in changes:
        out.setdefault(_REACH_LAYERS.get(change.reach, "input"), []).append(change)
    return out


def _same_request(same_bytes: bool, changes: Sequence[Change], names: tuple[str, str]) -> Finding:
    how = "are equal to the byte" if same_bytes else "carry the same request"
    inert = sorted({change.path for change in changes})
    note = f"; inert differences at {', '.join(inert[:4])}" if inert else ""
    return Finding(
        "input",
        "input.bytes-differ",
        "passed",
        f"{names[0]} and {names[1]} {how}{note}",
        where=names[1],
    )


def _request_finding(layer: Layer, changes: Sequence[Change], names: tuple[str, str]) -> Finding:
    order_only = all(change.kind == "order" for change in changes)
    rule = {
        "config": "config.requests-differ",
        "version": "version.model-differs",
    }.get(layer, "input.key-order" if order_only else "input.bytes-differ")
    shown = "; ".join(describe_change(change) for change in changes[:3])
    more = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    data: dict[str, Any] = {"changes": [change.to_dict() for change in changes]}
    text = next((c for c in changes if c.text_diff is not None), None)
    if text is not None and text.text_diff is not None:
        data["input_diff"] = text.text_diff.to_dict(
            f"{names[0]} {text.path}", f"{names[1]} {text.path}"
        )
    return failed_finding(
        rule,
        f"{names[0]} and {names[1]} differ at {shown}{more}",
        layer=layer,
        data=data,
        where=names[1],
        subject=changes[0].path,
    )


def describe(diff: TextDiff) -> str:
    """One clause: where the first change is, what it is called, what folds the two together."""
    if diff.equal:
        return "equal to the byte"
    hunk = diff.hunks[0]
    parts = [f"first at byte {hunk.offset_a} (line {hunk.line_a}, column {hunk.col_a})"]
    names = [name for h in diff.hunks for name in h.names]
    if names:
        parts.append(", ".join(list(dict.fromkeys(names))[:3]))
    if diff.equal_after:
        parts.append("equal after: " + " + ".join(diff.equal_after))
    return "; ".join(parts)


def describe_change(change: Change) -> str:
    """``$.messages[0].content (first at byte 0 ...)`` or ``$.seed (1 against 2)``."""
    if change.text_diff is not None:
        return f"{change.path} ({describe(change.text_diff)})"
    if change.kind == "order":
        return f"{change.path} (key order)"
    if change.kind in ("added", "removed"):
        return f"{change.path} (only in {'b' if change.kind == 'added' else 'a'})"
    shown = change.to_dict()
    return f"{change.path} ({json.dumps(shown['a'])} against {json.dumps(shown['b'])})"


def failed_finding(rule: str, summary: str, *, layer: Layer = "input", **fields: Any) -> Finding:
    """A failed finding of high severity, with the remedy of its rule."""
    return Finding(
        layer,
        rule,
        "failed",
        summary,
        severity="high",
        remedy=_REMEDIES.get(rule),
        **fields,
    )
