"""Mixture-of-experts models with one thing wrong, chosen by ``config.planted``."""

import random

import torch
import torch.nn.functional as F
from transformers import Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeSparseMoeBlock,
    Qwen3MoeTopKRouter,
)


def keep_first(experts, num_experts, factor):
    """(tokens, k) expert ids to the mask of those that found a free slot."""
    slots = max(1, int(factor * experts.numel() / num_experts))
    order = F.one_hot(experts.reshape(-1), num_experts).cumsum(0)
    place = order.gather(1, experts.reshape(-1, 1)).view_as(experts)
    return place <= slots


class CapacityBlock(Qwen3MoeSparseMoeBlock):
    """Drops between router and experts: the dropped token keeps only its residual."""

    def forward(self, hidden_states):
        rows, length, width = hidden_states.shape
        flat = hidden_states.view(-1, width)
        _, weights, experts = self.gate(flat)
        weights = weights * keep_first(experts, self.gate.num_experts, 1.25)
        return self.experts(flat, experts, weights).view(rows, length, width)


class CapacityRouter(Qwen3MoeTopKRouter):
    """Drops inside the router, as Switch does."""

    def forward(self, hidden_states):
        logits, weights, experts = super().forward(hidden_states)
        return logits, weights * keep_first(experts, self.num_experts, 1.25), experts


class UnstableRouter(Qwen3MoeTopKRouter):
    """Selects on bfloat16 probabilities, ties in an order that nobody controls."""

    def tie_order(self, tokens):
        order = list(range(self.num_experts))
        random.SystemRandom().shuffle(order)
        return torch.tensor(order).expand(tokens, -1)

    def forward(self, hidden_states):
        flat = hidden_states.reshape(-1, self.hidden_dim)
        logits = F.linear(flat, self.weight)
        scores = logits.float().softmax(-1).bfloat16()
        order = self.tie_order(flat.shape[0])
        top, place = scores.gather(1, order).topk(self.top_k, -1)
        weights = (top / top.sum(-1, keepdim=True)).to(logits.dtype)
        return logits, weights, order.gather(1, place)


class PlaceRouter(UnstableRouter):
    """Ties go by the token's place in the flattened batch."""

    def tie_order(self, tokens):
        start = torch.arange(tokens)[:, None]
        return (start + torch.arange(self.num_experts)) % self.num_experts


class PlantedForCausalLM(Qwen3MoeForCausalLM):
    """The model that config.json names in auto_map."""

    def __init__(self, config):
        super().__init__(config)
        for block in self.model.layers[1:2]:
            for name in config.planted:
                PLANTS[name](block, config)
        self.post_init()


def whole_block(block, config):
    block.mlp = CapacityBlock(config)


def gate(cls):
    def plant(block, config):
        block.mlp.gate = cls(config)

    return plant


PLANTS = {
    "capacity-block": whole_block,
    "capacity-router": gate(CapacityRouter),
    "router-ties": gate(UnstableRouter),
    "router-ties-by-place": gate(PlaceRouter),
}
