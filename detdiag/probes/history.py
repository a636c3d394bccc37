"""What ran before: other requests in between, and whether a result remembers them."""

from __future__ import annotations

from detdiag.probes import rng
from detdiag.probes.conditions import noise_row
from detdiag.probes.interface import ProbeContext
from detdiag.probes.repeatability import state_place
from detdiag.probes.runs import Reference, bench, run_padded
from detdiag.probes.stabiliser import Source, Stabiliser
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded


def other_rows(context: ProbeContext, ref: Reference) -> list[tuple[int, ...]]:
    """Rows of the other prompts that start otherwise; the row reversed where there are none."""
    rows = [context.target.encode(p) for p in context.target.prompts if p.id != ref.prompt.id]
    return [r for r in rows if r[:4] != ref.row[:4]] or [tuple(reversed(ref.row))]


NOISE_TOKENS = 12


def in_between(context: ProbeContext, ref: Reference) -> list[Padded]:
    """Requests of another text, another length and wilder content, batched if that is asked for."""
    target, plan = context.target, context.plan
    texts = other_rows(context, ref)[:2]
    known = [r.row for r in bench(context).references.values() if r.prompt.id != ref.prompt.id]
    rows = [*texts, texts[0][: max(1, len(texts[0]) // 2)], *known]
    count = min(8, max(4, *plan.batch_sizes))
    tokens = min(len(ref.row), NOISE_TOKENS)
    noise = [noise_row(tokens, _vocab(target), plan.seed + i) for i in range(count)]
    wild = [noise] if max(plan.batch_sizes, default=1) > 1 else [[row] for row in noise[:4]]
    return [target.pad(batch) for batch in [*([row] for row in rows), *wild]]


def _vocab(target: LocalTarget) -> int:
    return int(target.model.get_output_embeddings().weight.shape[0])


def replays_agree(target: LocalTarget, batch: Padded, others: list[Padded], start: int) -> bool:
    """Two fresh copies live through the same calls: same bits in both, and a change inside?"""
    seen = []
    for _ in range(2):
        model = target.fresh_model()
        if model is None:
            return False
        with rng.preserved():
            rng.seed_all(0)
            first = run_padded(target, batch, start, model=model)[0]
            for other in others:
                target.forward_padded(other, model=model)
            rng.seed_all(0)
            seen.append((first.digests, run_padded(target, batch, start, model=model)[0].digests))
    return seen[0] == seen[1] and seen[0][0] != seen[0][1]


def carried(
    stabiliser: Stabiliser, ref: Reference, batch: Padded, others: list[Padded], n: int
) -> Source | None:
    """The state that ``others`` leave behind, if it is state; then ``stabiliser`` runs fresh."""
    if not replays_agree(stabiliser.target, batch, others, ref.start):
        return None
    birth, what = state_place(stabiliser, batch, 0, between=others)
    modules = (birth.path,) if birth else tuple(w.rsplit(".", 1)[0] for w in what[:1])
    token = birth.token if birth else None
    source = Source("state", modules, token, n, n, 0, 2, tuple(what), birth, True)
    stabiliser.sources.append(source)
    stabiliser.fresh = True
    return source
