"""The factor and the sentence of one incident, from the tests over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detdiag.incidents.association import purity
from detdiag.incidents.factors import sample_of
from detdiag.incidents.model import FactorTest, Sampling
from detdiag.incidents.table import Table

Array = NDArray[Any]


def attribution(
    table: Table,
    members: Array,
    values: Mapping[str, Array],
    tests: Sequence[FactorTest],
    sampling: Sampling,
    request: Mapping[str, Any],
) -> tuple[str | None, str]:
    """The factor and the sentence of one incident; no factor without a test over all incidents."""
    if sampling == "on":
        temperature = request.get("temperature")
        said = "" if temperature is None else f" (temperature {temperature})"
        return "temperature", f"The request samples{said}: other answers are expected. Not tested."
    unset = " No temperature is in the request: the server's default may sample."
    tail = unset if sampling == "not set" else ""
    best: tuple[float, str, str] | None = None
    for test in (t for t in tests if t.outcome in ("associated", "confounded")):
        found = _follows(table, members, values, test)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is not None:
        return best[1], best[2] + tail
    return None, _no_factor(tests) + tail


def _follows(
    table: Table, members: Array, values: Mapping[str, Array], test: FactorTest
) -> tuple[float, str, str] | None:
    mine = {test.factor: values[test.factor]}
    sample = sample_of(members, table.columns["output"], mine)
    key = f"{test.factor} bin" if test.factor == "time" else test.factor
    labels = sample.labels[key]
    if len(np.unique(labels[labels >= 0])) < 2:
        return None
    right, known = purity(sample.answers, labels)
    p = "" if test.p_holm is None else f"; over all requests p = {test.p_holm:.2g} (Holm)"
    names = " = ".join((test.factor, *test.same_as))
    if test.outcome == "confounded":
        return right / known - 1, test.factor, f"Goes with {names}, but {test.note}{p}."
    sentence = f"The answer follows {names} in {right} of {known} records{p}. Association only."
    return right / known, test.factor, sentence


def _no_factor(tests: Sequence[FactorTest]) -> str:
    if any(t.outcome in ("associated", "confounded") for t in tests):
        return "No condition that goes with the answer elsewhere varies here."
    seen = [t.factor for t in tests if t.outcome == "not seen"]
    if seen:
        return (
            f"None of the tested conditions ({', '.join(seen)}) goes with the answer: the log "
            "does not hold what changed."
        )
    return "Too few repeated requests for a p-value: no attribution."
