"""Why do identical conditions not repeat? Random draws, carried state, or a race; in that order.

The three are told apart by intervention, each one fixed before the next is looked for:

* *draws*: a generator moves during the forward. Fixed by seeding before every run.
* *state*: two fresh copies of the model that live through the same calls give the same bits call
  by call, although the calls differ among themselves. Fixed by a fresh copy for every run.
* *race*: what still differs on fresh, seeded copies. Fixed by pinning the module's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from detdiag.probes import freeze, rng
from detdiag.probes.modules import Birth, compare_logs
from detdiag.probes.runs import run_padded
from detdiag.probes.stabiliser import Source, Stabiliser, recorded
from detdiag.probes.state import changed_state
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded


def explain(
    target: LocalTarget,
    batch: Padded,
    start: int,
    row: int,
    k: int,
    n: int,
    *,
    tries: int = 8,
    time_left: Callable[[], float] = lambda: 1e9,
) -> Stabiliser:
    """Find the sources of ``k`` differing reruns of ``n``, fixing each before the next."""
    out = Stabiliser(target)
    _draws(out, batch, start, row, k, n, tries)
    for _ in range(6):
        if time_left() <= 0 or not _still_differs(out, batch, start, row, tries):
            break
        if not _state(out, batch, start, row, tries) and not _race(out, batch, start, row, tries):
            break
    for source in [s for s in out.sources if s.kind == "race"]:
        if len(out.sources) > 1:
            _race_or_state(out, source, batch, start, row, tries)
    if len(out.sources) > 1:
        _one_by_one(out, batch, start, row, tries)
    return out


def _race_or_state(
    out: Stabiliser, source: Source, batch: Padded, start: int, row: int, tries: int
) -> None:
    """What looked like a race beside another source may be state once that one is pinned."""
    alone = replace(_without(out, source), sources=[])
    if _state(alone, batch, start, row, tries):
        index = out.sources.index(source)
        out.sources[index : index + 1] = alone.sources
        out.fresh, out.pinned = True, alone.pinned


def _one_by_one(out: Stabiliser, batch: Padded, start: int, row: int, tries: int) -> None:
    """With several sources: take each fix away alone; it must differ again, and repeat with all."""
    k_all, n_all = _reruns(out, batch, start, row, tries, stop=False)
    sources = []
    for source in out.sources:
        k, n = _taken_away(out, source, batch, start, row, tries)
        sources.append(replace(source, k=k, n=n, k_fixed=k_all, n_fixed=n_all))
    out.sources = sources


def _taken_away(
    out: Stabiliser, source: Source, batch: Padded, start: int, row: int, tries: int
) -> tuple[int, int]:
    """Reruns with every fix but this one; state shows on one copy that starts fresh."""
    if source.kind == "state":
        digests = _history(out, batch, start, row, tries + 1, _other_request(out, batch)) or []
        return sum(d != digests[0] for d in digests[1:]), max(len(digests) - 1, 0)
    return _reruns(_without(out, source), batch, start, row, tries, stop=False)


def _without(out: Stabiliser, source: Source) -> Stabiliser:
    pinned = {p: v for p, v in out.pinned.items() if p not in source.modules}
    return replace(
        out,
        seeded=out.seeded and source.kind != "stochastic",
        fresh=out.fresh and source.kind != "state",
        pinned=pinned if source.kind == "race" else out.pinned,
    )


def pin_draws(out: Stabiliser, batch: Padded, row: int = 0) -> None:
    """Pin the modules that draw, for runs of other shapes: a seed gives those other draws."""
    drawing = [m for s in out.sources if s.kind == "stochastic" for m in s.modules]
    if drawing:
        out.pinned = {**out.pinned, **freeze.pins(out.log(batch, row), drawing)}


def _reruns(
    out: Stabiliser, batch: Padded, start: int, row: int, tries: int, stop: bool = True
) -> tuple[int, int]:
    """(k, n): stabilised reruns that differ from the first; stops at the first if ``stop``."""
    rows = tuple(range(len(batch.starts))) if out.pinned else (row,)
    first = out.run(batch, start, (row,), pin_rows=rows)[0]
    k = 0
    for done in range(1, tries + 1):
        k += out.run(batch, start, (row,), pin_rows=rows)[0].digests != first.digests
        if k and stop:
            return k, done
    return k, tries


def _still_differs(out: Stabiliser, batch: Padded, start: int, row: int, tries: int) -> bool:
    return _reruns(out, batch, start, row, tries)[0] > 0


def _draws(
    out: Stabiliser, batch: Padded, start: int, row: int, k: int, n: int, tries: int
) -> None:
    with rng.watching(out.target.model) as draws:
        out.target.forward_padded(batch)
    if not draws.any:
        return
    private = any("." in name for name in draws.generators)
    out.seeded, out.fresh = True, private
    k_fixed, n_fixed = _reruns(out, batch, start, row, tries, stop=False)
    out.sources.append(
        Source(
            "stochastic",
            tuple(draws.modules),
            None,
            k,
            n,
            k_fixed,
            n_fixed,
            tuple(sorted(draws.generators)),
        )
    )


def _state(out: Stabiliser, batch: Padded, start: int, row: int, tries: int) -> bool:
    """Same history on two fresh copies: equal call by call, yet the calls differ?

    Half-way another request comes by: state that has settled on one input (a running scale, a
    peak) moves only then.
    """
    if out.fresh:
        return False
    calls = max(2, min(tries, 4))
    other = _other_request(out, batch)
    one = _history(out, batch, start, row, calls, other)
    two = _history(out, batch, start, row, calls, other)
    if one is None or one != two or all(d == one[0] for d in one):
        return False
    moved = sum(d != one[0] for d in one[1:])
    at = _first_change(one)
    if at < calls // 2:
        birth, what = state_place(out, batch, row, moved_at=at)
    else:
        birth, what = state_place(out, batch, row, moved_at=at, between=(other,))
    out.fresh = True
    k_fixed, n_fixed = _reruns(out, batch, start, row, tries, stop=False)
    out.sources.append(
        Source(
            "state",
            (birth.path,) if birth else tuple(w.rsplit(".", 1)[0] for w in what[:1]),
            birth.token if birth else None,
            moved,
            calls - 1,
            k_fixed,
            n_fixed,
            what,
            birth,
        )
    )
    return True


def _first_change(digests: Sequence[tuple[str, ...]]) -> int:
    return next(i for i, d in enumerate(digests) if d != digests[0])


def _other_request(out: Stabiliser, batch: Padded) -> Padded:
    """Other tokens, and three more of them in every row."""
    vocabulary = int(out.target.model.config.get_text_config().vocab_size)
    rows = []
    for row in range(len(batch.starts)):
        ids = batch.input_ids[row, batch.real(row)].tolist()
        rows.append([(31 * t + 17 * i + 5) % vocabulary for i, t in enumerate([*ids, 1, 2, 3])])
    return out.target.pad(rows)


def _history(
    out: Stabiliser, batch: Padded, start: int, row: int, calls: int, other: Padded
) -> list[tuple[str, ...]] | None:
    """Digests of ``calls`` runs on one fresh copy, with ``other`` in the middle."""
    model = out.target.fresh_model()
    if model is None:
        return None
    digests = []
    for call in range(calls):
        if call == calls // 2:
            with rng.preserved():
                rng.seed_all(0)
                out.target.forward_padded(other, model=model)
        with rng.preserved():
            rng.seed_all(0)
            with freeze.frozen(model, out.pinned, batch, range(len(batch.starts))):
                run = run_padded(out.target, batch, start, (row,), model=model)[0]
        digests.append(run.digests)
    return digests


def state_place(
    out: Stabiliser,
    batch: Padded,
    row: int,
    *,
    moved_at: int = 1,
    between: Sequence[Padded] = (),
) -> tuple[Birth | None, tuple[str, ...]]:
    """First module whose output changes over one history at equal inputs, and the state there.

    The history is ``batch`` repeated ``moved_at`` times, then ``between``, then ``batch``.
    """
    model = out.target.fresh_model()
    if model is None:
        return None, ()
    with changed_state(model) as changed, rng.preserved():
        rng.seed_all(0)
        first = recorded(out.target, batch, row, model)
        for other in [*([batch] * (moved_at - 1)), *between]:
            rng.seed_all(0)
            out.target.forward_padded(other, model=model)
        rng.seed_all(0)
        last = recorded(out.target, batch, row, model)
    births = compare_logs(first, last, skip=tuple(out.pinned)).births
    return (births[0] if births else None), tuple(changed)


def _race(out: Stabiliser, batch: Padded, start: int, row: int, tries: int) -> bool:
    """Tally the first module with equal inputs and unequal outputs; pin it; did that help?"""
    rows = tuple(range(len(batch.starts)))
    base = out.log(batch, row, pin_rows=rows)
    tally: Counter[str] = Counter()
    order: dict[str, int] = {}
    kept: dict[str, Birth] = {}
    differ = 0
    for _ in range(tries):
        births = compare_logs(
            base, out.log(batch, row, pin_rows=rows), skip=tuple(out.pinned)
        ).births
        differ += bool(births)
        for birth in births[:1]:
            tally[birth.path] += 1
            order.setdefault(birth.path, list(base.cells).index((birth.path, birth.occurrence)))
            kept.setdefault(birth.path, birth)
    if not tally:
        return False
    path = min(tally, key=lambda p: (-tally[p], order[p]))
    same_kind = _same_place(out.target.model, path) if _pins_like(out, path) else (path,)
    out.pinned = {**out.pinned, **freeze.pins(base, same_kind)}
    k_fixed, n_fixed = _reruns(out, batch, start, row, tries, stop=False)
    birth = kept[path]
    out.sources.append(
        Source("race", (path,), birth.token, differ, tries, k_fixed, n_fixed, (), birth)
    )
    return True


def _pins_like(out: Stabiliser, path: str) -> bool:
    """Was a module of the same name in another block found before?"""
    leaf = path.rsplit(".", 1)[-1]
    return any(p.rsplit(".", 1)[-1] == leaf for p in out.pinned)


def _same_place(model: Any, path: str) -> tuple[str, ...]:
    leaf = path.rsplit(".", 1)[-1]
    return tuple(p for p, _ in model.named_modules() if p.rsplit(".", 1)[-1] == leaf)
