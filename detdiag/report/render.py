"""``render(report, kind)``: one report dict, every format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.errors import DetdiagError

KINDS: Final = (
    "html",
    "json",
    "md",
    "sarif",
    "junit",
    "codequality",
    "text",
    "github-annotation",
    "github-summary",
)


def render(
    report: Mapping[str, Any],
    kind: str,
    *,
    lang: str = "en",
    redact: str = "none",
    plotly: str = "embed",
    style: str | None = None,
) -> str:
    """The report in one format, as text to be stored in UTF-8.

    ``kind`` is one of :data:`KINDS`; ``style`` is ``report``, ``postmortem``, ``checklist`` or
    ``github`` (Markdown only). Redaction happens before anything is rendered.
    """
    if redact != "none":
        from detdiag.report.redact import redact as hide

        report = hide(report, redact)
    text = _render(report, kind, lang, plotly, style)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _render(report: Mapping[str, Any], kind: str, lang: str, plotly: str, style: str | None) -> str:
    if kind == "html":
        from detdiag.report.html import render_html

        return render_html(report, lang=lang, plotly=plotly)
    if kind == "json":
        from detdiag.report.json_report import render_json

        return render_json(report)
    if kind == "md":
        from detdiag.report.markdown import render_markdown

        return render_markdown(report, lang=lang, style=style)
    if kind == "text":
        from detdiag.report.text import render_text

        return render_text(report, lang=lang)
    return _render_ci(report, kind, lang)


def _render_ci(report: Mapping[str, Any], kind: str, lang: str) -> str:
    if kind == "sarif":
        from detdiag.report.sarif import render_sarif

        return render_sarif(report)
    if kind == "junit":
        from detdiag.report.junit import render_junit

        return render_junit(report)
    if kind == "codequality":
        from detdiag.report.codequality import render_codequality

        return render_codequality(report)
    if kind == "github-annotation":
        from detdiag.report.github import render_annotation

        return render_annotation(report)
    if kind == "github-summary":
        from detdiag.report.github import render_step_summary

        return render_step_summary(report, lang=lang)
    raise DetdiagError(f"unknown report format {kind!r}", tip="known formats: " + ", ".join(KINDS))
