"""One scoring from its options to its exit code. torch is loaded for a local model only."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError, Exit
from detdiag.score.answers import parser_for
from detdiag.score.evidence import Evidence, load_evidence
from detdiag.score.plan import Plan, Watch, parse_conditions
from detdiag.score.progress import Progress
from detdiag.score.sample import query_of
from detdiag.score.score import Question, score
from detdiag.score.write import check_outputs, write_all

EXITS: Final = {
    "reached": Exit.CLEAN,
    "measured": Exit.CLEAN,
    "missed": Exit.ATTRIBUTED,
    "undecided": Exit.INCONCLUSIVE,
}
DEMO_PROMPTS: Final = 3
DEMO_TOKENS: Final = 6
TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Job:
    """The options of ``detdiag score`` as given."""

    question: Question
    runs: int = 200
    conditions: str | None = None
    max_new_tokens: int | None = None
    prompt: tuple[str, ...] = ()
    prompts: Path | None = None
    answer_regex: str | None = None
    answer_json: str | None = None
    answer_last_number: bool = False
    compare: Path | None = None
    budget_s: float | None = None
    outputs: tuple[Path, ...] = ()
    seed: int = 0
    plotly: str = "embed"
    lang: str = "en"
    redact: str = "none"
    json: bool = False
    quiet: bool = False
    command: str = ""
    concurrency: int = 8
    dtype: str | None = None
    device: str | None = None
    attn: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    generate_kwargs: Path | None = None
    request: Path | None = None
    api_key_env: str | None = None
    header: tuple[str, ...] = ()
    max_requests: int | None = None
    rps: float | None = None
    timeout_s: float = 60.0

    def check(self) -> None:
        """Refuse what cannot be done before anything is loaded or measured."""
        from detdiag.report.messages import speaker
        from detdiag.report.redact import LEVELS

        check_outputs(self.outputs)
        speaker(self.lang)
        parser_for(self.answer_regex, self.answer_json, self.answer_last_number)
        if self.redact not in LEVELS:
            raise DetdiagError(f"unknown level {self.redact!r}", tip="known: " + ", ".join(LEVELS))
        if self.plotly not in ("embed", "none", "cdn"):
            raise DetdiagError(f"unknown plotly mode {self.plotly!r}", tip="embed, none or cdn")
        if self.prompt and self.prompts:
            raise DetdiagError("give --prompt or --prompts, not both")
        if self.compare is not None and not self.compare.exists():
            raise DetdiagError("no such record to compare with", path=self.compare)

    def given_prompts(self) -> Any:
        """Prompts of the options; None where none are named."""
        from detdiag.targets.prompts import load_prompts, text_prompts

        if self.prompts is not None:
            return load_prompts(self.prompts)
        return text_prompts(self.prompt) if self.prompt else None


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
    from detdiag.score.local import LocalRuns, one_thread, target_facts
    from detdiag.score.rounds import shares_calls
    from detdiag.targets.local import load_local

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
        with one_thread() if name is not None else nullcontext():
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


def finish(job: Job, seen: Evidence, method: Mapping[str, Any], record: Path | None) -> Exit:
    """Score, compare, write every output, print the summary; the exit code of the status."""
    from detdiag.report.redact import redact
    from detdiag.score.text import print_summary
    from detdiag.score.words import with_words

    made = _scored(job, seen, {**method, "command": job.command, "redact": job.redact})
    if job.compare is not None:
        made["compare"] = _compared(job, load_evidence(job.compare), seen)
    shown = redact(with_words(made), job.redact)
    others = [p for p in job.outputs if p != record or job.redact != "none"]
    written = write_all(
        shown,
        others,
        record,
        json_=job.json,
        lang=job.lang,
        plotly=job.plotly,
        redact=job.redact,
    )
    if not job.quiet:
        for path in dict.fromkeys([*written, *([record] if record else [])]):
            print(f"wrote {path}", file=sys.stderr)
    print_summary(shown, quiet=job.quiet, lang=job.lang)
    return EXITS[made["summary"]["status"]]


def _compared(job: Job, before: Evidence, after: Evidence) -> dict[str, Any]:
    """Only over the prompts that both have: a mean over other prompts is another number."""
    from detdiag.score.compare import compare, other_inputs

    groups = (before.observations, after.observations)
    names = [{query_of(one) for one in group} for group in groups]
    both = names[0] & names[1]
    old, new = ([o for o in group if query_of(o) in both] for group in groups)
    scores = [_scored(job, Evidence(group), {}) for group in (old, new)]
    return {**compare(scores[0], scores[1], job.seed), "other_ids": other_inputs(old, new)}


def _scored(job: Job, seen: Evidence, method: Mapping[str, Any]) -> dict[str, Any]:
    from detdiag.score.sample import sample_of

    parser, answer = parser_for(job.answer_regex, job.answer_json, job.answer_last_number)
    sample = sample_of(seen.observations)
    sample = replace(
        sample,
        cached={**sample.cached, **seen.cached},
        left_out={**sample.left_out, **seen.left_out},
    )
    return score(
        sample,
        job.question,
        parser=parser,
        answer=answer,
        target=seen.target,
        method=method,
        seed=job.seed,
    )


def _json_object(path: Path) -> dict[str, Any]:
    from detdiag.engine.case_folder import read_json

    value = read_json(path)
    if not isinstance(value, dict):
        raise DetdiagError("expected a JSON object of keyword arguments", path=path)
    return value
