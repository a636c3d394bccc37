"""Inside the child: serve rows under one remedy and compare what the contrast compares."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from detdiag.remedies.verify.arms import RUNS
from detdiag.remedies.verify.serving import Serving, Tally
from detdiag.remedies.verify.wraps import WRAPS, facts_of
from detdiag.targets.local import LocalTarget


def measure(target: LocalTarget, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job's contrast on ``target`` under its remedy.

    The answer holds the counts of :class:`Tally`, ``tokens_per_s``, ``cut`` (the deadline came
    first), ``facts`` and ``reference``: hex digests of what each prompt gives on its own.
    """
    tally = Tally()
    contrast = job["contrast"]
    deadline = time.monotonic() + float(job.get("limit_s") or 1e9)
    serving = Serving(target, job, tally)
    facts = facts_of(target)
    with contextlib.ExitStack() as stack:
        for name in job.get("wraps") or ():
            stack.enter_context(WRAPS[name](target.model, job))
        work = RUNS[contrast["kind"]](serving, contrast, tally)
        cut, reference = _until(deadline, work)
    return {
        "k": tally.k, "n": tally.n, "control_k": tally.control_k, "control_n": tally.control_n,
        "flips": tally.flips, "positions": tally.positions,
        "texts": tally.texts, "texts_n": tally.texts_n,
        "max_abs_logit": tally.max_abs_logit, "max_ulp": tally.max_ulp, "pairs": tally.pairs,
        "tokens_per_s": tally.tokens / tally.seconds if tally.seconds else None,
        "cut": cut, "facts": facts, "reference": reference,
    }  # fmt: skip


def _until(deadline: float, work: Iterator[str | None]) -> tuple[bool, list[str]]:
    """Drive ``work`` to its end or the deadline; what it yields are reference digests."""
    reference: list[str] = []
    for step in work:
        if step is not None:
            reference.append(step)
        if time.monotonic() > deadline:
            return next(work, "end") != "end", reference
    return False, reference
