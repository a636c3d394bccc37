"""What a contrast that flips amounts to: its rule, whether it may be blamed, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from detdiag.evidence.finding import Evidence, Finding
from detdiag.verdict.contrasts import Contrast
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.stats import ALPHA, WEAK_ALPHA, wilson
from detdiag.verdict.table import Bundle, Table

_RULES: Final[dict[str, str]] = {
    "batch_size": "batch.size-sensitive",
    "concurrency": "batch.load-sensitive",
    "in_flight_tokens": "batch.load-sensitive",
    "neighbours": "batch.neighbour-content",
    "row": "batch.row-position",
    "padding_side": "batch.padding-sensitive",
    "padded_length": "batch.padding-sensitive",
    "cached_tokens": "batch.prefix-reuse",
    "prefix_cache": "batch.prefix-reuse",
    "order": "batch.state-carried",
    "process": "operator.per-process",
    "sampler": "decode.sampler-path",
    "tie_break": "decode.exact-tie",
    "neighbour_params": "decode.neighbour-parameters",
    "router_dtype": "moe.router-precision",
    "expert_capacity": "moe.capacity-drop",
    "prompt_digest": "input.bytes-differ",
    "prompt_token_ids": "input.token-ids-differ",
}


def rule_of(bundle: Bundle, table: Table) -> str:
    """The dotted rule that a flipping bundle stands for."""
    if bundle.layer == "input" and bundle.factors[0] in table.mediators.get("prompt_token_ids", ()):
        return "input.token-ids-differ"
    for factor in bundle.factors:
        if factor == "neighbours" and "dynamic" in str(
            table.constant.get("activation_quantisation", "")
        ):
            return "batch.shared-scale"
        if factor in _RULES:
            return _RULES[factor]
    return f"{bundle.layer}.{bundle.factors[0].replace('_', '-')}-changes-output"


def shown(found: Contrast) -> bool:
    """Is this contrast strong enough to be blamed?

    Bytes or token ids that differ are visible in themselves, so an input contrast needs only
    controls that repeat; any other needs Holm-adjusted p at or below WEAK_ALPHA, or ALPHA where
    its own control fails.
    """
    if not found.k:
        return False
    visible = found.bundle.layer == "input" and found.mode == "location"
    if visible and found.control_n and not found.control_k:
        return True
    return found.p_holm <= (ALPHA if found.control_k else WEAK_ALPHA)


def one_off(found: Contrast) -> bool:
    """A stray answer under a label that occurs once: chance alone puts it there once in as many
    runs as there are, and a log has many labels. One run cannot show that its arm repeats."""
    return found.bundle.layer != "input" and found.smallest_arm < 2 and found.p_holm > ALPHA


def confidence_of(found: Contrast) -> Confidence:
    """ "confirmed": both arms repeat and the change goes with the factor alone; "likely" where a
    control is noisy; "suspected" between ALPHA and WEAK_ALPHA."""
    if found.p_holm > ALPHA and found.bundle.layer != "input":
        return "suspected"
    if found.mode == "location" and found.control_k:
        return "likely"
    return "confirmed" if found.control_n and found.p_holm <= ALPHA else "likely"


def contrast_finding(found: Contrast, table: Table) -> Finding:
    """The failed finding of a contrast that flips."""
    names = found.bundle.label
    flipped, compared = found.queries
    where = f"{flipped} of {compared} prompts" if compared > 1 else f"{found.k} of {found.n} pairs"
    if found.mode == "location":
        text = f"{where} change with {names} alone ({found.k} of {found.n} matched pairs)"
    elif found.mode == "repeatability":
        text = (
            f"repeats differ in {found.k} of {found.n} runs under {names} "
            f"{_arms(found.noisy_arms)} and in 0 of {found.control_n} under "
            f"{_arms(found.quiet_arms)}"
        )
    else:
        text = (
            f"{found.k} of {found.n} runs leave the answer that {names} {_arms(found.quiet_arms)} "
            f"gives in {found.control_n - found.control_k} of {found.control_n}"
        )
    control = (
        f"; control: {found.control_k} of {found.control_n} repeats differ"
        if found.mode == "location"
        else ""
    )
    size = "" if found.max_nat is None else f"; largest change {found.max_nat:.3g} nat"
    return Finding(
        layer=found.bundle.layer,  # type: ignore[arg-type]
        rule=rule_of(found.bundle, table),
        outcome="failed",
        severity="high",
        subject=found.bundle.factors[0],
        summary=text + control + size,
        evidence=contrast_evidence(found),
    )


def _arms(arms: Sequence[str]) -> str:
    shown_arms = " / ".join(arm.replace('"', "") for arm in arms[:4])
    return shown_arms + (" ..." if len(arms) > 4 else "")


def contrast_evidence(found: Contrast) -> tuple[Evidence, ...]:
    unit = "matched pairs" if found.mode == "location" else "runs"
    rows = [
        Evidence(
            f"outcome changes with {found.bundle.label}", found.k, found.n, unit,
            wilson(found.k, found.n), tuple(a[:80] for a in found.arms[:8]),
        ),
        Evidence(
            "control: identical conditions differ", found.control_k, found.control_n, "pairs",
            wilson(found.control_k, found.control_n),
        ),
        Evidence(f"p ({found.mode}, Holm)", float(f"{found.p_holm:.3g}")),
    ]  # fmt: skip
    return tuple(rows)
