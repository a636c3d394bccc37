"""Tiny random models of every causal-LM family of transformers that has experts.

Configs are shrunk by what a field is called, not by family; ``FIXES`` holds the few that tie
fields together in ways no name tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from detdiag.moe.capture import capture
from detdiag.moe.decisions import decisions
from detdiag.moe.discover import find_routers
from detdiag.moe.judge import judge
from detdiag.moe.replay import output_of, replay

_SOURCE: Final = re.compile(r"\w+(Experts|MoE|MoeBlock|MoEBlock|Router|Gating)\(")

_SIZES: Final[tuple[tuple[str, Any], ...]] = (
    (r"^vocab_size$", 96),
    (r"^(hidden_size|d_model|n_embd|emb_dim)$", 32),
    (r"^(num_hidden_layers|n_layers|num_layers)$", 2),
    (r"^(num_attention_heads|n_heads|num_heads)$", 4),
    (r"^(num_key_value_heads|num_kv_heads|kv_n_heads)$", 2),
    (r"^(head_dim|qk_nope_head_dim|v_head_dim|qk_rope_head_dim|global_head_dim)$", 8),
    (r"(intermediate_size|ffn_hidden_size|ffn_dim|hidden_dim)", 32),
    (r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$", 8),
    (r"^(num_experts_per_tok|top_k|moe_top_k|moe_topk|moe_k)$", 2),
    (r"^(n_shared_experts|num_shared_experts)$", 1),
    (r"^(q_lora_rank|kv_lora_rank|router_hidden_size)$", 16),
    (r"^(n_group|topk_group)$", 1),
    (r"^(first_k_dense_replace|num_dense_layers|n_dense_layers|moe_layer_start_index)$", 1),
    (r"^(decoder_sparse_step|moe_layer_freq|expert_layer_period|interleave_moe_layer_step)$", 1),
    (r"(pad|bos|eos)_token_id$", 1),
    (r"^(max_position_embeddings|max_seq_len)$", 128),
)

MAX_PARAMETERS: Final = 8_000_000

FIXES: Final[dict[str, dict[str, Any]]] = {
    "bailing_hybrid": {
        "num_key_value_heads": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    },
    "beam": {"mlp_layer_types": ["dense", "sparse"]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 32,
            "moe_num_experts": 8,
            "moe_top_k": 2,
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v4": {"mlp_layer_types": ["hash_moe", "moe"]},
    "doge": {"is_moe": True, "num_experts": 64, "num_experts_per_tok": 4},
    "dots1": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    "dots3_note_text": {"num_key_value_heads": 4},
    "flint": {"mlp_only_layers": [], "num_experts": 8, "decoder_sparse_step": 1},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "pad_token_id": 0,
    },
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2},
    "jamba": {
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "kimi_linear": {"num_experts_per_token": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zaya": {"num_experts_per_tok": 1},
}

NESTED: Final[dict[str, str]] = {
    "dots3_note": "dots3_note_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
}
"""Multimodal configs whose language model is another entry of the mapping."""


@lru_cache
def families() -> list[str]:
    """Model types of the causal-LM mapping whose modelling file defines experts or a router."""
    found = []
    root = Path(transformers.__file__).parent / "models"
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        module = model_type_to_module_name(model_type)
        files = [root / module / f"modeling_{module}.py"]
        if not files[0].exists():
            files = [p for p in root.glob("*/modeling_*.py") if f"class {name}(" in p.read_text()]
        if files and _SOURCE.search(files[0].read_text()) and "num_experts" in files[0].read_text():
            found.append(model_type)
    return [name for name in found if name not in NESTED]


def tiny_config(model_type: str) -> Any:
    """The family's default config with every size cut down."""
    cls = CONFIG_MAPPING[model_type]
    fields = shrunk(cls())
    if "kv_lora_rank" in fields:
        # Latent attention expands to one key and value per query head.
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    fields.update(FIXES.get(model_type, {}))
    return cls(**fields)


def shrunk(config: Any) -> dict[str, Any]:
    fields = {}
    for name, value in config.to_dict().items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        for pattern, size in _SIZES:
            if re.search(pattern, name):
                fields[name] = size
                break
    return fields


def tiny_model(model_type: str, seed: int = 0) -> Any:
    """A random model of the family in float32, evaluation mode."""
    torch.manual_seed(seed)
    config = tiny_config(model_type)
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    cls = getattr(transformers, name)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"the shrunk config still has {size} parameters")
    model = cls(config).eval()
    for parameter in model.parameters():
        if not torch.isfinite(parameter).all():
            torch.nn.init.normal_(parameter, std=0.02)
    return model


@dataclass(frozen=True)
class Row:
    """One family: how many routers were found, where, and what the trace sees there."""

    family: str
    model_class: str
    routers: int
    chooser: str
    block: str
    experts: str
    sees: str
    note: str = ""

    def line(self) -> str:
        cells = (
            self.family,
            self.model_class,
            str(self.routers) if self.routers else "none",
            *(f"`{c}`" if c else "" for c in (self.chooser, self.block)),
            self.experts,
            self.sees,
            self.note,
        )
        return "| " + " | ".join(cells) + " |"


NOTES: Final[dict[str, str]] = {
    "doge": "experts are rows of an embedding, found by product keys; no column stands for an "
    "expert, and routing of one token depends on the others by design",
    "deepseek_v4": "blocks that hash token ids choose from a table: ids and weights are seen, no "
    "score is compared",
    "gemma4_text": "router and experts sit in the decoder layer, which is replayed as a whole",
    "jetmoe": "attention is a mixture too; both routers are traced",
    "longcat_flash": "the router has more columns than there are experts (zero experts)",
    "zaya": "the router has one column more than there are experts (skip expert)",
}


def examine(model_type: str) -> Row:
    """Build, find the routers, trace one forward, replay every block."""
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    note = NOTES.get(model_type, "")
    model = tiny_model(model_type)
    routers = find_routers(model)
    if not routers:
        return Row(model_type, name, 0, "", "", "", "", note)
    ids = torch.arange(22).reshape(2, 11) % 90 + 3
    with torch.no_grad():
        plain = model(input_ids=ids, use_cache=False).logits
        with capture(model, routers, keep=True) as made:
            traced = model(input_ids=ids, use_cache=False).logits
    assert torch.equal(plain, traced), "the trace changes the logits"
    assert {c.router.index for c in made.calls} == {r.index for r in routers}, "a block is unseen"
    seen: set[str] = set()
    for call in made.calls:
        taken = decisions(call)
        assert taken.ids is not None
        assert taken.ids.shape == (ids.numel(), call.router.top_k)
        assert int(taken.ids.max()) < call.router.experts
        seen |= {n for n in ("ids", "scores", "logits", "weights") if getattr(taken, n) is not None}
        again = replay(model, call)
        assert judge(taken, output_of(call), decisions(again), output_of(again)) == []
    last = routers[-1]
    return Row(
        model_type,
        name,
        len(routers),
        last.path,
        last.block_path,
        f"{last.experts}, top {last.top_k}",
        ", ".join(n for n in ("ids", "weights", "scores", "logits") if n in seen),
        note,
    )


HEADER: Final = """# Mixture-of-experts families

Which routers `detdiag` finds without a list of models, and what its trace sees in them. Made by
`python -m tests.moe.families` from a tiny random model of every causal-LM family of transformers
{version} with experts; `tests/moe/test_families.py` builds each again and compares. "Sees" means
per token: `ids` and `weights` that the experts were called with, `scores` that the choosing call
compared, `logits` that the router projected. The trace leaves the logits of the model bit-equal
in every family listed. Multimodal configurations route in their text model ({nested}).

| family | class | routers in 2 layers | chooser | block | experts | sees | note |
|---|---|---|---|---|---|---|---|
"""


def document() -> str:
    """The text of docs/moe-families.md."""
    nested = ", ".join(f"{a} in {b}" for a, b in NESTED.items())
    lines = [examine(name).line() for name in families()]
    head = HEADER.format(version=".".join(transformers.__version__.split(".")[:2]), nested=nested)
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "moe-families.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(document(), encoding="utf-8")
