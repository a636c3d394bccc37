"""Digests and distances against cases worked out by hand and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detdiag.trace.bits import (
    bit_equal,
    digest_device,
    digest_host,
    hash_tensor,
    ulp_distance,
    ulp_size,
)

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(params=[False, True], ids=["host", "device"])
def on_device(request: pytest.FixtureRequest) -> bool:
    return request.param


def flip_bit(t: torch.Tensor, element: int, bit: int) -> torch.Tensor:
    raw = bytearray(t.contiguous().view(torch.uint8).numpy().tobytes())
    raw[element * t.element_size() + bit // 8] ^= 1 << bit % 8
    return torch.frombuffer(raw, dtype=t.dtype).reshape(t.shape)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_single_bit_counts(dtype: torch.dtype, on_device: bool) -> None:
    torch.manual_seed(0)
    t = torch.randn(5, 3).to(dtype)
    seen = {hash_tensor(t, device=on_device)}
    width = 8 * t.element_size()
    for element in range(t.numel()):
        seen |= {hash_tensor(flip_bit(t, element, b), device=on_device) for b in range(width)}
    assert len(seen) == 1 + t.numel() * width


def test_rows_order_and_sign(on_device: bool) -> None:
    torch.manual_seed(0)
    row = torch.randn(8)
    twice, other = row.repeat(2, 1), torch.randn(8).repeat(2, 1)
    values = [twice, other, torch.stack([row, row.flip(0)]), -twice, twice[:, torch.randperm(8)]]
    assert len({hash_tensor(v, device=on_device) for v in values}) == len(values)


def test_dtype_and_shape_count(on_device: bool) -> None:
    zeros = [torch.zeros(4, dtype=d) for d in (*FLOATS, torch.int32, torch.int64)]
    zeros += [torch.zeros(2, 2), torch.zeros(1, 4), torch.zeros(4, 1), torch.zeros(5)]
    assert len({hash_tensor(z, device=on_device) for z in zeros}) == len(zeros)


def test_small_integers_do_not_collide(on_device: bool) -> None:
    """Words and indices of similar size must not cancel (masks, positions, token ids)."""
    values = {
        hash_tensor(torch.tensor([a, b, c]), device=on_device)
        for a in range(12)
        for b in range(12)
        for c in range(12)
    }
    assert len(values) == 12**3


def test_special_values(on_device: bool) -> None:
    words = [0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 0, 0x80000000]
    hashes = {
        hash_tensor(
            torch.from_numpy(np.array([w], dtype=np.uint32).view(np.int32)).view(torch.float32),
            device=on_device,
        )
        for w in words
    }
    assert len(hashes) == len(words)


def test_zero_length(on_device: bool) -> None:
    empty = [torch.zeros(0), torch.zeros(0, 3), torch.zeros(3, 0), torch.zeros(0).bool()]
    assert len({hash_tensor(e, device=on_device) for e in empty}) == len(empty)
    assert hash_tensor(torch.zeros(0), device=on_device) == hash_tensor(
        torch.zeros(0), device=on_device
    )


def test_layout_does_not_count(on_device: bool) -> None:
    t = torch.randn(6, 10)
    copies = [t.T.contiguous().T, torch.cat([t, t])[:6], torch.stack([t, t], -1)[..., 0]]
    assert {hash_tensor(c, device=on_device) for c in copies} == {hash_tensor(t, device=on_device)}


def test_device_digest_does_not_depend_on_chunks() -> None:
    t = torch.randn(1000)
    assert (
        int(digest_device(t)) == int(digest_device(t, chunk=7)) == int(digest_device(t, chunk=999))
    )


def test_complex_and_bool_and_conjugate() -> None:
    z = torch.randn(4, dtype=torch.complex64)
    assert digest_host(z.conj()) == digest_host(z.conj().clone())
    assert digest_host(z.conj()) != digest_host(z)
    assert digest_host(torch.tensor([True, False])) != digest_host(torch.tensor([False, True]))


def test_bit_equal_is_stricter_than_value_equal() -> None:
    assert not bit_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert bit_equal(nan, nan.clone())
    assert not bit_equal(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_ulp_distance_counts_nextafter_steps(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    start = np.array([1.0, -1.0, 0.0, 3.5, -1e-5], dtype=name)
    stepped = start.copy()
    for _ in range(3):
        stepped = np.nextafter(stepped, np.array(np.inf, dtype=name))
    distance = ulp_distance(torch.from_numpy(start), torch.from_numpy(stepped))
    assert distance.tolist() == [3] * 5


def test_ulp_distance_crosses_zero_and_knows_nan() -> None:
    tiny = torch.tensor([1], dtype=torch.int16).view(torch.bfloat16)
    assert ulp_distance(-tiny, tiny).tolist() == [2]
    assert ulp_distance(torch.tensor([-0.0]), torch.tensor([0.0])).tolist() == [0]
    nan = torch.tensor([float("nan"), float("nan")])
    assert ulp_distance(nan, torch.tensor([float("nan"), 1.0])).tolist() == [0, 1 << 62]


@pytest.mark.parametrize(
    ("value", "dtype", "step"),
    [(20.0, torch.bfloat16, 0.125), (8.4, torch.bfloat16, 0.0625), (1.0, torch.float32, 2**-23)],
)
def test_ulp_size(value: float, dtype: torch.dtype, step: float) -> None:
    assert ulp_size(value, dtype) == step
