"""The batch layer's findings: rule, place, size of the difference, and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.probes._compare import interval95
from detdiag.probes.conditions import Condition
from detdiag.probes.interface import ProbeContext
from detdiag.probes.modules import Birth, Comparison
from detdiag.probes.places import moe_part
from detdiag.probes.runs import Reference
from detdiag.probes.stabiliser import Source
from detdiag.probes.trials import PADDING, Trials, harmless_padding, tried

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


def contrast_finding(
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
