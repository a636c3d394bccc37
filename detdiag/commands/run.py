"""``detdiag run``: diagnose a case folder, the embedded models, a local model or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from detdiag.errors import DetdiagError

OUTPUT_HELP = "Write the report; the extension picks html, json, md, sarif, xml, txt or ndjson."


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("run", help="Diagnose: which layer makes the output change?")(run)


def run(
    case: Annotated[Path | None, typer.Option(help="Folder of recorded evidence.")] = None,
    evidence: Annotated[
        list[Path] | None, typer.Option(help="One log or export of another tool (repeatable).")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Diagnose the embedded models.")] = False,
    demo_fault: Annotated[
        str | None, typer.Option(help="Plant a known fault in the demo ('list' shows them).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or hub id.")] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="OpenAI-compatible server (repeatable: replicas of it)."),
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="Model name for --endpoint.")] = None,
    request: Annotated[
        Path | None, typer.Option(help="Request body (JSON) to start from; --endpoint.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key; --endpoint.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE header (repeatable); --endpoint.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests at most (600); --endpoint.")
    ] = None,
    rps: Annotated[
        float | None, typer.Option(min=0.01, help="Requests a second at most; --endpoint.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for one reply; --endpoint.")
    ] = 60.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, send nothing; --endpoint.")
    ] = False,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt (repeatable).")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts: text, one a line, or JSONL with messages.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    attn: Annotated[str | None, typer.Option(help="eager, sdpa, flash_attention_2 ...")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the model folder's own code.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Hub revision.")] = None,
    generate_kwargs: Annotated[
        Path | None, typer.Option(help="JSON: keyword arguments of your generate call.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 32,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to compare.")] = "1,2,4,8",
    repeats: Annotated[int, typer.Option(min=2, help="Identical runs of the control.")] = 20,
    baseline: Annotated[
        Path | None, typer.Option(help="Fingerprint (or record) of the signed-off model.")
    ] = None,
    surface: Annotated[str | None, typer.Option(help="Surface of files that do not say.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Engine version for rules.")] = None,
    factor_layer: Annotated[
        list[str] | None, typer.Option(help="Place a factor: NAME=LAYER (repeatable).")
    ] = None,
    output: Annotated[list[Path] | None, typer.Option("-o", "--output", help=OUTPUT_HELP)] = None,
    only: Annotated[str | None, typer.Option(help="Layers to walk, comma separated.")] = None,
    skip: Annotated[str | None, typer.Option(help="Layers to leave out.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Wall time of the walk: 90s, 1h (3m; the demo 40s).")
    ] = None,
    verify_remedies: Annotated[
        bool,
        typer.Option(
            "--verify-remedies",
            help="Try each remedy in a fresh process and measure again (--model, --demo). "
            "A --budget is shared half and half with the walk; without one they get 3m.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the walk.")] = 0,
    resume: Annotated[Path | None, typer.Option(help="Continue this record.")] = None,
    plotly: Annotated[str, typer.Option(help="embed, none or cdn.")] = "embed",
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    style: Annotated[str | None, typer.Option(help="postmortem or checklist (.md).")] = None,
    redact: Annotated[str, typer.Option(help="none, prompts or all.")] = "none",
    json_: Annotated[bool, typer.Option("--json", help="JSON report on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the verdict line.")] = False,
) -> None:
    """Diagnose one target and exit 0 clean, 1 attributed, 4 inconclusive."""
    from detdiag.commands.shared import (
        Sinks,
        command_line,
        finish,
        layer_list,
        parse_budget,
        public_command_line,
    )
    from detdiag.report import check_outputs

    wanted = demo or demo_fault is not None
    targets = [case or evidence, wanted, model, endpoint]
    if sum(bool(t) for t in targets) != 1:
        raise DetdiagError("name exactly one of --case/--evidence, --demo, --model and --endpoint")
    if dry_run and not endpoint:
        raise DetdiagError("--dry-run goes with --endpoint")
    outputs = list(output or [])
    check_outputs(outputs)
    sinks = Sinks(outputs, json_, quiet, lang, redact, plotly, style)
    if verify_remedies and not (wanted or model):
        raise DetdiagError(
            "--verify-remedies needs a model that can be run again, and this is recorded evidence",
            tip="detdiag run --model DIR --verify-remedies; the report lists remedies unmeasured",
        )
    if case or evidence:
        recorded = _recorded(case, evidence or [], surface, engine_version, factor_layer or [])
        finish(recorded, sinks=sinks)
        return
    if endpoint:
        from detdiag.commands.endpoint import EndpointOptions, diagnose_endpoint, print_plan

        asked = EndpointOptions(
            endpoint=tuple(endpoint), model_name=model_name, prompt=tuple(prompt or ()),
            prompts=prompts, request=request, api_key_env=api_key_env, header=tuple(header or ()),
            max_requests=max_requests, rps=rps, budget_s=parse_budget(budget or "3m"),
            timeout_s=timeout, max_new_tokens=max_new_tokens, repeats=repeats, baseline=baseline,
            resume=resume, only=layer_list(only), skip=layer_list(skip), seed=seed,
            outputs=tuple(outputs), quiet=quiet, command=public_command_line(),
        )  # fmt: skip
        if dry_run:
            print_plan(asked)
            return
        finish(*diagnose_endpoint(asked), sinks=sinks)
        return
    from detdiag.commands.live import LiveOptions, demo_faults, diagnose_demo, diagnose_model

    if demo_fault == "list":
        for line in demo_faults():
            print(line)
        return
    default = "40s" if wanted else "3m"
    walk_s = parse_budget(budget or default) / (2 if budget and verify_remedies else 1)
    options = LiveOptions(
        model=model, prompt=tuple(prompt or ()), prompts=prompts, dtype=dtype, device=device,
        attn=attn, trust_remote_code=trust_remote_code, revision=revision,
        generate_kwargs=generate_kwargs, max_new_tokens=max_new_tokens, batch_sizes=batch_sizes,
        repeats=repeats, baseline=baseline, only=layer_list(only), skip=layer_list(skip),
        budget_s=walk_s, verify_s=(walk_s if budget else 180.0) * verify_remedies,
        seed=seed, resume=resume, outputs=tuple(outputs),
        quiet=quiet, demo_fault=demo_fault, command=command_line(),
    )  # fmt: skip
    finish(*(diagnose_demo(options) if wanted else diagnose_model(options)), sinks=sinks)


def _recorded(
    case: Path | None,
    evidence: list[Path],
    surface: str | None,
    engine_version: str | None,
    factor_layer: list[str],
) -> Any:
    from detdiag.engine.case_folder import load_case, load_evidence

    layers = {}
    for text in factor_layer:
        name, sign, layer = text.partition("=")
        if not sign:
            raise DetdiagError(f"--factor-layer {text!r}: expected NAME=LAYER")
        layers[name] = layer
    if case is None:
        return load_evidence(evidence, layers)
    return load_case(
        case,
        surface=surface,
        engine_version=engine_version,
        factor_layers=layers,
        extra=evidence,
    )
