"""Tokenizer and template sections compared: behaviour first, then the parts that changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detdiag.fingerprint.weightdiff import SectionDiff, section
from detdiag.inputs.bytes_diff import diff_texts
from detdiag.inputs.characters import visible
from detdiag.inputs.findings import describe

_PARTS = {
    "normalizer": "the normaliser",
    "pre_tokenizer": "the pre-tokeniser",
    "post_processor": "the post-processor (special tokens around the text)",
    "added_tokens": "the added tokens",
    "vocab": "the vocabulary",
    "merges": "the merges",
    "model": "the model's options",
    "decoder": "the decoder",
    "truncation": "the truncation",
    "padding": "the padding",
}


def tokenizer_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[SectionDiff]:
    """At most one row for the tokenizer and one for its configuration."""
    left, right = section(a, "tokenizer"), section(b, "tokenizer")
    digests = a.get("tokenizer_digest"), b.get("tokenizer_digest")
    recorded = None not in digests
    seen = _behaviour_differs(left, right)
    if recorded and (digests[0] != digests[1] or seen):
        yield SectionDiff("tokenizer_digest", *digests, _tokenizer_text(left, right, seen), seen)
    for key in sorted(_config(left).keys() | _config(right).keys()):
        values = _config(left).get(key, "(absent)"), _config(right).get(key, "(absent)")
        if left and right and values[0] != values[1]:
            yield SectionDiff(f"tokenizer.config.{key}", *values, "")


def _config(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return section(part, "config")


def _ids(part: Mapping[str, Any]) -> list[Any] | None:
    behaviour = section(part, "behaviour")
    lists = [behaviour.get("ids"), behaviour.get("ids_plain", [])]
    if not all(isinstance(rows, list) for rows in lists):
        return None
    return [row for rows in lists for row in rows or ()]


def _behaviour_differs(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool | None:
    """Whether any probe string became other ids; None where it was not recorded."""
    ids = _ids(left), _ids(right)
    if ids[0] is None or ids[1] is None or len(ids[0]) != len(ids[1]):
        return None
    return ids[0] != ids[1]


def _tokenizer_text(left: Mapping[str, Any], right: Mapping[str, Any], seen: bool | None) -> str:
    parts = [section(left, "parts"), section(right, "parts")]
    changed = [
        words
        for key, words in _PARTS.items()
        if all(parts) and parts[0].get(key) != parts[1].get(key)
    ]
    text = f"{', '.join(changed)} changed" if changed else "other tokenizer files"
    if seen is None:
        return text
    ids_a, ids_b = _ids(left) or [], _ids(right) or []
    differ = [i for i, (x, y) in enumerate(zip(ids_a, ids_b, strict=True)) if x != y]
    if not differ:
        return f"{text}; the ids of all {len(ids_a)} probes agree"
    probe = _probe(differ[0], len(ids_a))
    return (
        f"{text}; {len(differ)} of {len(ids_a)} probes become other ids, first {probe!r}: "
        f"{_few(ids_a[differ[0]])} against {_few(ids_b[differ[0]])}"
    )


def _probe(index: int, count: int) -> str:
    from detdiag.fingerprint.tokenizer import PROBES

    return visible(PROBES[index % len(PROBES)], 40) if count == 2 * len(PROBES) else str(index)


def _few(ids: Any) -> str:
    ids = ids if isinstance(ids, list) else [ids]
    shown = " ".join(map(str, ids[:8]))
    return f"[{shown}{' ...' if len(ids) > 8 else ''}]"


def template_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[SectionDiff]:
    """One row for each template that differs (``default``, ``tool_use`` ...)."""
    digests = a.get("template_digest"), b.get("template_digest")
    left, right = section(a, "chat_template"), section(b, "chat_template")
    if None in digests and not (left and right):
        if digests != (None, None) and "tokenizer" in a and "tokenizer" in b:
            words = "a has no chat template" if digests[0] is None else "b has no chat template"
            yield SectionDiff("template_digest", *digests, words)
        return
    texts = [section(side, "texts") for side in (left, right)]
    if not all(texts):
        if digests[0] != digests[1]:
            yield SectionDiff("template_digest", *digests, "")
        return
    for name in sorted(texts[0].keys() | texts[1].keys()):
        old, new = texts[0].get(name), texts[1].get(name)
        if old == new and _renders(left, name) == _renders(right, name):
            continue
        if old is None or new is None:
            words = f"template {name!r} is only in {'b' if old is None else 'a'}"
            yield SectionDiff(f"chat_template.{name}", old, new, words)
            continue
        text, seen = _template_text(old, new, _renders(left, name), _renders(right, name))
        yield SectionDiff(f"chat_template.{name}", *digests, text, seen)


def _renders(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return section(section(part, "renders"), name)


def _template_text(
    old: str, new: str, left: Mapping[str, Any], right: Mapping[str, Any]
) -> tuple[str, bool | None]:
    old, new = str(old), str(new)
    diff = diff_texts(old, new)
    white = "".join(old.split()) == "".join(new.split())
    kind = "white space in the template changed" if white else "the template changed"
    where = f"{kind} ({describe(diff)})"
    shared = [key for key in left if key in right and key != "reads_clock"]
    if not shared:
        return where, None
    differ = [key for key in shared if left[key] != right[key]]
    if not differ:
        return f"{where}; the renders of {len(shared)} probes agree", False
    if differ == ["no_system"]:
        return f"the default system prompt changed: {_render_text(left, right, 'no_system')}", True
    change = _render_text(left, right, differ[0])
    return f"{where}; the render of {differ[0]!r} differs: {change}", True


def _render_text(left: Mapping[str, Any], right: Mapping[str, Any], key: str) -> str:
    pair = [side[key] if isinstance(side[key], str) else str(side[key]) for side in (left, right)]
    diff = diff_texts(*pair)
    if not diff.hunks:
        return "equal"
    hunk = diff.hunks[0]
    return f"[-{visible(hunk.a, 40)}-] {{+{visible(hunk.b, 40)}+}} at byte {hunk.offset_a}"
