"""Findings of layer ``input`` from files and observations. They describe; the verdict decides.

A finding from two given files is static. One from observations is a mechanism only where the
outcome goes with the input: equal inputs repeat and other inputs give other outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.observation import Observation
from detdiag.inputs.bytes_diff import TextDiff, diff_texts
from detdiag.inputs.canonical import prompt_part
from detdiag.inputs.json_diff import Change, diff_json
from detdiag.inputs.json_text import parse_json
from detdiag.inputs.tokens_diff import TokenDiff, diff_tokens
from detdiag.inputs.volatile import Volatile, compare_renders
from detdiag.layers import CONTROL_FACTOR, FACTOR_LAYERS, ORDER_FACTORS, Layer

_FACTORS: Final = tuple(f for f, layer in FACTOR_LAYERS.items() if layer == "input")
_MAX_PAIRS: Final = 40

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


def static_input_findings(
    *,
    prompts: tuple[bytes, bytes] | None = None,
    requests: tuple[bytes, bytes] | None = None,
    observations: Sequence[Observation] = (),
) -> list[Finding]:
    """All input findings of a case folder; the file pairs are raw bytes as found on disk.

    A request pair may also yield findings of layers ``config`` and ``version`` (another
    parameter, another model name). Raises :class:`DetdiagError` for a body that is not JSON.
    """
    out: list[Finding] = []
    if prompts is not None:
        out.append(prompt_finding(*prompts))
    if requests is not None:
        out += request_findings(*requests)
    return out + observation_findings(observations)


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
    return _failed(
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
    return _failed(
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


# Observations of one query -------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """How outcomes go with inputs over matched pairs: ``across`` other inputs, ``within`` equal."""

    across_k: int = 0
    across_n: int = 0
    within_k: int = 0
    within_n: int = 0

    @property
    def goes_with_input(self) -> bool:
        return self.across_k > 0 and self.within_k == 0

    def evidence(self) -> tuple[Evidence, ...]:
        return (
            Evidence("outputs differ with the input", self.across_k, self.across_n, "pairs"),
            Evidence("control: equal inputs differ", self.within_k, self.within_n, "pairs"),
        )


def observation_findings(observations: Sequence[Observation]) -> list[Finding]:
    """What observations of one query differ in as inputs: request bytes, then token ids."""
    groups: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.query is not None and observation.role == "trial":
            groups.setdefault(observation.query, []).append(observation)
    requests, tokens = _Gathered(), _Gathered()
    for query, group in groups.items():
        _compare_requests(query, group, requests)
        _compare_tokens(query, group, tokens)
    return [*requests.findings(), *tokens.findings()]


class _Gathered:
    """One finding a rule, with the counts of all queries and the first query as the example."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {}
        self.tallies: dict[str, _Tally] = {}
        self.queries: dict[str, int] = {}

    def add(
        self,
        rule: str,
        query: str,
        summary: str,
        data: dict[str, Any],
        group: Sequence[Observation],
        key: Callable[[Observation], Any],
    ) -> None:
        tally = self.tallies.setdefault(rule, _Tally())
        _count(group, key, tally)
        self.queries[rule] = self.queries.get(rule, 0) + 1
        explains = _varying(group) | {"prompt_digest", "prompt_token_ids", "client"}
        if _repeats_mix_inputs(group, key):
            explains.add(CONTROL_FACTOR)
        held = self.first.setdefault(rule, (query, summary, data, set()))
        held[3].update(explains)

    def findings(self) -> list[Finding]:
        return [self._finding(rule) for rule in self.first]

    def _finding(self, rule: str) -> Finding:
        query, summary, data, explains = self.first[rule]
        tally = self.tallies[rule]
        count = self.queries[rule]
        layer: Layer = "version" if rule.startswith("version.") else "input"
        return _failed(
            rule,
            f"{count} {'query' if count == 1 else 'queries'}: {summary}",
            layer=layer,
            evidence=tally.evidence(),
            locus=Locus(query=query),
            mechanism=tally.goes_with_input,
            explains=tuple(sorted(explains)),
            data=data,
        )


def _compare_requests(query: str, group: Sequence[Observation], out: _Gathered) -> None:
    withs = [o for o in group if o.request is not None]
    variants: dict[str, Observation] = {}
    for observation in withs:
        variants.setdefault(_prompt_key(observation), observation)
    if len(variants) < 2:
        return
    first, second = list(variants.values())[:2]
    changes = [
        change
        for change in diff_json(prompt_part(first.request or {}), prompt_part(second.request or {}))
        if change.reach == "prompt"
    ]
    if not changes:
        return
    rule, summary, data = _request_rule(changes, withs)
    names = (f"{query}: {first.id}", f"{query}: {second.id}")
    text = next((c for c in changes if c.text_diff is not None), None)
    if text is not None and text.text_diff is not None:
        data["input_diff"] = text.text_diff.to_dict(*(f"{n} {text.path}" for n in names))
    out.add(rule, query, summary, data, withs, _prompt_key)


def _request_rule(
    changes: Sequence[Change], group: Sequence[Observation]
) -> tuple[str, str, dict[str, Any]]:
    data: dict[str, Any] = {"changes": [change.to_dict() for change in changes]}
    shown = describe_change(changes[0])
    if all(change.kind == "order" for change in changes):
        return "input.key-order", f"the same JSON in another key order at {shown}", data
    volatile = _volatile(changes, group)
    if volatile:
        path, found = volatile
        data["volatile"] = [v.to_dict() for v in found]
        kinds = ", ".join(sorted({v.kind for v in found}))
        return (
            "input.volatile-content",
            f"the prompt carries content that changes from call to call ({kinds}) at {path}",
            data,
        )
    return "input.bytes-differ", f"prompts differ at {shown}", data


def _volatile(
    changes: Sequence[Change], group: Sequence[Observation]
) -> tuple[str, tuple[Volatile, ...]] | None:
    """Where *all* differences are clocks, ids or counters: the path and the places."""
    if any(change.kind != "text" for change in changes):
        return None
    found: list[Volatile] = []
    for change in changes:
        texts = [t for o in group if (t := _at(o.request, change.path)) is not None]
        found += compare_renders(texts[:12])
    if not found or any(v.kind == "varies" for v in found):
        return None
    return changes[0].path, tuple(found)


def _at(request: Mapping[str, Any] | None, path: str) -> str | None:
    """The string at a path as :func:`detdiag.inputs.json_diff.json_path` writes it."""
    from detdiag.inputs.json_diff import path_keys

    value: Any = request
    for key in path_keys(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value if isinstance(value, str) else None


def _compare_tokens(query: str, group: Sequence[Observation], out: _Gathered) -> None:
    """Token ids that differ where the prompt bytes do not (or are not recorded)."""
    by_prompt: dict[str, list[Observation]] = {}
    for observation in group:
        if observation.prompt_token_ids is not None:
            by_prompt.setdefault(_prompt_key(observation), []).append(observation)
    for members in by_prompt.values():
        variants: dict[tuple[int, ...], Observation] = {}
        for observation in members:
            variants.setdefault(observation.prompt_token_ids or (), observation)
        if len(variants) < 2:
            continue
        (ids_a, first), (ids_b, second) = list(variants.items())[:2]
        diff = diff_tokens(ids_a, ids_b)
        rule, summary = _token_rule(diff, members)
        data = {"token_diff": diff.to_dict(), "observations": [first.id, second.id]}
        out.add(rule, query, summary, data, members, lambda o: o.prompt_token_ids)


def _token_rule(diff: TokenDiff, group: Sequence[Observation]) -> tuple[str, str]:
    where = f"first at token {diff.first_difference}"
    owner = _version_owner(group)
    if owner is not None:
        return (
            "version.tokenisation-changed",
            f"the same prompt becomes other token ids as {owner} changes ({where})",
        )
    if diff.has("doubled-bos"):
        note = next(text for code, text in diff.notes if code == "doubled-bos")
        return "input.doubled-bos", f"the same prompt as two id lists: {note}"
    return (
        "input.token-ids-differ",
        f"the same prompt as two id lists, {where} ({diff.length_a} and {diff.length_b} ids)",
    )


def _version_owner(group: Sequence[Observation]) -> str | None:
    """A version factor that settles the token ids: each of its values has one id list."""
    names = {name for o in group for name in o.factors if FACTOR_LAYERS.get(name) == "version"}
    for name in sorted(names - ORDER_FACTORS):
        ids: dict[str, set[tuple[int, ...]]] = {}
        for observation in group:
            value = _text(observation.factors.get(name))
            ids.setdefault(value, set()).add(observation.prompt_token_ids or ())
        if len(ids) > 1 and all(len(lists) == 1 for lists in ids.values()):
            return name
    return None


def _prompt_key(observation: Observation) -> str:
    """The rendered part of the request as ordered text: the identity of the prompt."""
    from detdiag.inputs.canonical import ordered_digest

    return ordered_digest(prompt_part(observation.request or {}))


def _condition(observation: Observation) -> tuple[tuple[str, str], ...]:
    ignored = {CONTROL_FACTOR, *ORDER_FACTORS, *_FACTORS, "cached_tokens", "prefix_cache"}
    items = observation.factors.items()
    return tuple(sorted((name, _text(value)) for name, value in items if name not in ignored))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _outcome(observation: Observation) -> tuple[Any, Any] | None:
    output = observation.output
    if output.text is None and output.token_ids is None:
        return None
    return output.text, output.token_ids


def _count(group: Sequence[Observation], key: Callable[[Observation], Any], tally: _Tally) -> None:
    """Pairs that share every other condition; at most ``_MAX_PAIRS`` observations a condition."""
    by_condition: dict[Any, list[Observation]] = {}
    for observation in group:
        if _outcome(observation) is not None:
            by_condition.setdefault(_condition(observation), []).append(observation)
    for members in by_condition.values():
        for left, right in combinations(members[:_MAX_PAIRS], 2):
            differ = _outcome(left) != _outcome(right)
            if key(left) == key(right):
                tally.within_n += 1
                tally.within_k += differ
            else:
                tally.across_n += 1
                tally.across_k += differ


def _varying(group: Sequence[Observation]) -> set[str]:
    return {name for name in _FACTORS if len({_text(o.factors.get(name)) for o in group}) > 1}


def _repeats_mix_inputs(group: Sequence[Observation], key: Callable[[Observation], Any]) -> bool:
    """Whether one recorded condition (input factors included) saw more than one input."""
    seen: dict[Any, set[Any]] = {}
    for observation in group:
        ignored = {CONTROL_FACTOR, *ORDER_FACTORS}
        condition = tuple(
            sorted((n, _text(v)) for n, v in observation.factors.items() if n not in ignored)
        )
        seen.setdefault(condition, set()).add(key(observation))
    return any(len(inputs) > 1 for inputs in seen.values())


def _failed(rule: str, summary: str, *, layer: Layer = "input", **fields: Any) -> Finding:
    return Finding(
        layer,
        rule,
        "failed",
        summary,
        severity="high",
        remedy=_REMEDIES.get(rule),
        **fields,
    )
