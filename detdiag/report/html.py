"""The HTML report: one offline file, complete without JavaScript; same report, same bytes."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from detdiag.errors import DetdiagError
from detdiag.report import model, tables
from detdiag.report.messages import HTML_LANG, Say, speaker
from detdiag.report.phrases import localised
from detdiag.report.safe import (
    dump_json,
    dump_json_for_html,
    looks_like_command,
    pieces,
    visible,
)
from detdiag.report.text import target_name
from detdiag.report.views import closing, layers, outputs, verdict
from detdiag.report.views.figures import figure_views

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

PlotlyMode = Literal["embed", "none", "cdn"]
PLOTLY_MODES: Final[tuple[PlotlyMode, ...]] = get_args(PlotlyMode)

EVIDENCE_CAP_BYTES: Final = 120_000
"""Largest evidence link, in base64 characters; above it the long tables are thinned."""

_TEMPLATES: Final = Path(__file__).with_name("templates")


def render_html(report: model.Report, *, lang: str = "en", plotly: str = "embed") -> str:
    """The page. ``plotly``: ``embed`` (bundle inside, about 2 MB), ``none`` (tables only, strict
    content policy, at most 300 kB) or ``cdn`` (loads the bundle from plotly's own host)."""
    if plotly not in PLOTLY_MODES:
        raise DetdiagError(
            f"unknown plotly mode {plotly!r}", tip="known: " + ", ".join(PLOTLY_MODES)
        )
    say = speaker(lang)
    original, report = report, localised(report, lang)
    figures = figure_views(report, say, draw=plotly != "none")
    specs = [f.spec for f in figures if f.spec is not None]
    script = page_script(plotly if specs else "none", specs)
    context = {
        **_page(report, say, lang),
        **_body(report, say),
        **_closing(report, say),
        **evidence_link(original, say),
        "figures": figures,
        "say": say,
        "lang": lang,
        **script,
    }
    page: str = _environment().get_template("page.html.jinja").render(**context)
    return page


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters["visible"] = marked
    environment.filters["visible_block"] = lambda value: marked(value, keep="\n\t")
    environment.tests["command"] = looks_like_command
    environment.filters["condition"] = tables.condition_text
    return environment


def marked(value: Any, keep: str = "") -> Markup:
    """Text with hidden characters spelled out inside ``<span class="esc">``; all else escaped."""
    from markupsafe import Markup, escape

    if value is None:
        return Markup("")
    return Markup("").join(
        Markup('<span class="esc">{}</span>').format(part) if hidden else escape(part)
        for part, hidden in pieces(str(value), keep=keep)
    )


def _page(report: model.Report, say: Say, lang: str) -> dict[str, Any]:
    from markupsafe import Markup

    found = verdict.verdict_view(report, say)
    name = target_name(report)
    css = (_TEMPLATES / "page.css").read_text("utf-8")
    return {
        "html_lang": HTML_LANG[lang],  # type: ignore[index]
        "css": Markup(css),
        "title": " · ".join(
            part for part in (" ".join(found["headline"]).strip(), name, "detdiag") if part
        ),
        "version": visible(model.mapping(report.get("tool")).get("version")),
        "schema": visible(report.get("schema")),
        "facts": verdict.facts(report, say),
        "redact": model.redaction(report)
        if model.redaction(report) in ("prompts", "all")
        else "none",
        "verdict": found,
        "toc": _contents(say),
        "notices": [],
    }


def _contents(say: Say) -> list[tuple[str, str]]:
    names = (
        "ladder",
        "layers",
        "margins",
        "heatmap",
        "operators",
        "sweep",
        "routing",
        "outputs",
        "diffs",
        "remedies",
        "checklist",
        "postmortem",
        "method",
        "reproduce",
    )
    return [(name, say(f"toc.{name}")) for name in names]


def _body(report: model.Report, say: Say) -> dict[str, Any]:
    diffs = [
        table
        for table in (
            tables.input_table(report, say),
            tables.tokens_table(report, say),
            tables.fingerprint_table(report, say),
            tables.params_table(report, say),
        )
        if table
    ]
    notes = closing.diff_notes(report, say)
    return {
        "ladder": layers.ladder_view(report, say),
        "counts": [tables.contrasts_table(report, say), tables.controls_table(report, say)],
        "layers": layers.layer_views(report, say),
        "outputs": [_marked_outputs(pair) for pair in outputs.output_views(report, say)],
        "diffs": diffs,
        "diff_notes": notes,
        "unchanged": closing.fingerprint_all(report, say),
        "no_diffs": not diffs and not notes,
        "remedies": [(say(f"remedies.{box}"), found) for box, found in model.remedy_boxes(report)],
        "measured_text": lambda measured: tables.measured_text(measured, say),
        "trials": tables.trials_table(report, say),
        "not_tried": tables.skipped_lines(report),
        "checklist": closing.checklist_view(report, say),
    }


def _marked_outputs(pair: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup

    sides: list[dict[str, Any]] = []
    for side in pair["sides"]:
        head, first, rest = (marked(part, keep="\n") for part in side["parts"])
        tag = side["tag"]
        middle = Markup(f"<{tag}>⟦{{}}⟧</{tag}>").format(first) if first else Markup("")
        text = Markup('<span class="same">{}</span>{}{}').format(head, middle, rest)
        sides.append({**side, "text": text})
    return {**pair, "sides": sides}


def _closing(report: model.Report, say: Say) -> dict[str, Any]:
    from detdiag.report.postmortem import render_postmortem

    method, limits = closing.method_view(report, say)
    return {
        "postmortem": visible(render_postmortem(report, lang=say("lang.id")), keep="\n"),
        "method": method,
        "method_tables": [
            t
            for t in (tables.phases_table(report, say), tables.capabilities_table(report, say))
            if t
        ],
        "limits": limits,
        "glossary": closing.glossary(say),
        "reproduce": model.reproduce_command(report),
        "record_sha256": model.record_sha256(report),
    }


def evidence_link(report: model.Report, say: Say) -> dict[str, Any]:
    """The report's JSON as a ``data:`` link; the long tables are thinned if it is too large."""
    packed, raw = _pack(report)
    note = ""
    if len(packed) > EVIDENCE_CAP_BYTES:
        packed, raw = _pack(thinned(report))
        note = say("reproduce.thinned")
    if len(packed) > EVIDENCE_CAP_BYTES:
        return {
            "evidence_href": "",
            "evidence_size": "",
            "evidence_sha256": "",
            "evidence_note": say("reproduce.too_large"),
        }
    from detdiag.report.numbers import bytes_text

    return {
        "evidence_href": f"data:application/gzip;base64,{packed}",
        "evidence_size": bytes_text(len(packed) * 3 // 4),
        "evidence_sha256": hashlib.sha256(raw).hexdigest(),
        "evidence_note": note,
    }


def _pack(report: model.Report) -> tuple[str, bytes]:
    raw = (dump_json(report, indent=None) + "\n").encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode(), raw


def thinned(report: model.Report, rows: int = 500) -> dict[str, Any]:
    """A copy whose margins keep the ``rows`` riskiest and whose wide tables are left out."""
    kept = {k: v for k, v in model.data(report).items() if k not in ("heatmap", "routing")}
    return {
        **report,
        "margins": tables.riskiest_margins(report)[:rows],
        "data": {k: v[:rows] if isinstance(v, list) else v for k, v in kept.items()},
        "thinned": True,
    }


def page_script(mode: str, specs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Figure data, bundle, loader and the content policy that allows exactly these scripts."""
    from markupsafe import Markup

    base = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    if mode == "none":
        return {"csp": base, "specs": "", "bundle": "", "loader": "", "cdn": None}
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    code: str = get_plotlyjs()
    loader = (_TEMPLATES / "figures.js").read_text("utf-8")
    own = f"'sha256-{_sha256(loader)}'"
    allowed = f"{own} 'sha256-{_sha256(code)}'" if mode == "embed" else f"{own} https://cdn.plot.ly"
    src = f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"
    return {
        "csp": f"{base}; script-src {allowed}",
        "specs": Markup(dump_json_for_html(specs)),
        "bundle": Markup(_packed(code)) if mode == "embed" else "",
        "loader": Markup(loader),
        "cdn": {"src": src, "integrity": f"sha256-{_sha256(code)}"} if mode == "cdn" else None,
    }


@lru_cache(maxsize=1)
def _packed(code: str) -> str:
    return base64.b64encode(gzip.compress(code.encode(), 9, mtime=0)).decode()


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
