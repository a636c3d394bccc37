"""``detdiag check``: the pre-release gate. GO, NO-GO or INCONCLUSIVE, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detdiag.errors import DetdiagError, Exit

if TYPE_CHECKING:
    from detdiag.evidence.case import Case
    from detdiag.gate.settings import Settings

OUTPUT_HELP = (
    "Write FILE; the extension picks html, json, md, txt, sarif, xml (JUnit), codequality.json "
    "or ndjson. Repeatable; - is stdout."
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("check", help="Release gate: GO, NO-GO or INCONCLUSIVE, with the reasons.")(check)


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Files and folders to audit.", show_default=False),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="quick (files only), pr (short run) or release.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or hub id.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server.")
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="Model name at the endpoint.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key; --endpoint.")
    ] = None,
    case: Annotated[Path | None, typer.Option(help="Folder of recorded evidence.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Check the healthy embedded model.")] = False,
    demo_fault: Annotated[
        str | None, typer.Option(help="Plant a known fault ('list' shows them).")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Signed-off fingerprint, report or record.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings (default: detdiag.toml, [tool.detdiag]).")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Weakest difference that fails: text, token or bitwise.")
    ] = None,
    bound: Annotated[
        float | None, typer.Option(help="Rate of change that the runs must exclude, as 0.05.")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Confidence of the bound.")] = None,
    runs: Annotated[int | None, typer.Option(help="Identical runs.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts: text, one a line, or JSONL with messages.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Wall time of the walk: 90s, 3m.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and where it came from.")
    ] = False,
    output: Annotated[
        list[Path] | None, typer.Option("-o", "--output", metavar="FILE", help=OUTPUT_HELP)
    ] = None,
    plotly: Annotated[str, typer.Option(help="Figures in HTML: embed, none or cdn.")] = "embed",
    lang: Annotated[str | None, typer.Option(help="en or zh.")] = None,
    redact: Annotated[str | None, typer.Option(help="none, prompts or all.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON report on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the decision line.")] = False,
) -> None:
    """Exit 0 GO, 1 NO-GO, 4 INCONCLUSIVE, 3 where a required layer crashed."""
    if demo_fault == "list":
        from detdiag.commands.live import demo_faults

        print("\n".join(demo_faults()))
        return
    fault = (demo_fault or "none") if demo or demo_fault else None
    given = {
        "profile": profile, "paths": [str(p) for p in paths] if paths else None, "model": model,
        "endpoint": endpoint, "model-name": model_name, "api-key-env": api_key_env,
        "case": case, "baseline": baseline,
        "fail-on": fail_on, "bound": bound, "confidence": confidence, "runs": runs,
        "prompts": prompts, "budget": budget, "lang": lang, "redact": redact,
    }  # fmt: skip
    settings = _settings(given, config, fault)
    if print_config:
        _print_config(settings, json_)
        return
    outputs = list(output or [])
    _check_targets(settings, fault)
    from detdiag.report import check_outputs

    check_outputs(outputs)
    case_, record = _gather(settings, fault, outputs, quiet)
    raise typer.Exit(int(_finish(case_, record, settings, outputs, plotly, json_, quiet)))


def _settings(given: Mapping[str, Any], config: Path | None, fault: str | None) -> Settings:
    from detdiag.gate.settings import FileSettings, find_file, read_file, resolve

    path = config or find_file(Path.cwd())
    if config is not None and not config.is_file():
        raise DetdiagError("no such settings file", path=config)
    file = FileSettings() if path is None else read_file(path)
    said = {k: str(v) if isinstance(v, Path) else v for k, v in given.items() if v is not None}
    return resolve(said, file, demo=fault is not None)


def _print_config(settings: Settings, as_json: bool) -> None:
    from detdiag.gate.show import settings_json, settings_lines

    print(settings_json(settings) if as_json else "\n".join(settings_lines(settings)))


def _check_targets(settings: Settings, fault: str | None) -> None:
    named = [key for key in ("model", "endpoint", "case") if settings.get(key)]
    named += ["demo"] if fault is not None else []
    if len(named) > 1:
        raise DetdiagError(f"name one target, not {len(named)}: {', '.join(named)}")
    quick = settings.get("profile") == "quick"
    if quick and (settings.get("endpoint") or settings.get("case") or fault is not None):
        raise DetdiagError(
            "the quick profile judges files and model folders only",
            tip="use --profile pr for an endpoint, a case or the demo",
        )
    if quick and not (settings.get("paths") or settings.get("model")):
        raise DetdiagError("nothing to check", tip="name files or folders, or --model DIR")
    if not quick and not named:
        raise DetdiagError(
            f"profile {settings.get('profile')} needs a target",
            tip="name --model, --endpoint, --case or --demo, or use --profile quick",
        )
    if settings.get("endpoint") and not (settings.get("model-name") or settings.get("request")):
        raise DetdiagError("--endpoint needs --model-name, the name of the model there")


def _gather(
    settings: Settings, fault: str | None, outputs: list[Path], quiet: bool
) -> tuple[Case, Path | None]:
    from detdiag.commands import gate_evidence
    from detdiag.commands.shared import public_command_line
    from detdiag.gate import static

    if settings.get("profile") == "quick":
        found = static.static_evidence(settings, gate_evidence.baseline_of(settings))
        return static.static_case(found, settings, public_command_line()), None
    return gate_evidence.measured(settings, fault, outputs, quiet, public_command_line())


def _finish(
    case: Case,
    record: Path | None,
    settings: Settings,
    outputs: list[Path],
    plotly: str,
    as_json: bool,
    quiet: bool,
) -> Exit:
    import datetime

    from detdiag.gate import publish
    from detdiag.gate.baseline import read_earlier
    from detdiag.gate.judge import judge
    from detdiag.gate.required import required_layers
    from detdiag.verdict import decide

    live = settings.get("profile") != "quick"
    gate, report = judge(
        decide(case).to_dict(),
        settings,
        today=datetime.date.today(),
        required=required_layers(settings, case),
        live=live,
        earlier=read_earlier(settings.get("baseline")),
    )
    publish.publish(
        report,
        publish.Sinks(
            tuple(outputs),
            settings.get("lang"),
            settings.get("redact"),
            plotly,
            as_json,
            quiet,
            record,
        ),
    )
    return publish.exit_code(gate)
