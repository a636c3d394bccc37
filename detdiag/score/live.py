"""Make the runs that a job asks for. torch is loaded for a local model only."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.score.evidence import Evidence, load_evidence
from detdiag.score.job import Job
from detdiag.score.plan import Plan, Watch, parse_conditions
from detdiag.score.progress import Progress

DEMO_PROMPTS: Final = 3
DEMO_TOKENS: Final = 6
TOKENS: Final = 32


Made = tuple[Evidence, dict[str, Any], Path | None]
"""What was observed, how, and the record it is in (None: recorded elsewhere)."""


def score_case(job: Job, path: Path) -> Made:
    """Score what was recorded."""
    return load_evidence(path), {"stopped": "recorded evidence"}, None


def score_model(job: Job, model: str) -> Made:
    """Run a local model and score it."""
    kwargs = _json_object(job.generate_kwargs) if job.generate_kwargs else {}
    return _score_local(job, model, job.given_prompts(), kwargs, name=None)


def score_demo(job: Job, fault: str) -> Made:
    """Plant the fault (``none``: the healthy control) and score the embedded model."""
    import difflib

    from detdiag.demo import FAULTS

    if fault not in FAULTS:
        close = difflib.get_close_matches(fault, FAULTS, n=1)
        tip = f"did you mean {close[0]!r}?" if close else "--demo-fault list shows them"
        raise DetdiagError(f"unknown demo fault {fault!r}", tip=tip)
    with tempfile.TemporaryDirectory(prefix="detdiag-demo-") as work:
        planted = FAULTS[fault].apply(Path(work))
        job = replace(
            job,
            dtype=job.dtype or planted.dtype,
            trust_remote_code=job.trust_remote_code or planted.trust_remote_code,
            max_new_tokens=job.max_new_tokens or DEMO_TOKENS,
        )
        prompts = job.given_prompts() or planted.prompts[:DEMO_PROMPTS]
        path = str(planted.model_dir)
        return _score_local(job, path, prompts, planted.generate_kwargs, name=planted.name)


def _score_local(
    job: Job, model: str, prompts: Any, kwargs: Mapping[str, Any], name: str | None
) -> Made:
    from detdiag.score.local import LocalRuns, target_facts
    from detdiag.score.rounds import shares_calls
    from detdiag.targets.local import load_local
    from detdiag.trace.toggles import thread_count

    conditions = parse_conditions(job.conditions, ("solo", "batch"))
    target = load_local(
        model,
        dtype=job.dtype,
        device=job.device,
        attn=job.attn,
        trust_remote_code=job.trust_remote_code,
        revision=job.revision,
        prompts=prompts,
        generate_kwargs=kwargs,
        serve=name,
    )
    if name is not None:
        target.name = f"demo ({name})"
    plan = Plan(
        prompts=len(target.prompts),
        runs=job.runs,
        conditions=conditions,
        max_new_tokens=job.max_new_tokens or TOKENS,
        question=job.question,
        merged=shares_calls(len(target.prompts), conditions),
        budget_s=job.budget_s,
    )

    def go(record: Any, watch: Watch, progress: Progress) -> dict[str, Any]:
        runs = LocalRuns(target, plan, record, watch, progress)
        # Sharing out operators as small as the embedded model's takes longer than running them.
        with thread_count(1) if name is not None else nullcontext():
            runs.go(_teller(job))
        return {"stopped": runs.stopped, "tokens": runs.tokens}

    return recorded(job, plan, target_facts(target), go)


def score_endpoint(job: Job, url: str, model: str | None) -> Made:
    """Ask a server and score its replies."""
    from detdiag.commands.endpoint import parse_headers
    from detdiag.score.endpoint import EndpointRuns, check_concurrency, target_facts
    from detdiag.score.rounds import copies_in_burst, shares_calls
    from detdiag.targets.endpoint import Limits, open_target, wire
    from detdiag.targets.prompts import default_prompts

    conditions = parse_conditions(job.conditions, ("solo", "load"))
    check_concurrency(job.concurrency)
    template = _template(job.request)
    name = model or template.get("model")
    if not isinstance(name, str) or not name:
        raise DetdiagError("--endpoint needs --model-name (or a model in the file of --request)")
    own = wire.prompt_of_template(template)
    prompts = tuple(job.given_prompts() or ((own,) if own else default_prompts()))
    target = open_target(
        url,
        name,
        template=template,
        headers=parse_headers(job.header),
        api_key_env=job.api_key_env,
        limits=Limits(job.max_requests, job.rps),
        timeout_s=job.timeout_s,
    )
    loaded = "load" in conditions
    plan = Plan(
        prompts=len(prompts),
        runs=job.runs,
        conditions=conditions,
        max_new_tokens=wire.length_of_template(template) or job.max_new_tokens or TOKENS,
        question=job.question,
        merged=shares_calls(len(prompts), conditions),
        budget_s=job.budget_s,
        copies=copies_in_burst(len(prompts), job.concurrency, job.runs, len(conditions))
        if loaded
        else 1,
    )

    def go(record: Any, watch: Watch, progress: Progress) -> dict[str, Any]:
        runs = EndpointRuns(target, prompts, plan, job.concurrency, record, watch, progress)
        runs.go(_teller(job))
        return runs.facts()

    return recorded(job, plan, target_facts(target, len(prompts)), go)


def _template(path: Path | None) -> dict[str, Any]:
    from detdiag.targets.endpoint import wire

    if path is None:
        return {"temperature": 0}
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error
    return wire.read_template(raw, str(path))


def recorded(job: Job, plan: Plan, target: Mapping[str, Any], go: Any) -> Made:
    """Make the runs with a record that is kept whatever happens."""
    import shlex

    from detdiag.engine.record_path import default_record
    from detdiag.evidence.record import RecordWriter

    path = default_record(job.outputs)
    watch, progress = Watch(plan.question), Progress(job.quiet)
    method = {
        "conditions": ", ".join(plan.conditions),
        "runs_asked": plan.runs,
        "max_new_tokens": plan.max_new_tokens,
        "command": job.command,
    }
    began = time.monotonic()
    try:
        with RecordWriter(path, {"target": dict(target), "method": method}) as record:
            ended = go(record, watch, progress)
    except KeyboardInterrupt:
        progress.close()
        kept = shlex.quote(str(path))
        print(f"kept {kept}; score it with: detdiag score --case {kept}", file=sys.stderr)
        raise
    finally:
        progress.close()
    method |= {**ended, "wall_s": round(time.monotonic() - began, 1)}
    return Evidence(watch.observations, dict(target)), method, path


def _teller(job: Job) -> Any:
    return (lambda line: None) if job.quiet else (lambda line: print(line, file=sys.stderr))


def _json_object(path: Path) -> dict[str, Any]:
    from detdiag.engine.case_folder import read_json

    value = read_json(path)
    if not isinstance(value, dict):
        raise DetdiagError("expected a JSON object of keyword arguments", path=path)
    return value
