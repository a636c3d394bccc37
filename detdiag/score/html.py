"""The score as one offline HTML page, in the look of the diagnostic report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detdiag.errors import DetdiagError
from detdiag.report import html as page
from detdiag.report.messages import HTML_LANG, Say
from detdiag.report.safe import one_line, visible
from detdiag.report.views.figures import FigureView
from detdiag.score import findings, plots, tables, words

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).with_name("templates")
_REPORT_TEMPLATES: Final = Path(page.__file__).with_name("templates")
_STATUS: Final = {"reached": "clean", "missed": "attributed"}
_SYMBOL: Final = {"reached": "✓", "missed": "✗", "measured": "·", "undecided": "?"}


def render_html(score: Mapping[str, Any], *, lang: str = "en", plotly: str = "embed") -> str:
    """The page; ``plotly`` as in the diagnostic report: ``embed``, ``none`` or ``cdn``."""
    if plotly not in page.PLOTLY_MODES:
        known = "known: " + ", ".join(page.PLOTLY_MODES)
        raise DetdiagError(f"unknown plotly mode {plotly!r}", tip=known)
    say = words.speaker(lang)
    figures = figure_views(score, say, draw=plotly != "none")
    compared = compare_view(score, say, draw=plotly != "none")
    specs = [f.spec for f in (compared, *figures) if f is not None and f.spec is not None]
    made: str = (
        _environment()
        .get_template("score.html.jinja")
        .render(
            say=say,
            html_lang=HTML_LANG[lang],  # type: ignore[index]
            figures=figures,
            compared=compared,
            **_head(score, say),
            **_sections(score, say),
            **page.page_script(plotly if specs else "none", specs),
        )
    )
    return made


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined

    from detdiag.report.safe import looks_like_command

    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(_TEMPLATES), FileSystemLoader(_REPORT_TEMPLATES)]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["visible"] = page.marked
    environment.filters["visible_block"] = lambda value: page.marked(value, keep="\n\t")
    environment.tests["command"] = looks_like_command
    return environment


def _head(score: Mapping[str, Any], say: Say) -> dict[str, Any]:
    from markupsafe import Markup

    status = score["summary"]["status"]
    redact = score["method"].get("redact", "none")
    return {
        "css": Markup((_REPORT_TEMPLATES / "page.css").read_text("utf-8")),  # noqa: S704
        "version": visible(score["tool"]["version"]),
        "schema": score["schema"],
        "title": f"{say('status.' + status)} · detdiag score",
        "facts": facts(score, say),
        "redact": redact if redact in ("prompts", "all") else "none",
        "status": _STATUS.get(status, "inconclusive"),
        "symbol": _SYMBOL[status],
        "word": say(f"status.{status}"),
        "sentence": words.sentence(score, say),
        "rows": _rows(score, say),
        "command": visible(score["method"].get("command")),
    }


def facts(score: Mapping[str, Any], say: Say) -> list[tuple[str, str]]:
    """What the page's head says about the run."""
    target, method = score["target"], score["method"]
    wall = method.get("wall_s")
    found = [
        (say("header.target"), one_line(target.get("name"), 80)),
        (say("header.device"), one_line(target.get("device"), 30)),
        (say("header.dtype"), one_line(target.get("dtype"), 20)),
        (say("facts.prompts"), str(len(score["prompts"]))),
        (say("facts.runs"), str(words.runs(score))),
        (say("facts.conditions"), ", ".join(one_line(n, 40) for n in _conditions(score))),
        (say("facts.tokens"), "" if not method.get("tokens") else str(method["tokens"])),
        (say("facts.time"), "" if wall is None else f"{wall:.0f} s"),
        (say("facts.stopped"), one_line(method.get("stopped"), 60)),
    ]
    return [(name, value) for name, value in found if value]


def _conditions(score: Mapping[str, Any]) -> list[str]:
    return [row["condition"] for row in score["conditions"]]


def _rows(score: Mapping[str, Any], say: Say) -> list[tuple[str, str]]:
    left = "; ".join(f"{n}: {one_line(why, 120)}" for why, n in score["left_out"].items())
    cached = "; ".join(f"{n}: {one_line(why, 120)}" for why, n in score["cache"].items())
    found = [
        (say("row.bound"), words.bound_text(score, say)),
        (say("row.cached"), cached),
        (say("row.left_out"), left),
    ]
    return [(name, value) for name, value in found if value]


def figure_views(score: Mapping[str, Any], say: Say, draw: bool) -> list[FigureView]:
    """The three plots with their sentence and their table."""
    made = (
        ("prompts", plots.by_prompt, tables.prompts_table, findings.prompts_finding),
        ("conditions", plots.by_condition, tables.conditions_table, findings.conditions_finding),
        ("survival", plots.survival, None, findings.survival_finding),
    )
    out = []
    for name, plot, table, finding in made:
        figure = plot(score, say) if draw else None
        found = () if table is None else (table(score, say),)
        out.append(
            FigureView(
                id=name,
                title=say(f"{name}.title"),
                finding=finding(score, say),
                empty="",
                spec=None if figure is None else _spec(name, figure),
                tables=tuple(t for t in found if t),
                drawn=figure is not None,
            )
        )
    return [f for f in out if f.shown or f.finding]


def compare_view(score: Mapping[str, Any], say: Say, draw: bool) -> FigureView | None:
    """Before and after: what the test says, the figure and both tables."""
    lines = findings.compare_lines(score, say)
    if not lines:
        return None
    figure = plots.before_after(score, say) if draw else None
    return FigureView(
        id="compare",
        title=say("compare.title"),
        finding=" ".join(lines),
        empty="",
        spec=None if figure is None else _spec("compare", figure),
        tables=tuple(t for t in _compare_tables(score, say) if t),
        drawn=figure is not None,
    )


def _spec(name: str, figure: Any) -> dict[str, Any]:
    made = figure.to_plotly_json()
    return {"id": f"{name}-plot", "data": made["data"], "layout": made["layout"]}


def _sections(score: Mapping[str, Any], say: Say) -> dict[str, Any]:
    names = ["figures", "prompts", "conditions", "survival", "outputs", "limits", "method"]
    if score.get("compare"):
        names.insert(0, "compare")
    return {
        "toc": [(name, say(f"toc.{name}")) for name in names],
        "numbers_table": tables.figures_table(score, say),
        "outputs": [_pair(pair, say) for pair in score["outputs"]],
        "limits": words.limits(score, say),
        "method": [
            (say(f"method.{key}.name"), say(f"method.{key}"))
            for key in ("agreement", "bound", "interval", "tar", "fork", "similar")
        ],
    }


def _compare_tables(score: Mapping[str, Any], say: Say) -> list[tables.Table]:
    return [tables.compare_table(score, say), tables.paired_table(score, say)]


def _pair(pair: Mapping[str, Any], say: Say) -> dict[str, Any]:
    sides = []
    for key in ("a", "b"):
        side = pair[key]
        where = ", ".join(one_line(c, 40) for c in side["conditions"])
        sides.append(
            {
                "name": say("outputs.side", count=side["count"], conditions=where),
                "text": _forked(side["text"], pair["fork"], "del" if key == "a" else "ins", say),
            }
        )
    title = say("outputs.pair", query=one_line(pair["query"], 60), runs=pair["runs"])
    return {"title": title, "sides": sides}


LONGEST: Final = 2000
"""Characters of an output shown on each side of the fork."""


def _forked(text: str | None, fork: int | None, tag: str, say: Say) -> Any:
    """The text with its first differing character in brackets and marked."""
    from markupsafe import Markup

    if text is None:
        return say("outputs.no_text")
    if fork is None:
        return page.marked(text[:LONGEST], "\n")
    head = text[max(0, fork - LONGEST) : fork]
    here, rest = text[fork : fork + 1], text[fork + 1 : fork + LONGEST]
    middle = Markup(f"<{tag}>⟦{{}}⟧</{tag}>").format(page.marked(here) if here else "∅")
    return Markup('<span class="same">{}</span>{}{}').format(
        page.marked(head, "\n"), middle, page.marked(rest, "\n")
    )
