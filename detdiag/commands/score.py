"""``detdiag score``: how repeatable is it? Figures, a bound, and a target to hold them to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detdiag.errors import DetdiagError


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("score", help="How repeatable is it? Score many runs of a model or of records.")(
        score
    )


def score(
    model: Annotated[str | None, typer.Option(help="Model folder or hub id.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of an OpenAI-style server.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Model to ask the endpoint for.")] = None,
    case: Annotated[
        Path | None, typer.Option(help="Case folder, record (.ndjson) or log to score.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Score the embedded model.")] = False,
    demo_fault: Annotated[
        str | None, typer.Option(help="Plant a known fault in the demo ('list' shows them).")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt (repeatable).")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts: text, one a line, or JSONL with messages.")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Runs of each prompt under each condition.")
    ] = 200,
    target: Annotated[
        float | None, typer.Option(help="Pairwise agreement to reach, such as 0.99.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    conditions: Annotated[
        str | None, typer.Option(help="solo,batch (local) or solo,load (endpoint).")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to generate (32; the demo 6).")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=2, help="Requests in a burst of load.")] = 8,
    answer_regex: Annotated[
        str | None, typer.Option(help="Answer: first group (or match) of this expression.")
    ] = None,
    answer_json: Annotated[
        str | None, typer.Option(help="Answer: this path into JSON output, such as $.answer.")
    ] = None,
    answer_last_number: Annotated[
        bool, typer.Option("--answer-last-number", help="Answer: the last number.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="Earlier record to compare with (before a fix).")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Wall time of the runs: 90s, 1h.")] = None,
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
        int | None, typer.Option(min=1, help="Requests at most; --endpoint.")
    ] = None,
    rps: Annotated[
        float | None, typer.Option(min=0.01, help="Requests a second at most; --endpoint.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for one reply; --endpoint.")
    ] = 60.0,
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="Write html, json, md, txt or ndjson (repeatable)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of resampling (runs are never seeded).")] = 0,
    plotly: Annotated[str, typer.Option(help="embed, none or cdn.")] = "embed",
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    redact: Annotated[str, typer.Option(help="none, prompts or all.")] = "none",
    json_: Annotated[bool, typer.Option("--json", help="JSON score on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the last line.")] = False,
) -> None:
    """Exit 0: target reached (or none given), 1: missed, 4: undecided."""
    from detdiag.commands.shared import command_line, parse_budget
    from detdiag.score.job import Job, finish
    from detdiag.score.live import score_case, score_demo, score_endpoint, score_model
    from detdiag.score.plan import parse_question

    wanted = demo or demo_fault is not None
    if sum(map(bool, (model, endpoint, case, wanted))) != 1:
        raise DetdiagError("name exactly one of --model, --endpoint, --case and --demo")
    job = Job(
        question=parse_question(target, confidence), runs=runs, conditions=conditions,
        max_new_tokens=max_new_tokens, prompt=tuple(prompt or ()), prompts=prompts,
        answer_regex=answer_regex, answer_json=answer_json, answer_last_number=answer_last_number,
        compare=compare, budget_s=None if budget is None else parse_budget(budget),
        outputs=tuple(output or ()), seed=seed, plotly=plotly, lang=lang, redact=redact,
        json=json_, quiet=quiet, command=command_line(), concurrency=concurrency,
        dtype=dtype, device=device, attn=attn, trust_remote_code=trust_remote_code,
        revision=revision, generate_kwargs=generate_kwargs, request=request,
        api_key_env=api_key_env, header=tuple(header or ()), max_requests=max_requests, rps=rps,
        timeout_s=timeout,
    )  # fmt: skip
    job.check()
    if case is not None:
        made = score_case(job, case)
    elif endpoint is not None:
        made = score_endpoint(job, endpoint, model_name)
    elif model is not None:
        made = score_model(job, model)
    else:
        if demo_fault == "list":
            from detdiag.commands.live import demo_faults

            print("\n".join(demo_faults()))
            return
        made = score_demo(job, demo_fault or "none")
    raise typer.Exit(int(finish(job, *made)))
