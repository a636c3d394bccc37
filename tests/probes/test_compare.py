"""Digests, ULPs and intervals against numpy, struct and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

from detdiag.probes._compare import (
    bit_equal,
    difference,
    differing_rows,
    interval95,
    row_digests,
    ulp_of,
)


def test_digest_sees_order_sign_bit_dtype_and_shape() -> None:
    row = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    flipped = row.clone()
    flipped.view(torch.int32)[0, 2] ^= 1
    others = [row.flip(-1), -row, flipped, row.double(), row.reshape(1, 2, 2), row.to(torch.int32)]
    digests = {row_digests(x)[0] for x in [row, *others]}
    assert len(digests) == len(others) + 1


def test_digest_is_per_row_and_ignores_layout() -> None:
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    rows[2] = rows[0]
    digests = row_digests(rows)
    assert digests[0] == digests[2] != digests[1]
    assert row_digests(rows.t().contiguous().t()) == digests


def test_zero_signs_and_nan_payloads_differ() -> None:
    zero = torch.tensor([0.0, -0.0])
    assert not bit_equal(zero[:1], zero[1:])
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not bit_equal(nans[:1], nans[1:])
    assert bit_equal(nans[:1], nans[:1].clone())


def test_empty_rows() -> None:
    assert len(row_digests(torch.empty(2, 0))) == 2
    assert differing_rows(torch.empty(0, 3), torch.empty(0, 3)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ulp_is_numpys_spacing(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, 2.0, 3.9, 16.0, 31.0, 0.1, -5.0]).to(dtype)
    expected = np.spacing(np.abs(values.numpy())).astype(np.float64)
    assert ulp_of(values, dtype).tolist() == expected.tolist()


def test_bfloat16_spacing_between_16_and_32_is_an_eighth() -> None:
    assert ulp_of(torch.tensor([16.0, 31.9]), torch.bfloat16).tolist() == [0.125, 0.125]


def test_difference_counts_flips_and_ulps() -> None:
    a = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
    b = a.clone()
    b[0] = torch.tensor([2.5, 2.0])
    found = difference(a, b)
    assert (found.bit_equal, found.flips, found.flipped, found.max_abs) == (False, 1, (0,), 1.5)
    assert found.per_position_abs == (1.5, 0.0)
    assert found.max_ulp == 1.5 / float(np.spacing(np.float32(2.5)))


def test_one_ulp_is_one() -> None:
    a = torch.tensor([[1.25, 1.0]])
    assert difference(a, torch.nextafter(a, a + 1)).max_ulp == 1.0


@pytest.mark.parametrize("n", [3, 20, 100])
def test_interval_at_the_ends_is_clopper_pearson(n: int) -> None:
    assert interval95(0, n)[1] == pytest.approx(beta.ppf(0.975, 1, n))
    assert interval95(n, n)[0] == pytest.approx(beta.ppf(0.025, n, 1))


def test_interval_inside_solves_the_score_equation() -> None:
    k, n, z = 7, 20, norm.ppf(0.975)
    for p in interval95(k, n):
        assert abs(k / n - p) == pytest.approx(z * math.sqrt(p * (1 - p) / n))
