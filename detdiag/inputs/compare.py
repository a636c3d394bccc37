"""Two files compared as what they hold: request bodies, token-id lists or prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from detdiag.errors import DetdiagError
from detdiag.evidence.finding import Finding
from detdiag.inputs.bytes_diff import TextDiff, diff_texts
from detdiag.inputs.characters import visible
from detdiag.inputs.findings import (
    describe,
    describe_change,
    failed_finding,
    prompt_finding,
    request_findings,
)
from detdiag.inputs.json_diff import Change, diff_json
from detdiag.inputs.json_text import decode_utf8, parse_json
from detdiag.inputs.tokens_diff import TokenDiff, diff_tokens
from detdiag.inputs.volatile import find_volatile

DiffKind = Literal["request", "tokens", "text", "bytes"]
KINDS: Final[tuple[DiffKind, ...]] = get_args(DiffKind)
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """``differs`` means: in a way that can change the output. ``lines`` are for a person."""

    kind: DiffKind
    differs: bool
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]
    detail: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "differs": self.differs,
            "findings": [{"layer": f.layer, **f.to_dict()} for f in self.findings],
            **self.detail,
        }


def compare_files(a: Path, b: Path, kind: DiffKind | None = None) -> Comparison:
    """Compare two files; raise :class:`DetdiagError` for one that cannot be read as its kind."""
    raw_a, raw_b = read_bytes(a), read_bytes(b)
    names = (str(a), str(b)) if a.name == b.name else (a.name, b.name)
    kind = kind or detect_kind((a, raw_a), (b, raw_b))
    if kind == "tokens":
        return _tokens(_ids(raw_a, a), _ids(raw_b, b), names)
    if kind == "request":
        return _requests(raw_a, raw_b, (a, b), names)
    if kind == "text":
        for path, raw in ((a, raw_a), (b, raw_b)):
            _utf8(raw, path)
    return _texts(raw_a, raw_b, names, kind)


def read_bytes(path: Path) -> bytes:
    """The file's bytes or one clear line."""
    if path.is_dir():
        raise DetdiagError("is a directory, expected a file", path=path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error


def detect_kind(*files: tuple[Path, bytes]) -> DiffKind:
    """By content; a ``.json`` file that does not parse is an error, not a text."""
    kinds = {_kind_of(path, raw) for path, raw in files}
    return kinds.pop() if len(kinds) == 1 else "text"


def _kind_of(path: Path, raw: bytes) -> DiffKind:
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if path.suffix.lower() != ".json" and start not in (b"{", b"["):
        return "text"
    try:
        value = parse_json(raw, path)
    except DetdiagError:
        if path.suffix.lower() == ".json":
            raise
        return "text"
    if isinstance(value, list) and all(_is_id(item) for item in value):
        return "tokens"
    return "request"


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(raw: bytes, path: Path) -> list[int]:
    value = parse_json(raw, path)
    if not isinstance(value, list) or not all(_is_id(item) for item in value):
        raise DetdiagError("expected a JSON list of integer token ids", path=path)
    return value


def _utf8(raw: bytes, path: Path) -> None:
    try:
        decode_utf8(raw, path)
    except DetdiagError as error:
        error.tip = f"{error.tip}; or compare as they are with --kind bytes"
        raise


def _texts(a: bytes, b: bytes, names: tuple[str, str], kind: DiffKind) -> Comparison:
    diff = diff_texts(a, b)
    finding = prompt_finding(a, b, names)
    lines = [finding.summary, *_hunk_lines(diff), *_volatile_lines(a, names[0])]
    return Comparison(
        kind, not diff.equal, (finding,), tuple(lines), {"input_diff": diff.to_dict(*names)}
    )


def _hunk_lines(diff: TextDiff, indent: str = "  ") -> Iterator[str]:
    for hunk in diff.hunks[:_SHOWN]:
        names = f"   {', '.join(hunk.names[:6])}" if hunk.names else ""
        yield (
            f"{indent}byte {hunk.offset_a}/{hunk.offset_b} (line {hunk.line_a}, column "
            f"{hunk.col_a}): [-{visible(hunk.a, 60)}-] {{+{visible(hunk.b, 60)}+}}{names}"
        )
    left = len(diff.hunks) - _SHOWN + diff.hunks_left_out
    if left > 0:
        yield f"{indent}... and {left} more changes"
    for note in diff.notes:
        yield f"{indent}note: {note.text}"
    if diff.equal_after:
        yield f"{indent}equal after: {' + '.join(diff.equal_after)}"
    elif not diff.equal:
        yield f"{indent}no folding makes them equal: the words differ"


def _volatile_lines(raw: bytes, name: str) -> Iterator[str]:
    found = find_volatile(raw[:200_000].decode("utf-8", "replace"))
    if found:
        shown = ", ".join(f"{v.kind} {visible(v.text, 40)!r}" for v in found[:4])
        yield f"  note: {name} holds content that may change from call to call: {shown}"


def _requests(a: bytes, b: bytes, paths: tuple[Path, Path], names: tuple[str, str]) -> Comparison:
    left, right = parse_json(a, paths[0]), parse_json(b, paths[1])
    changes = diff_json(left, right)
    findings = request_findings(a, b, names)
    live = [change for change in changes if change.can_matter]
    lines = [f"{names[0]} and {names[1]}: {_headline(a == b, changes, live)}"]
    for change in [*live, *(c for c in changes if not c.can_matter)][:_SHOWN]:
        lines += _change_lines(change)
    if len(changes) > _SHOWN:
        lines.append(f"  ... and {len(changes) - _SHOWN} more changes")
    detail: dict[str, Any] = {"changes": [change.to_dict() for change in changes]}
    return Comparison("request", bool(live), tuple(findings), tuple(lines), detail)


def _headline(same_bytes: bool, changes: tuple[Change, ...], live: list[Change]) -> str:
    if same_bytes:
        return "equal to the byte"
    if not changes:
        return "the same JSON; only white space outside strings differs, which no model sees"
    if not live:
        return "differ only in what cannot change the output"
    inert = len(changes) - len(live)
    more = f", {inert} that cannot" if inert else ""
    return f"{len(live)} difference{'s' * (len(live) > 1)} that can change the output{more}"


def _change_lines(change: Change) -> Iterator[str]:
    reach = "cannot change the output" if not change.can_matter else f"reaches the {change.reach}"
    if change.reach == "other":
        reach = "can change the output"
    if change.text_diff is None:
        yield f"  {visible(describe_change(change), 300)} [{reach}]"
        return
    yield f"  {visible(change.path, 200)}: {describe(change.text_diff)} [{reach}]"
    yield from _hunk_lines(change.text_diff, "    ")


def _tokens(a: list[int], b: list[int], names: tuple[str, str]) -> Comparison:
    diff = diff_tokens(a, b)
    detail = {"token_diff": diff.to_dict()}
    if diff.equal:
        text = f"{names[0]} and {names[1]}: the same {len(a)} token ids"
        finding = Finding("input", "input.token-ids-differ", "passed", text)
        return Comparison("tokens", False, (finding,), (text,), detail)
    rule = "input.doubled-bos" if diff.has("doubled-bos") else "input.token-ids-differ"
    text = (
        f"{names[0]} and {names[1]}: token ids differ, first at index {diff.first_difference} "
        f"({len(a)} and {len(b)} ids)"
    )
    finding = failed_finding(rule, text, data=detail)
    return Comparison("tokens", True, (finding,), (text, *_token_lines(diff)), detail)


def _token_lines(diff: TokenDiff) -> Iterator[str]:
    for hunk in diff.hunks[:_SHOWN]:
        old, new = (" ".join(map(str, side[:16])) for side in (hunk.a, hunk.b))
        yield f"  token {hunk.start_a}/{hunk.start_b}: [-{old}-] {{+{new}+}}"
    if len(diff.hunks) > _SHOWN:
        yield f"  ... and {len(diff.hunks) - _SHOWN} more changes"
    for _, text in diff.notes:
        yield f"  note: {text}"
