"""The header strip and the verdict block of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from detdiag.report import model, tables
from detdiag.report.messages import Say, has
from detdiag.report.numbers import number
from detdiag.report.safe import one_line, visible
from detdiag.report.text import confidence_word, headline_text, in_language, target_name

_VERDICT_SYMBOLS: Final = {"attributed": "✗", "clean": "✓"}


def facts(report: model.Report, say: Say) -> list[tuple[str, str]]:
    """The header strip: name and value of what was measured, where and how."""
    target = model.mapping(report.get("target"))
    method = model.mapping(report.get("method"))
    tool = model.mapping(report.get("tool"))
    digest = model.fingerprint_digest(report)
    created = model.mapping(report.get("fingerprint")).get("created")
    when = method.get("started") or method.get("time") or target.get("time") or created
    count = report.get("observations")
    found = [
        ("header.target", target_name(report)),
        ("header.date", one_line(when, 40)),
        ("header.device", one_line(target.get("device"), 60)),
        ("header.dtype", one_line(target.get("dtype"), 20)),
        ("header.fingerprint", one_line(digest)[:12] if digest else ""),
        ("header.observations", number(count) if count is not None else ""),
        (
            "header.redact",
            say(f"redact_word.{model.redaction(report)}")
            if has(f"redact_word.{model.redaction(report)}")
            else model.redaction(report),
        ),
        ("header.tool", f"{visible(tool.get('version'))} · {visible(report.get('schema'))}"),
    ]
    return [(say(key), value) for key, value in found if value]


def verdict_view(report: model.Report, say: Say) -> dict[str, Any]:
    found = model.verdict(report)
    status = str(found.get("status") or "inconclusive")
    status = status if status in ("attributed", "clean") else "inconclusive"
    sentence = visible(found.get("sentence"))
    own = bool(sentence) and in_language(sentence, say)
    tags: list[str] = []
    if status == "attributed":
        tags.append(f"{say('head.layer')}: {visible(found.get('layer'))}")
    if found.get("confidence"):
        tags.append(confidence_word(found["confidence"], say))
    # a cause read from files alone: "no difference" would deny what the sentence says
    unseen = status == "attributed" and found.get("divergence") == "none"
    if has(f"divergence.{found.get('divergence')}") and not unseen:
        tags.append(say(f"divergence.{found['divergence']}"))
    return {
        "status": status,
        "symbol": _VERDICT_SYMBOLS.get(status, "?"),
        "word": say(f"status.{status}"),
        "tags": tags,
        "headline": split_sentence(sentence) if own else (headline_text(report, say), ""),
        "sentence": "" if own else sentence,
        "rows": _verdict_rows(report, say),
        "remedy": model.primary_remedy(report) if status == "attributed" else None,
        "next": model.next_steps(report)[:3] if status != "clean" else [],
        "would_change": found.get("would_change"),
    }


def split_sentence(sentence: str) -> tuple[str, str]:
    """The verdict's first words (layer and confidence) and the counts behind them.

    Joined by a space the two are the sentence again.
    """
    match = re.match(r"(.{1,60}?\):|[^:]{1,60}:) (.{40,})$", sentence, re.S) or re.match(
        r"(.{1,40}?：.{1,30}?）：)(.{20,})$", sentence, re.S
    )
    return (match[1], match[2]) if match else (sentence, "")


def _verdict_rows(report: model.Report, say: Say) -> list[tuple[str, str]]:
    found = model.verdict(report)
    out: list[tuple[str, str]] = []
    if found.get("confidence") in ("confirmed", "likely", "suspected"):
        out.append((say("verdict.confidence"), say(f"confidence_means.{found['confidence']}")))
    place = model.first_divergence(report)
    if place:
        named = [f"{say('place.' + k)} {one_line(v, 120)}" for k, v in place.items()]
        out.append((say("verdict.first_divergence"), ", ".join(named)))
    also = [also_text(row, say) for row in model.rows(found.get("also"))]
    if also:
        out.append((say("verdict.also"), "; ".join(also)))
    elif found.get("status") == "attributed":
        out.append((say("verdict.also"), say("verdict.also_none")))
    if found.get("confounded"):
        out.append((say("verdict.confounded"), confounded_text(found["confounded"])))
    absent = {
        layer.get("layer")
        for layer in model.layers_in_walk_order(report)
        if model.layer_state(layer) == "not_applicable"
    }
    for key in ("ruled_out", "untested"):
        names = [n for n in model.layer_ids(found.get(key)) if n not in absent]
        if names:
            out.append((say(f"verdict.{key}"), ", ".join(visible(n) for n in names)))
    return out


def also_text(row: Mapping[str, Any], say: Say) -> str:
    rule = f" ({visible(row.get('rule'))})" if row.get("rule") else ""
    return f"{visible(row.get('layer'))}{rule}, {confidence_word(row.get('confidence'), say)}"


def confounded_text(value: Any) -> str:
    """Confounded factors: names, or sets of names, or ``{"factors": [...]}`` objects."""
    if isinstance(value, Mapping):
        inner = value.get("factors")
        return confounded_text(inner) if inner else tables.condition_text(value)
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(v, (list, tuple, Mapping)) for v in value)
        return ("; " if nested else " + ").join(confounded_text(v) for v in value)
    return visible(value)
