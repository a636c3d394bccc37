"""Tiny random models of every causal-LM family of transformers that has experts.

Configs are shrunk by what a field is called, not by family; ``FIXES`` holds the few that tie
fields together in ways no name tells.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

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

FIXES: Final[dict[str, dict[str, Any]]] = {}


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
    return found


def tiny_config(model_type: str) -> Any:
    """The family's default config with every size cut down."""
    cls = CONFIG_MAPPING[model_type]
    fields = shrunk(cls())
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
