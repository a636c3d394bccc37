"""First diverging module: where it is planted, at the token where it is planted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from detdiag.probes.freeze import frozen, pins
from detdiag.probes.modules import ModuleLog, compare_logs, recording, slices
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded
from tests.probes import plants, tiny

ROW = tuple(range(3, 17))


def log(made: LocalTarget, batch: Padded, row: int = 0) -> ModuleLog:
    with recording(made.model, batch, row) as found:
        found.logits = made.forward_padded(batch)[row]
    return found


def ulp_at(made: LocalTarget, path: str, token: int) -> Any:
    """Hook that moves one element of one token by one ULP."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        moved = first.clone()
        moved[:, token, 3] = plants.next_up(moved[:, token, 3])
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    return made.model.get_submodule(path).register_forward_hook(hook)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("llama", "model.layers.1.mlp.up_proj"),
        ("llama", "model.layers.0.self_attn"),
        ("llama", "model.layers.1.input_layernorm"),
        ("qwen3", "model.layers.0.self_attn.q_norm"),
        ("gpt2", "transformer.h.1.mlp"),
        ("gpt2", "transformer.ln_f"),
    ],
)
def test_names_module_and_token_of_one_ulp(kind: str, path: str) -> None:
    made = tiny.target(kind)
    batch = made.pad([ROW])
    clean = log(made, batch)
    handle = ulp_at(made, path, 6)
    births = compare_logs(clean, log(made, batch)).births
    handle.remove()
    assert (births[0].path, births[0].token) == (path, 6)
    assert not births[0].beyond_rounding


def test_equal_runs_name_nothing() -> None:
    made = tiny.target()
    batch = made.pad([ROW])
    found = compare_logs(log(made, batch), log(made, batch))
    assert found.births == ()
    assert found.first is None
    assert all(v == 0 for values in found.relative.values() for v in values)


def test_a_shifted_output_is_beyond_rounding() -> None:
    made = tiny.target()
    batch = made.pad([ROW])
    clean = log(made, batch)
    plants.after(made.model, "model.layers.0.mlp", lambda _, out: out * 1.01)
    assert compare_logs(clean, log(made, batch)).births[0].beyond_rounding


def test_rows_line_up_across_batch_and_padding() -> None:
    """The planted module moves row 2 only; it is seen from that row and from no other."""
    made = tiny.target()
    solo = log(made, made.pad([ROW]))
    batch = made.pad([ROW, ROW[:9], ROW], padded_length=20)

    def third_row(_: Any, out: Tensor) -> Tensor:
        if out.shape[0] < 3:
            return out
        return out * torch.tensor([1.0, 1.0, 1.5]).view(3, 1, 1)

    plants.after(made.model, "model.layers.0.mlp.gate_proj", third_row)
    far = [b.path for b in compare_logs(solo, log(made, batch, 2)).births if b.beyond_rounding]
    assert far[0] == "model.layers.0.mlp.gate_proj"
    clean = compare_logs(solo, log(made, batch, 0)).births
    assert not [b for b in clean if b.beyond_rounding]


def test_slices_of_every_shape() -> None:
    batch = tiny.target().pad([(1, 2, 3), (4, 5)], padded_length=4)
    values = torch.arange(2 * 4 * 6).float().reshape(2, 4, 6)
    assert torch.equal(slices(values, batch, 1)["bs"], values[1, 2:4])
    assert torch.equal(slices(values.reshape(8, 6), batch, 1)["flat"], values[1, 2:4])
    heads = values.reshape(2, 4, 2, 3).transpose(1, 2)
    found = slices(heads, batch, 1)["bhs"]
    assert torch.equal(found.reshape(2, 6), values[1, 2:4])
    assert torch.equal(slices(values[:1], batch, 1)["1s"], values[0, 2:4])
    assert slices(torch.zeros(3, 5), batch, 0) == {}


def test_pinning_a_module_restores_the_logits() -> None:
    made = tiny.target()
    batch = made.pad([ROW])
    clean = log(made, batch)
    plants.race(made.model, "model.layers.0.mlp", rate=1.0)
    assert clean.logits is not None
    assert not torch.equal(made.forward_padded(batch)[0], clean.logits)
    copies = made.pad([ROW] * 3)
    with frozen(made.model, pins(clean, ["model.layers.0.mlp"]), copies, (0, 1, 2)):
        rows = made.forward_padded(copies)
    assert all(torch.allclose(r, clean.logits, atol=1e-6) for r in rows)


def test_hooks_are_gone_after_recording() -> None:
    made = tiny.target()
    log(made, made.pad([ROW]))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in made.model.modules())


def test_only_one_integer_a_token_counts_as_a_position() -> None:
    """Expert indices (tokens, k) are no positions, whatever their dtype."""
    made = tiny.target()
    batch = made.pad([ROW])

    class Takes(torch.nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return x

    model = torch.nn.Sequential()
    model.add_module("experts", Takes())
    with recording(model, batch) as found:
        model.experts(torch.zeros(1, len(ROW), 4), torch.zeros(len(ROW), 2, dtype=torch.long))
    assert found.cells[("experts", 0)].integers == {}
