"""One scoring from its options to its exit code. torch is loaded for a local model only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError, Exit
from detdiag.score.answers import parser_for
from detdiag.score.evidence import Evidence, load_evidence
from detdiag.score.gate import Question
from detdiag.score.sample import query_of
from detdiag.score.score import score
from detdiag.score.write import check_outputs, write_all

EXITS: Final = {
    "reached": Exit.CLEAN,
    "measured": Exit.CLEAN,
    "missed": Exit.ATTRIBUTED,
    "undecided": Exit.INCONCLUSIVE,
}


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


def finish(job: Job, seen: Evidence, method: Mapping[str, Any], record: Path | None) -> Exit:
    """Score, compare, write every output, print the summary; the exit code of the status."""
    from detdiag.report.outputs import hide_record
    from detdiag.report.redact import redact
    from detdiag.score.text import print_summary
    from detdiag.score.words import with_words

    made = _scored(job, seen, {**method, "command": job.command, "redact": job.redact})
    if job.compare is not None:
        made["compare"] = _compared(job, load_evidence(job.compare), seen)
    shown = redact(with_words(made), job.redact)
    others = [p for p in job.outputs if p != record]
    if record is not None:
        hide_record(record, job.redact)
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
