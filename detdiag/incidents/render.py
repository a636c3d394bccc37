"""The incident report as JSON, Markdown and HTML. All take the report's dict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detdiag import __version__
from detdiag.errors import DetdiagError
from detdiag.incidents.association import MAX_GROUPS, MIN_GROUPS, MIN_REPEATS
from detdiag.incidents.model import CAVEAT
from detdiag.report.safe import dump_json, one_line, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_TEMPLATES: Final = Path(__file__).with_name("templates")
_CSS: Final = Path(__file__).parents[1] / "report" / "templates" / "page.css"
FORMATS: Final = {".json": "json", ".md": "md", ".html": "html", ".htm": "html"}
MAX_TEXT: Final = 4000


def render(report: Mapping[str, Any], suffix: str) -> str:
    """The report in the format of a file suffix; raise :class:`DetdiagError` for another one."""
    kind = FORMATS.get(suffix.lower())
    if kind is None:
        raise DetdiagError(
            f"unknown report format {suffix!r}", tip="known: " + ", ".join(sorted(FORMATS))
        )
    if kind == "json":
        return dump_json(report) + "\n"
    return render_markdown(report) if kind == "md" else render_html(report)


def next_steps(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """What would turn the association into a cause, with the command that measures it."""
    if not report["found"]:
        return [{"why": "Nothing differs: no step is needed.", "command": ""}]
    associated = [t for t in report["factors"] if t["outcome"] == "associated"]
    layers = {t["layer"] for t in associated}
    live = "detdiag run --endpoint URL --request request.json"
    steps = [
        {
            "why": "Send one of these requests again, idle and under load, cold and warm, and let "
            "each condition vary alone.",
            "command": live,
        }
    ]
    if "version" in layers:
        steps.insert(
            0,
            {
                "why": "Pin the replicas that the answer goes with, one at a time, and repeat.",
                "command": "detdiag run --endpoint URL_A --endpoint URL_B --request request.json",
            },
        )
    return steps


def render_markdown(report: Mapping[str, Any]) -> str:
    """Short enough for a chat or an issue: the sentence, the tests, one line an incident."""
    lines = [f"# {_md(report['sentence'])}", "", CAVEAT, ""]
    if report["factors"]:
        lines += ["| condition | layer | requests | records | p (Holm) | result |"]
        lines += ["|---|---|---:|---:|---:|---|"]
        for t in report["factors"]:
            names = " = ".join([t["factor"], *t["same_as"]])
            row = (names, t["layer"], t["groups"], t["records"], _p(t["p_holm"]))
            lines.append("| " + " | ".join(map(str, row)) + f" | {t['outcome']}: {t['note']} |")
        lines.append("")
    if report["incidents"]:
        lines += ["| # | off | records | answers | request | attribution |"]
        lines += ["|---:|---:|---:|---:|---|---|"]
    for i in report["incidents"]:
        asked = _md(one_line(i["prompt"], 90))
        lines.append(
            f"| {i['rank']} | {i['deviating']} | {i['records']} | {i['distinct']} | {asked} "
            f"| {_md(i['attribution'])} |"
        )
    lines += ["", *_md_files(report), ""]
    return "\n".join(lines)


def _md_files(report: Mapping[str, Any]) -> list[str]:
    out = []
    for f in report["files"]:
        parts = [f"{f['records']:,} records", f"{f['broken_count']:,} broken lines"]
        parts += [f"{count} left out: {_md(why)}" for why, count in f["left_out"].items()]
        out.append(f"- {_md(f['path'])} ({f['format']}): {'; '.join(parts)}")
        if f["broken"]:
            shown = ", ".join(str(line) for line, _ in f["broken"][:20])
            out.append(f"  - broken lines: {shown}")
    return out


def _md(value: Any) -> str:
    """Hostile text in a table cell: nothing of it is markup."""
    text = visible(value)
    for char in "\\`*_[]<>|#":
        text = text.replace(char, "\\" + char)
    return text


def _p(value: float | None) -> str:
    return "not tested" if value is None else f"{value:.2g}"


def render_html(report: Mapping[str, Any]) -> str:
    """One offline file without scripts, in the look of the diagnostic report."""
    from markupsafe import Markup

    found = bool(report["found"])
    compared = bool(report["repeated"])
    headline = f"{report['found']} incidents" if found else "no incidents"
    return (
        _environment()
        .get_template("incidents.html.jinja")
        .render(
            report=report,
            css=Markup(_CSS.read_text("utf-8")),  # noqa: S704
            version=__version__,
            schema=report["schema"],
            headline=headline,
            status="attributed" if found else "clean" if compared else "inconclusive",
            word="✗ Incidents found"
            if found
            else "✓ No difference"
            if compared
            else "? No repeats",
            caveat=CAVEAT,
            next=next_steps(report),
            notices=_notices(report),
            facts=_facts(report),
            redact=report.get("redact", "none"),
            min_groups=MIN_GROUPS,
            min_repeats=MIN_REPEATS,
            max_groups=MAX_GROUPS,
        )
    )


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = ("records", "requests", "repeated", "found")
    shown = ("Records", "Distinct requests", "Repeated", "Incidents")
    return [(s, f"{report[n]:,}") for s, n in zip(shown, names, strict=True)]


def _notices(report: Mapping[str, Any]) -> list[str]:
    broken = sum(f["broken_count"] for f in report["files"])
    out = [f"Broken lines skipped: {broken:,}. They are listed below."] if broken else []
    out += [f"{f['path']}: stopped early: {f['damage']}" for f in report["files"] if f["damage"]]
    return out


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from detdiag.report.html import marked

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["visible"] = marked
    environment.filters["p"] = _p
    environment.filters["when"] = _when
    environment.filters["variant"] = _variant
    environment.filters["request"] = _request
    return environment


def _when(value: float) -> str:
    try:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return str(value)


def _variant(variant: Mapping[str, Any]) -> Markup:
    """The answer with the character marked at which it leaves the usual one."""
    from markupsafe import Markup

    from detdiag.report.html import marked

    text, fork = variant["text"], variant["fork"]
    if fork is None:
        return marked(_cut(text), "\n\t")
    start = max(0, fork - MAX_TEXT // 2)
    lead = "…" if start else ""
    here = text[fork : fork + 1] or "⏎ ends here"
    return Markup("{}{}<span class='fork'>{}</span>{}").format(
        lead,
        marked(text[start:fork], "\n\t"),
        marked(here, "\t"),
        marked(_cut(text[fork + 1 :]), "\n\t"),
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT} more)"


def _request(value: Any) -> Markup:
    from detdiag.report.html import marked

    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return marked(_cut(shown), "\n")
