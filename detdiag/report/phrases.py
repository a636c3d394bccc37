"""Sentences of the verdict, the probes and the gate in another language, by their English form.

The report object holds English sentences; they are its contract. ``phrases.LANG.json`` maps the
English template of each to the translated one, ``rule_texts.LANG.json`` beside the rules does so
for what the rule files say, and :func:`localised` makes a copy of a report whose sentences are
translated, for renderers. A text without a template stays as it is.

Fields of an English template: ``{x}`` any text, ``{x:n}`` a number, ``{x:s}`` a plural ending,
``{x:w}`` one name without a space, ``{x:t}`` a text that is translated in turn, ``{x:l}`` a list of
such texts (``,``, ``;``, ``and``), ``{x:v}`` stretches of versions (``;``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from detdiag.report.safe import looks_like_command

SENTENCE_KEYS: Final = frozenset(
    "sentence would_change why title reason summary action command cost verify note notes evidence "
    "limits metric unit conditions level_because statement arithmetic equal_after ignored".split()
)
"""Keys of a report under which a text is a sentence of detdiag's own."""
_LEFT_ALONE: Final = frozenset({"fingerprint", "outputs", "effective_params", "target", "tool"})
"""Parts that hold other people's text or names only, or have a walk of their own."""
_OWN_VALUES: Final = frozenset({"decoding", "tie_break", "rng_scope"})
"""Rows of the parameter table whose value is a sentence and no parameter's value."""
_PACKAGE: Final = Path(__file__).parents[1]
_CATALOGUES: Final = (("report", "phrases"), ("rules", "rule_texts"))
"""Folder and name of the files that hold templates."""
_FIELD: Final = re.compile(r"\{(\w+)(?::([nstlvw]))?\}")
_PATTERN: Final = {
    "n": r"[-+]?[\d.,]+(?:e[-+]?\d+)?(?:\s?%)?|∞|inf",
    "s": r"e?s?",
    "t": r".+?",
    "l": r".+?",
    "v": r".+?",
    "w": r"[\w.:-]+",
    "": r".+?",
}
LONGEST: Final = 1000
"""Characters of a text that is compared with templates: lazy fields are slow on hostile text."""
MOST_PARTS: Final = 60
WEAK: Final = 5
"""Literal characters below which a template is tried last."""
_CLAUSE_ENDS: Final = ("; ", ". ", " (left untested: ")
_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_LIST: Final = re.compile(r"; |, (?:and )?| and | \+ ")


@dataclass(frozen=True, slots=True)
class Phrase:
    """One template: ``probe`` is its longest literal part, for a quick test; ``pattern`` is only
    compiled for a text that holds it."""

    pattern: str
    kinds: Mapping[str, str]
    text: str
    probe: str
    weight: int


def compiled(english: str, translated: str) -> Phrase:
    """The template as a pattern; every field is a named group."""
    kinds: dict[str, str] = dict(_FIELD.findall(english))
    parts: list[str] = []
    literals: list[str] = []
    end = 0
    seen: set[str] = set()
    for found in _FIELD.finditer(english):
        literals.append(english[end : found.start()])
        parts.append(re.escape(literals[-1]))
        name, kind = found[1], found[2] or ""
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>{_PATTERN[kind]})")
        seen.add(name)
        end = found.end()
    literals.append(english[end:])
    parts.append(re.escape(literals[-1]))
    probe = max(literals, key=len)
    weight = sum(map(len, literals)) + sum(kind == "n" for kind in kinds.values())
    return Phrase("".join(parts), kinds, translated, probe, weight)


@cache
def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.S)


@lru_cache(maxsize=4)
def phrases(lang: str) -> tuple[dict[str, str], tuple[Phrase, ...]]:
    """``(texts without fields, templates from the most to the least literal)`` of a language."""
    raw: dict[str, str] = {}
    for folder, name in _CATALOGUES:
        path = _PACKAGE / folder / f"{name}.{lang}.json"
        if path.is_file():
            raw |= json.loads(path.read_text("utf-8"))
    plain = {en: text for en, text in raw.items() if not _FIELD.search(en)}
    made = [compiled(en, text) for en, text in raw.items() if en not in plain]
    return plain, tuple(sorted(made, key=lambda p: -p.weight))


@lru_cache(maxsize=4096)
def translated(text: str, lang: str) -> str:
    """``text`` in ``lang`` as far as its templates are known; what is not stays English."""
    if not text.strip() or lang == "en":
        return text
    short = len(text) <= LONGEST
    return (
        (_whole(text, lang, tight=True) if short else None)
        or _in_parts(text, lang)
        or (_whole(text, lang) or _whole(text, lang, weak=True) if short else None)
        or text
    )


def _in_parts(text: str, lang: str) -> str | None:
    """Sentences, then clauses, translated one by one; None where none of them is known."""
    for mark, joint in ((". ", "。"), ("; ", "；")):
        if mark in text:
            pieces = text.split(mark)
            parts = [translated(part, lang) for part in pieces[:MOST_PARTS]]
            if any(map(is_chinese, parts)):
                parts += pieces[MOST_PARTS:]
                return joint.join([*(p.rstrip("。") for p in parts[:-1]), parts[-1]])
    return None


def _whole(text: str, lang: str, *, weak: bool = False, tight: bool = False) -> str | None:
    """The translation of the text as one phrase; a full stop or a capital may differ.

    ``tight``: only a field ``{rest:t}`` may run over the end of a clause. ``weak`` templates are
    little more than punctuation: they only count where a part of them is known.
    """
    plain, templates = phrases(lang)
    forms = _forms(text)
    for form, ending in forms:
        if form in plain:
            return plain[form] + ending
    for phrase in templates:
        if (phrase.weight < WEAK) is not weak:
            continue
        for form, ending in forms:
            found = _pattern(phrase.pattern).fullmatch(form) if phrase.probe in form else None
            if found is not None and not (tight and _runs_over(phrase, found, plain)):
                shown = _filled(phrase, found, lang) + ending
                if not weak or is_chinese(shown):
                    return shown
    return None


def _runs_over(phrase: Phrase, found: re.Match[str], plain: Mapping[str, str]) -> bool:
    """True if a field took in the end of a clause, and more than one known text."""
    values = (
        found[name] or ""
        for name, kind in phrase.kinds.items()
        if not kind or (kind == "t" and name != "rest")
    )
    return any(value not in plain and mark in value for value in values for mark in _CLAUSE_ENDS)


def _forms(text: str) -> list[tuple[str, str]]:
    """The text itself, without its full stop, and with a small first letter."""
    out = [(text, "")]
    if text.endswith(".") and not text.endswith(".."):
        out.append((text[:-1], "。"))
    out += [(f[:1].lower() + f[1:], end) for f, end in out if f[:1].isupper()]
    return out


def _filled(phrase: Phrase, found: re.Match[str], lang: str) -> str:
    values = {}
    for name, kind in phrase.kinds.items():
        value = found[name] or ""
        if kind == "t":
            value = translated(value, lang)
        elif kind == "l":
            value = _list(value, lang)
        elif kind == "v":
            value = _stretches(value, lang)
        values[name] = value
    return _FIELD.sub(lambda m: values[m[1]], phrase.text)


def _list(text: str, lang: str) -> str:
    return "、".join(translated(part, lang) for part in _LIST.split(text))


def _stretches(text: str, lang: str) -> str:
    return "；".join(translated(part, lang) for part in text.split("; "))


def is_chinese(text: str) -> bool:
    return bool(_CHINESE.search(text))


def localised(report: Mapping[str, Any], lang: str) -> Mapping[str, Any]:
    """The report with its own sentences in ``lang``; the very same object for English."""
    if lang == "en":
        return report
    out: dict[str, Any] = _walk(report, lang, "")
    return out


def _walk(value: Any, lang: str, key: str) -> Any:
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if isinstance(value.get("title"), str) and value["title"].endswith(" ..."):
            value = {**value, "title": _whole_title(value)}
        made = {k: v if k in _LEFT_ALONE else _walk(v, lang, str(k)) for k, v in value.items()}
        if isinstance(made.get("effective_params"), (list, tuple)):
            made["effective_params"] = [parameter(row, lang) for row in made["effective_params"]]
        if isinstance(kind, str) and isinstance(made.get("summary"), str):
            made["summary"] = _with_kind(kind, made["summary"], lang)
        return made
    if isinstance(value, (list, tuple)):
        # a list under "conditions" holds the arms of a contrast: values, not sentences
        return list(value) if key == "conditions" else [_walk(item, lang, key) for item in value]
    if isinstance(value, str) and key in SENTENCE_KEYS:
        return advice(value, lang)
    if isinstance(value, str) and key == "source":
        return phrases(lang)[0].get(value, value)
    return value


def advice(text: str, lang: str) -> str:
    """``text`` in ``lang``; a command stays as it is.

    Advice that begins with the assignment or the flag to set looks like one, but is known whole.
    """
    known = phrases(lang)[0].get(text, text)
    return known if looks_like_command(text) else translated(text, lang)


def parameter(row: Any, lang: str) -> Any:
    """A row of the parameter table: where a value comes from is said in ``lang``, names stay."""
    if not isinstance(row, Mapping) or lang == "en":
        return row
    own = ("note", "value") if row.get("parameter") in _OWN_VALUES else ("note",)
    made: dict[str, Any] = {
        k: translated(str(row[k]), lang) for k in ("origin", *own) if row.get(k)
    }
    if isinstance(row.get("versions"), str):
        made["versions"] = _stretches(row["versions"], lang)
    if isinstance(row.get("ignored"), (list, tuple)):
        made["ignored"] = [_origin_first(str(text), lang) for text in row["ignored"]]
    return {**row, **made}


def _origin_first(text: str, lang: str) -> str:
    origin, colon, value = text.partition(": ")
    return translated(origin, lang) + colon + value


def _whole_title(layer: Mapping[str, Any]) -> str:
    """The summary that a layer's cut title was made of: only a whole sentence has a template."""
    title = str(layer["title"])
    findings = layer.get("findings")
    for finding in findings if isinstance(findings, (list, tuple)) else ():
        summary = finding.get("summary") if isinstance(finding, Mapping) else None
        if isinstance(summary, str) and " ".join(summary.split()).startswith(title[:-4]):
            return summary
    return title


def _with_kind(kind: str, summary: str, lang: str) -> str:
    """A configuration rule whose own words are not translated says at least what it is about."""
    if _CHINESE.search(summary):
        return summary
    said = _whole(f"kind {kind}", lang)
    return f"{said}：{summary}" if said else summary
