"""ULP arithmetic against numpy and torch, which were written by others."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from detdiag.moe.ulps import narrowest, ordinal, round_to, same_bits, ulp_distance

VALUES = [
    random.Random(7).uniform(-1, 1) * 10 ** random.Random(i).randint(-40, 40) for i in range(200)
]
SMALL = [v for v in VALUES if abs(v) < 6e4]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_matches_torch(dtype: str) -> None:
    values = SMALL if dtype == "float16" else [v for v in VALUES if abs(v) < 3e38]
    theirs = torch.tensor(values, dtype=torch.float32).to(getattr(torch, dtype)).double().tolist()
    ours = [round_to(round_to(v, "float32"), dtype) for v in values]
    assert ours == theirs


@pytest.mark.parametrize(("dtype", "kind"), [("float16", np.float16), ("float32", np.float32)])
def test_one_step_is_one_ulp(dtype: str, kind: type) -> None:
    for value in (1.0, -1.0, 1e-5, 0.3):
        here = kind(value)
        assert ulp_distance(float(here), float(np.nextafter(here, kind(10))), dtype) == 1


def test_bfloat16_step_and_zero_crossing() -> None:
    assert ulp_distance(1.0, 1.0078125, "bfloat16") == 1
    assert ordinal(0.0, "bfloat16") == 0
    assert ordinal(-0.0, "bfloat16") == 0
    assert ulp_distance(float("nan"), 1.0, "bfloat16") is None


def test_bits_decide() -> None:
    assert not same_bits([0.0], [-0.0])
    assert same_bits([float("nan")], [float("nan")])
    assert narrowest([0.5, 0.25], "float32") == "bfloat16"
    assert narrowest([0.1], "float64") == "float64"
    assert narrowest([round_to(0.1, "float32")], "float32") == "float32"
