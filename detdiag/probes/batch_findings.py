"""What the batch contrasts of one prompt mean: rule, place and size of the difference."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.record import Event
from detdiag.probes._compare import difference, interval95
from detdiag.probes.conditions import BASE, Condition
from detdiag.probes.figures import heatmap
from detdiag.probes.freeze import pins
from detdiag.probes.interface import ProbeContext
from detdiag.probes.modules import Birth, Comparison, ModuleLog, compare_logs
from detdiag.probes.places import is_gemm, moe_part
from detdiag.probes.proof import (
    batch_proof,
    conclusive,
    proof_findings,
    proof_tables,
    with_operator,
)
from detdiag.probes.repeatability import Source
from detdiag.probes.runs import Reference, bench
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded

if TYPE_CHECKING:
    from detdiag.probes.batch import Trials

FACTOR_ORDER: Final = ("batch_size", "row", "neighbours", "padded_length", "padding_side")

_TEXT: Final = {
    "batch_size": "the same row gets other logits in a batch of another size",
    "row": "identical rows of one batch get unequal logits",
    "neighbours": "a row's logits change with the text of its neighbours, at one shape",
    "padded_length": "a row's logits change with the padding before it",
    "padding_side": "a row's logits change with the side on which it is padded",
}
_REMEDY: Final = {
    "batch_size": Remedy(
        "serve this traffic at one fixed batch size, or with batch-invariant kernels",
        command="detdiag run --model MODEL --batch-sizes 1",
        cost="throughput: one request at a time, or slower kernels",
        verify="detdiag run --model MODEL --only batch",
    ),
    "neighbours": Remedy(
        "compute scales and statistics per row (or statically), not over the whole batch",
        cost="none to small: one scale per row instead of one per tensor",
        verify="detdiag run --model MODEL --only batch",
    ),
    "padded_length": Remedy(
        "pad on the left with attention mask and position ids, or do not pad",
        verify="detdiag run --model MODEL --only batch",
    ),
}


def findings(
    context: ProbeContext, trials: Trials, left: list[str], factors: Sequence[str]
) -> Iterator[Event]:
    """One mechanism finding per factor whose contrast changes bits, and a first heatmap."""
    drawn = bool(context.scratch.get("heatmap"))
    for factor in factors:
        cases = changed_cases(trials, factor)
        if not cases:
            continue
        condition, against, row = cases[0]
        if factor == "batch_size" and not _stabiliser(trials).sources:
            context.scratch.setdefault("batch_case", condition)
        tokens = condition.tokens + trials.conditions[against].tokens
        if context.remaining_s() < bench(context).clock.forward_s(2, tokens):
            left.append(f"module of the {factor} difference")
            yield _finding(context, trials, factor, cases, None, None)
            continue
        logs = tuple(_log(context, trials, c, r) for c, r in _arms(trials, condition, against, row))
        compared = compare_logs(*logs, skip=tuple(_stabiliser(trials).pinned))
        birth = _named(compared)
        if birth is not None and birth.beyond_rounding:
            trials.distorting.add(factor)
        tokens_alone = (
            factor == "batch_size"
            and birth is not None
            and follows_tokens(context, trials, condition, birth, logs[0])
        )
        finding = _finding(context, trials, factor, cases, birth, compared, tokens_alone)
        if birth is not None and finding.mechanism:
            finding = _pinned(context, trials, finding, birth, cases[0], logs[0])
        if factor == "batch_size" and not _stabiliser(trials).sources:
            drawn = yield from _proved(context, trials, condition, finding, left)
        else:
            yield finding
        if not drawn:
            drawn = context.scratch["heatmap"] = True
            yield ("heatmap", heatmap(context.target, trials.ref, compared))


def _pinned(
    context: ProbeContext,
    trials: Trials,
    finding: Finding,
    birth: Birth,
    case: tuple[Condition, str, int],
    clean: ModuleLog,
) -> Finding:
    """The finding as proven if this one module's output, pinned, makes the bits agree again."""
    condition, against, row = case
    stabiliser = _stabiliser(trials)
    held = {**stabiliser.pinned, **pins(clean, [birth.path])}
    rows = tuple(i for i, r in enumerate(condition.rows) if r == trials.ref.row)
    run = replace(stabiliser, pinned=held).run(
        _pad(context.target, condition), trials.ref.start, (row,), pin_rows=rows
    )[0]
    wanted = trials.first(against, trials.conditions[against].tested[0])
    if wanted is None or run.digests != wanted.digests:
        return finding
    proof = Evidence(f"runs that differ with the output of {birth.path} pinned", 0, 1, "runs")
    return replace(finding, proven=True, evidence=(*finding.evidence, proof))


def _proved(
    context: ProbeContext,
    trials: Trials,
    condition: Condition,
    finding: Finding,
    left: list[str],
) -> Generator[Event, None, bool]:
    """The finding, sharpened by the operator proof; returns whether that drew the heatmap.

    The proof's sources stand in for the module-level finding where interventions bear them out.
    """
    proof = batch_proof(context, trials.ref, condition, left)
    if proof is None:
        yield finding
        return False
    if conclusive(proof):
        yield from (_with_counts(f, finding) for f in proof_findings(proof, trials.ref))
    else:
        yield with_operator(finding, proof)
    yield from proof_tables(proof, trials.ref)
    context.scratch["heatmap"] = proof.heatmap is not None
    return proof.heatmap is not None


def _with_counts(proved: Finding, measured: Finding) -> Finding:
    """A source of the proof with the counts of the contrast that it explains, and the finer of
    the two rules: only a longer row tells tokens per launch from batch size."""
    same = measured.locus is not None and proved.locus is not None
    same = same and measured.locus.module == proved.locus.module  # type: ignore[union-attr]
    finer = same and (proved.rule, measured.rule) == ("batch.size-sensitive", "batch.token-count")
    return replace(
        proved,
        rule=measured.rule if finer else proved.rule,
        summary=f"{measured.summary}; {proved.summary}",
        evidence=measured.evidence + proved.evidence,
        subject=measured.subject,
    )


def _stabiliser(trials: Trials) -> Any:
    assert trials.stabiliser is not None
    return trials.stabiliser


def changed_cases(trials: Trials, factor: str) -> list[tuple[Condition, str, int]]:
    """(condition, condition it is compared with, row) where ``factor`` alone changes bits.

    For ``row`` both are the same condition: the last row against the first.
    """
    out = []
    for condition in trials.conditions.values():
        if factor == "row" and len(condition.tested) > 1:
            last = condition.tested[-1]
            changed = trials.contrast(condition.name, condition.name, last)
            if changed is not None and not changed.bit_equal:
                out.append((condition, condition.name, last))
        for name, against in condition.contrasts:
            if name != factor:
                continue
            changed = trials.contrast(condition.name, against)
            if changed is not None and not changed.bit_equal:
                out.append((condition, against, condition.tested[0]))
    return out


PADDING: Final = ("padded_length", "padding_side")


def harmless_padding(trials: Trials) -> bool:
    """Does padding only move logits by rounding, and flip nothing?

    Positions that shift with padding, a change beyond rounding, or neighbours that matter in a
    padded batch are not harmless. Neither is padding that was not measured.
    """
    if "batch.padding-positions" in trials.rules.values() or trials.distorting & set(PADDING):
        return False
    for condition in trials.conditions.values():
        if condition.padded_length == len(trials.ref.row):
            continue
        for factor, against in condition.contrasts:
            changed = trials.contrast(condition.name, against)
            if changed is None or (factor == "neighbours" and not changed.bit_equal):
                return False
            if factor in PADDING and changed.flips:
                return False
    return True


def tried(trials: Trials, factor: str) -> int:
    """Contrasts of ``factor`` that were measured."""
    rows = sum(len(c.tested) > 1 for c in trials.conditions.values()) if factor == "row" else 0
    return rows + sum(
        name == factor and trials.contrast(c.name, against) is not None
        for c in trials.conditions.values()
        for name, against in c.contrasts
    )


def _arms(
    trials: Trials, condition: Condition, against: str, row: int
) -> tuple[tuple[Condition, int], tuple[Condition, int]]:
    first = trials.conditions[against]
    return (first, first.tested[0]), (condition, row)


def _log(context: ProbeContext, trials: Trials, condition: Condition, row: int) -> ModuleLog:
    batch = _pad(context.target, condition)
    pins = tuple(i for i, r in enumerate(condition.rows) if r == trials.ref.row)
    log: ModuleLog = _stabiliser(trials).log(batch, row, pin_rows=pins)
    return log


def _pad(target: LocalTarget, condition: Condition) -> Padded:
    return target.pad(
        condition.rows,
        padding_side=condition.padding_side,
        padded_length=condition.padded_length,
    )


def _named(compared: Comparison) -> Birth | None:
    """The first module beyond rounding if there is one, else the first at all."""
    births = compared.births
    return next((b for b in births if b.beyond_rounding), births[0] if births else None)


def _finding(
    context: ProbeContext,
    trials: Trials,
    factor: str,
    cases: Sequence[tuple[Condition, str, int]],
    birth: Birth | None,
    compared: Comparison | None,
    tokens_alone: bool = False,
) -> Finding:
    rule, detail = _rule(factor, birth, compared)
    if tokens_alone:
        rule = "batch.token-count"
        detail += "; one longer row of as many tokens moves that module too"
    trials.rules[factor] = rule
    harmless = factor in PADDING and harmless_padding(trials)
    condition, against, row = cases[0]
    changes = [trials.contrast(c.name, a, r) for c, a, r in cases]
    largest = max((d.max_abs for d in changes if d), default=0.0)
    flips = max((d.flips for d in changes if d), default=0)
    n = tried(trials, factor)
    in_moe = birth is not None and moe_part(context.target.model, birth.path)
    owned_by_moe = bool(in_moe and birth is not None and birth.beyond_rounding)
    place = "" if birth is None else f"; first in {birth.path} ({birth.cls})"
    return Finding(
        layer="batch",
        rule=rule,
        outcome="passed" if harmless else "failed",
        severity="low" if harmless else "medium" if flips == 0 else "high",
        subject=factor,
        summary=(
            f"{_TEXT[factor]}: up to {largest:.3g} in logits, {flips} of "
            f"{len(trials.ref.continuation)} arg-max tokens flip{detail}{place}"
        ),
        evidence=(
            Evidence(
                f"{factor} changes bits",
                len(cases),
                n,
                "contrasts",
                interval95(len(cases), n),
                (against, condition.name if factor != "row" else f"{condition.name}, row {row}"),
            ),
            Evidence("control: repeats that differ", 0, _control_pairs(trials), "pairs"),
        ),
        remedy=_REMEDY.get(factor, _REMEDY["batch_size"]),
        locus=None
        if birth is None
        else Locus(query=trials.ref.prompt.id, token=birth.token, module=birth.path),
        mechanism=not owned_by_moe and not harmless,
        explains=() if harmless else (factor, *(("in_flight_tokens",) if tokens_alone else ())),
        data={} if birth is None else _birth_data(birth, compared),
    )


def _control_pairs(trials: Trials) -> int:
    return sum(len(runs) - 1 for runs in trials.runs.values())


def _birth_data(birth: Birth, compared: Comparison | None) -> dict[str, Any]:
    births = () if compared is None else compared.births
    return {
        "born_modules": [
            {"module": b.path, "token": b.token, "rms_units": round(b.rms_units, 3)}
            for b in births[:40]
        ],
        "born_count": len(births),
        "beyond_rounding": birth.beyond_rounding,
        "unaligned_modules": 0 if compared is None else compared.unaligned,
    }


def _rule(factor: str, birth: Birth | None, compared: Comparison | None) -> tuple[str, str]:
    """(rule, words that go into the summary)."""
    far = birth is not None and birth.beyond_rounding
    words = ", far above rounding" if far else ""
    if factor == "neighbours":
        return ("batch.shared-scale" if far else "batch.neighbour-content"), words
    if factor in {"padded_length", "padding_side"}:
        shifted = None if compared is None else _shifted_positions(compared)
        if shifted is not None:
            module, first, then = shifted
            return "batch.padding-positions", (
                f"; real tokens are at positions {first}.. without padding and {then}.. with it "
                f"(seen at {module})"
            )
        return ("batch.padding-positions" if far else "batch.padding-sensitive"), words
    if factor == "row":
        return "batch.row-position", words
    return "batch.size-sensitive", words


def _shifted_positions(compared: Comparison) -> tuple[str, int, int] | None:
    for module, _, a, b in compared.integer_inputs:
        steps = {y - x for x, y in zip(a, b, strict=False)}
        if len(a) == len(b) and len(steps) == 1 and steps != {0}:
            return module, a[0], b[0]
    return None


def follows_tokens(
    context: ProbeContext, trials: Trials, condition: Condition, birth: Birth, solo: ModuleLog
) -> bool:
    """Does one row with as many tokens as the batch move the same module, at equal inputs?

    The model is causal, so a row's first tokens may not depend on what follows them. If they do,
    tokens per launch is the factor, not the batch size. A matrix multiplication is left out: its
    shape is the token count, in a batch or not, and that is what batch size means to it.
    """
    target, ref = context.target, trials.ref
    limit = getattr(target.model.config, "max_position_embeddings", None)
    if is_gemm(target.model, birth.path) or (limit is not None and condition.tokens > limit):
        return False
    if context.remaining_s() < bench(context).clock.forward_s(2, condition.tokens):
        return False
    long = target.pad([ref.row * len(condition.rows)])
    log = _stabiliser(trials).log(_only_first(long, len(ref.row)), 0, pin_rows=(0,))
    births = compare_logs(solo, log, skip=tuple(_stabiliser(trials).pinned)).births
    return any(b.path == birth.path for b in births)


def _only_first(batch: Padded, tokens: int) -> Padded:
    """``batch`` with only the first ``tokens`` of its row looked at (all of them are run)."""
    return replace(batch, lengths=(tokens,))


def sweep_rows(trials: Trials) -> list[dict[str, Any]]:
    """The sweep table: every condition of the prompt against its solo run."""
    out = []
    for name, condition in trials.conditions.items():
        for row in condition.tested:
            run = trials.first(name, row)
            if name == BASE or run is None:
                continue
            d = difference(trials.base.logits, run.logits)
            out.append(
                {
                    "query": trials.ref.prompt.id,
                    "condition": name,
                    "batch_size": len(condition.rows),
                    "row": row,
                    "padding_side": condition.padding_side,
                    "padded_length": condition.padded_length,
                    "neighbours": condition.neighbours,
                    "max_abs_logit": d.max_abs,
                    "max_ulp": d.max_ulp,
                    "bit_equal": d.bit_equal,
                    "flips": d.flips,
                    "first_flip": d.flipped[0] if d.flipped else None,
                    "n": d.positions,
                }
            )
    return out


def state_findings(sources: Sequence[Source], ref: Reference) -> Iterator[Finding]:
    for source in sources:
        if source.kind == "state":
            yield state_finding(source, ref, ("repeat", "order"))


def state_finding(source: Source, ref: Reference, explains: tuple[str, ...]) -> Finding:
    """``batch.state-carried``: same history, same bits; another history, other bits."""
    held = f" (changed by a call: {', '.join(source.what[:3])})" if source.what else ""
    return Finding(
        layer="batch",
        rule="batch.state-carried",
        outcome="failed",
        severity="high",
        subject="order",
        summary=(
            "the result depends on the calls made before: two fresh copies with the same history "
            f"agree call by call, while {source.k} of {source.n} later calls differ from the "
            f"first{held}"
        ),
        evidence=(
            Evidence("later calls that differ", source.k, source.n, "calls",
                     interval95(source.k, source.n)),
            Evidence("calls on a fresh copy that differ", source.k_fixed, source.n_fixed, "calls",
                     interval95(source.k_fixed, source.n_fixed)),
        ),
        remedy=Remedy(
            "reset that state before each request, or do not keep it",
            verify="detdiag run --model MODEL --only batch,operator",
        ),
        locus=Locus(
            query=ref.prompt.id,
            token=source.token,
            module=source.modules[0] if source.modules else None,
        ),
        mechanism=True,
        explains=explains,
        proven=source.proven,
        data={"state": list(source.what[:20])},
    )  # fmt: skip


def free_finding(ref: Reference, size: int, birth: Birth, k: int, n: int) -> Finding:
    """A batch difference that only ``generate``'s own shapes show, with its module."""
    return Finding(
        layer="batch",
        rule="batch.size-sensitive",
        outcome="failed",
        severity="high",
        subject="batch_size",
        summary=(
            f"generate on {size} copies gives other logits than alone, while whole-sequence "
            f"forwards agree: first in {birth.path} ({birth.cls}) at token {birth.token}"
        ),
        evidence=(
            Evidence("free-running batches that differ", k, n, "batch sizes", interval95(k, n)),
        ),
        remedy=_REMEDY["batch_size"],
        locus=Locus(query=ref.prompt.id, token=birth.token, module=birth.path),
        mechanism=True,
        explains=("batch_size", "row"),
        data=_birth_data(birth, None),
    )
