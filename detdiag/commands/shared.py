"""What several commands share: budgets, layer lists, and the way a case becomes an exit."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer

from detdiag.errors import DetdiagError, Exit
from detdiag.evidence.case import Case
from detdiag.layers import LAYERS

STATUS_EXIT: Final = {
    "clean": Exit.CLEAN,
    "attributed": Exit.ATTRIBUTED,
    "inconclusive": Exit.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where and how to show the report."""

    outputs: Sequence[Path]
    json: bool = False
    quiet: bool = False
    lang: str = "en"
    redact: str = "none"
    plotly: str = "embed"
    style: str | None = None


def parse_budget(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``3m`` or ``1.5h``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise DetdiagError(f"budget {text!r}: expected a time such as 90s, 3m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Batch sizes from ``1,2,8``; 1 is added as the reference."""
    try:
        sizes = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or sizes[-1] > 4096:
        raise DetdiagError(f"batch sizes {text!r}: expected whole numbers such as 1,2,4,8")
    return tuple(sorted({1, *sizes}))


def layer_list(text: str | None) -> tuple[str, ...] | None:
    """Layer names from a comma-separated list; unknown ones raise with a suggestion."""
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in LAYERS:
            close = difflib.get_close_matches(name, LAYERS, n=1)
            tip = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(LAYERS)}"
            raise DetdiagError(f"unknown layer {name!r}", tip=tip)
    return names


def finish(case: Case, record: Path | None = None, *, sinks: Sinks) -> None:
    """Decide, write every output, print the summary, and leave with the verdict's exit code."""
    from detdiag.report import write_outputs
    from detdiag.report.outputs import hide_record
    from detdiag.report.redact import redact as redact_report
    from detdiag.report.text import print_summary
    from detdiag.verdict import decide

    if record is not None:
        known = {**case.series.get("reproduce", {}), "command": case.method.get("command")}
        sha = hide_record(record, sinks.redact)
        case = replace(case, series={**case.series, "reproduce": {**known, "record_sha256": sha}})
    if "command" not in case.method:
        case = replace(case, method={**case.method, "command": command_line()})
    report = decide(case)
    shown = report.to_dict()
    outputs: list[Path] = list(sinks.outputs)
    if sinks.json:
        outputs.append(Path("-"))
    others = [p for p in outputs if record is None or p != record]
    written = write_outputs(
        shown,
        others,
        stdout_kind="json" if sinks.json else "text",
        lang=sinks.lang,
        redact=sinks.redact,
        plotly=sinks.plotly,
        style=sinks.style,
        record=record,
    )
    if not sinks.quiet:
        for path in [p for p, _ in written] + ([] if record is None else [record]):
            print(f"wrote {path}", file=sys.stderr)
    print_summary(redact_report(shown, sinks.redact), quiet=sinks.quiet, lang=sinks.lang)
    code = STATUS_EXIT[report.verdict.status]
    if report.verdict.status == "inconclusive" and _crashed(case):
        code = Exit.INTERNAL
    raise typer.Exit(int(code))


def command_line() -> str:
    """The command as the user may type it again."""
    return shlex.join(["detdiag", *sys.argv[1:]])


def public_command_line() -> str:
    """The command without the values of headers and without user information or query of URLs."""
    words, hide, url = ["detdiag"], False, False
    for word in sys.argv[1:]:
        name, sign, value = word.partition("=")
        if hide:
            words.append(re.split(r"[=:]", word, maxsplit=1)[0] + "=...")
        elif name == "--header" and sign:
            words.append(f"--header={re.split(r'[=:]', value, maxsplit=1)[0]}=...")
        elif url:
            words.append(_public_url(word))
        elif name == "--endpoint" and sign:
            words.append(f"--endpoint={_public_url(value)}")
        else:
            words.append(word)
        hide, url = not hide and word == "--header", not url and word == "--endpoint"
    return shlex.join(words)


def _public_url(url: str) -> str:
    return re.sub(r"(://)[^/@]*@", r"\1", url).split("?", 1)[0]


def _crashed(case: Case) -> bool:
    return any(p.state == "error" and p.layer in ("batch", "operator") for p in case.probes)
