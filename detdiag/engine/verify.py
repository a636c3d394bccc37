"""After a walk: measure the remedies of its verdict, each in a fresh process, into the record."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any

from detdiag.engine.live import LiveRun
from detdiag.evidence.case import Case
from detdiag.evidence.record import RecordWriter, read_record
from detdiag.remedies.verify.contrast import Contrast, kind_for, prompts_of, reason_against

SERIES = "remedies"


def verify_remedies(run: LiveRun, case: Case, budget_s: float) -> Case:
    """Try the remedies of ``case``'s verdict for ``budget_s`` wall seconds at most.

    The table goes to the record as series ``remedies`` even when the walk is interrupted; the case
    returned is the record read again. The walked model is given up first, to make room.
    """
    table: dict[str, Any] = {"trials": [], "skipped": []}
    try:
        _fill(table, run, case, budget_s, _teller(run.quiet))
    finally:
        with RecordWriter(run.record_path, {}, append=True) as record:
            record.write((SERIES, table))
    return read_record(run.record_path)


def _fill(
    table: dict[str, Any],
    run: LiveRun,
    case: Case,
    budget_s: float,
    tell: Callable[[str], None],
) -> None:
    from detdiag.remedies.verify.run import Plan, verify
    from detdiag.verdict import decide

    verdict = decide(case).verdict
    table |= {"rule": verdict.rule, "budget_s": round(budget_s, 1)}
    if verdict.layer is None or verdict.rule is None:
        table["note"] = "no layer was attributed, so there is no remedy to verify"
        tell(table["note"])
        return
    first = verdict.first_divergence
    kind = kind_for(verdict.rule, _factors(case, verdict.rule))
    prompts = prompts_of(case.observations, first.query if first is not None else None)
    requests = tuple(str(p) for p in run.scratch.get("requests", ()))  # type: ignore[attr-defined]
    if kind is None or not (prompts or kind == "input"):
        table["note"] = f"not measured: {reason_against(verdict.layer)}"
        tell(table["note"])
        return
    target = run.target
    plan = Plan(
        verdict.rule,
        Contrast(
            kind,
            tuple(prompts),
            sizes=_sizes(run.plan.batch_sizes),
            new_tokens=min(run.plan.max_new_tokens, 16),
            requests=requests,
        ),
        target.load_args,
        [{"id": p.id, "text": p.text, "messages": p.messages} for p in target.prompts],
        target.generate_kwargs,
        _modules(case, verdict.to_dict()),
        _threads(),
    )
    release(target)
    verify(plan, budget_s, table=table, tell=tell)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def release(target: Any) -> None:
    """Forget the model in this process, so that a child finds the accelerator free."""
    import torch

    target.model = None
    target._pristine = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest and the largest batch of the walk."""
    batches = sorted(n for n in set(sizes) if n > 1)
    return (batches[0], batches[-1]) if len(batches) > 1 else tuple(batches) or (2,)


def _factors(case: Case, rule: str) -> tuple[str, ...]:
    return tuple(name for f in case.findings if f.rule == rule for name in f.explains)


def _modules(case: Case, verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules that the operator proof or the first divergence names, but for the model itself."""
    proof = case.series.get("proof")
    sources = proof.get("sources", ()) if isinstance(proof, Mapping) else ()
    found = [s.get("module") for s in sources if isinstance(s, Mapping)]
    found.append((verdict.get("first_divergence") or {}).get("module"))
    return tuple(dict.fromkeys(m for m in found if m))


def _teller(quiet: bool) -> Callable[[str], None]:
    if quiet:
        return lambda line: None
    return lambda line: print(f"remedy    {line}", file=sys.stderr, flush=True)
