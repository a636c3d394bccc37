"""Routing faults planted into tiny Mixtral models, in the way custom model code would have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MixtralConfig, MixtralForCausalLM

from detdiag.targets.local import LocalTarget
from tests.probes.tiny import VOCAB, around

HIDDEN, EXPERTS, TOP_K = 32, 8, 2


def mixtral(dtype: torch.dtype = torch.float32, seed: int = 3, layers: int = 2) -> Any:
    """A random Mixtral whose margins and expert outputs are not all alike."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = MixtralForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


def target(model: Any, n_prompts: int = 2) -> LocalTarget:
    return around(model, n_prompts)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 48, bias=False)
        self.down = nn.Linear(48, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class CustomMoe(nn.Module):
    """A mixture as people write it by hand; subclasses plant a fault in ``choose``."""

    def __init__(self, top_k: int = TOP_K) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)

    def choose(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.topk(probs, self.top_k, dim=-1)

    def keep(self, ids: Tensor) -> Tensor:
        return torch.ones_like(ids, dtype=torch.bool)

    def probs(self, x: Tensor) -> Tensor:
        return torch.softmax(self.gate(x), dim=-1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        weights, ids = self.choose(self.probs(x))
        weights = weights / weights.sum(-1, keepdim=True)
        kept = self.keep(ids)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, slot = torch.where((ids == index) & kept)
            if len(token):
                out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out.reshape(shape)


class Capacity(CustomMoe):
    """Each expert takes at most ``limit`` tokens of the whole batch, first come first served."""

    def __init__(self, limit: int = 20, top_k: int = TOP_K) -> None:
        super().__init__(top_k)
        self.limit = limit

    def keep(self, ids: Tensor) -> Tensor:
        one_hot = F.one_hot(ids.reshape(-1), EXPERTS)
        place = (one_hot.cumsum(0) * one_hot).sum(-1).reshape(ids.shape)
        return place <= self.limit


class FusedCapacity(nn.Module):
    """Stacked weights, dispatch by einsum, nothing of the routing visible from outside."""

    def __init__(self, limit: int = 20) -> None:
        super().__init__()
        self.limit = limit
        self.router = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.3)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 48) * 0.3)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, 48, HIDDEN) * 0.3)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.reshape(-1, HIDDEN)
        weight, expert = torch.max(torch.softmax(x @ self.router.T, -1), dim=-1)
        one_hot = F.one_hot(expert, EXPERTS)
        place = (one_hot.cumsum(0) * one_hot).sum(-1)
        gates = one_hot * ((place <= self.limit) * weight).unsqueeze(-1)
        inner = F.silu(torch.einsum("th,ehf->tef", x, self.w1))
        outer = torch.einsum("tef,efh->teh", inner, self.w2)
        return torch.einsum("te,teh->th", gates.to(outer.dtype), outer).reshape(hidden_states.shape)


class _Ties(CustomMoe):
    """Pairs of experts share their router row, so every choice between them is a tie."""

    def __init__(self) -> None:
        super().__init__(top_k=1)
        with torch.no_grad():
            self.gate.weight[1::2] = self.gate.weight[::2]


class RandomTies(_Ties):
    def choose(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        best = probs >= probs.max(-1, keepdim=True).values
        ids = torch.where(best, torch.rand(probs.shape), -1.0).argmax(-1, keepdim=True)
        return probs.gather(-1, ids), ids


class NoisyTies(_Ties):
    """Breaks ties by noise far below a rounding step."""

    def choose(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        ids = torch.topk(probs.double() + 1e-12 * torch.rand(probs.shape), 1, dim=-1).indices
        return probs.gather(-1, ids), ids


class BatchTies(_Ties):
    """A large batch takes another sort, with the other end of the tie."""

    def choose(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        if probs.shape[0] <= 30:
            return torch.topk(probs, 1, dim=-1)
        values, ids = torch.topk(probs.flip(-1), 1, dim=-1)
        return values, EXPERTS - 1 - ids


class Jitter(CustomMoe):
    """Training noise on the router input that nobody turned off."""

    def probs(self, x: Tensor) -> Tensor:
        return super().probs(x * torch.empty_like(x).uniform_(0.9, 1.1))


class HarmlessNoise(CustomMoe):
    """Draws noise and uses it only for a statistic: scores and outputs stay as they are."""

    def probs(self, x: Tensor) -> Tensor:
        self.noise = float(torch.rand_like(x).mean())
        return super().probs(x)


class SharedScale(CustomMoe):
    """Experts quantised with one scale for the whole batch: a batch effect, not routing."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        out = super().forward(hidden_states)
        scale = out.abs().max() / 7
        return (out / scale).round() * scale


class ExpertDropout(CustomMoe):
    """Dropout left on behind the experts: an operator fault inside a routed block."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.dropout(super().forward(hidden_states), 0.2, training=True)


def plant(model: Any, block: nn.Module, layer: int = 1) -> Any:
    model.model.layers[layer].mlp = block.to(model.dtype).eval()
    return model
