"""The proof in three lines that a manager understands."""

from __future__ import annotations

from collections.abc import Sequence

from detdiag.trace.effects import Distance
from detdiag.trace.result import Effect, Source, Status

_PLAIN = {
    "aten.linear": "matrix products (aten.linear)",
    "aten.scaled_dot_product_attention": "attention",
    "aten.mean": "the mean of the norms",
}


def plain(op: str) -> str:
    """An operator in words."""
    return _PLAIN.get(op, op)


def batch_statement(
    status: Status,
    whole: Distance,
    sources: Sequence[Source],
    placebos: Sequence[Effect],
    where: str = "the batch",
) -> tuple[str, str, str]:
    """What differs; what makes it go away; what does not. ``where`` is the run of other shape."""
    if whole.bit_equal:
        text = f"alone and in {where}: every logit has the same bits"
        return (text, "nothing to intervene on", "no operator is named")
    head = (
        f"alone against {where}: logits differ by up to {whole.max_abs_logit:.4g} "
        f"({whole.tokens_flipped} tokens flip)"
    )
    if not sources:
        return (head, "no operator could be held responsible", "no operator is named")
    return (head, fixed_line(sources), placebo_line(placebos, status))


def fixed_line(sources: Sequence[Source]) -> str:
    parts = [f"{plain(s.op)} in {s.module or 'the model'}, {s.fix} ({_calls(s)})" for s in sources]
    last = sources[-1].after
    end = "bits agree"
    if not last.bit_equal:
        end = f"up to {last.max_abs_logit:.4g} is left"
    return f"{'; then '.join(parts)}: {end}"


def _calls(source: Source) -> str:
    return f"{source.calls} call{'s' if source.calls != 1 else ''}"


def placebo_line(placebos: Sequence[Effect], status: Status) -> str:
    if not placebos:
        return "no placebo was run"
    quiet = [p for p in placebos if not p.changed]
    loud = [p for p in placebos if p.changed]
    parts = []
    if quiet:
        names = ", ".join(f"{plain(p.target)} ({p.calls})" for p in quiet)
        parts.append(f"the same on {names} instead: no change")
    if loud:
        names = ", ".join(plain(p.target) for p in loud)
        parts.append(f"but {names} also changes the bits, so this is not the whole story")
    return "; ".join(parts)


def rerun_statement(
    differing: int,
    runs: int,
    sources: Sequence[Source],
    placebos: Sequence[Effect],
    trouble: str = "",
) -> tuple[str, str, str]:
    """The same for runs under identical conditions."""
    if differing == 0:
        head = f"0 of {runs} reruns differ from the first, to the bit"
        return (head, "nothing to intervene on", "no operator is named")
    head = f"{differing} of {runs} reruns differ from the first under identical conditions"
    if not sources:
        return (head, trouble or "no operator could be held responsible", "no operator is named")
    parts = [f"{plain(s.op)} in {s.module or 'the model'}: {s.fix}" for s in sources]
    left = sources[-1].after
    end = "the runs agree to the bit" if left.bit_equal else "some difference is left"
    quiet = [p for p in placebos if not p.remaining.bit_equal]
    loud = [p for p in placebos if p.remaining.bit_equal]
    last = "no placebo was run"
    if quiet:
        last = f"freezing {', '.join(plain(p.target) for p in quiet)} instead: they still differ"
    if loud:
        last = f"but freezing {', '.join(plain(p.target) for p in loud)} also made them agree"
    return (head, f"{'; then '.join(parts)}: {end}", last)
