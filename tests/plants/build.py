"""Write a planted model folder: weights, tokenizer, configuration and, where needed, code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from detdiag.demo import demo_path

SOURCES: Final = Path(__file__).parent / "sources"
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SPECIAL: Final = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def random_model(kind: str, dtype: torch.dtype, seed: int = 7) -> Any:
    """A tiny untrained ``dense``, ``moe`` or ``absolute`` (GPT-2) model. Its init is wide enough
    that greedy text is not one token for ever."""
    import transformers as hf

    shared: dict[str, Any] = {"vocab_size": 768, "initializer_range": 0.15, **SPECIAL}
    torch.manual_seed(seed)
    if kind == "absolute":
        config = hf.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=256, **shared)
        return hf.GPT2LMHeadModel(config).eval().to(dtype)
    shared |= {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    if kind == "moe":
        config = hf.Qwen3MoeConfig(
            intermediate_size=64,
            moe_intermediate_size=32,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            **shared,
        )
        return hf.Qwen3MoeForCausalLM(config).eval().to(dtype)
    return hf.LlamaForCausalLM(hf.LlamaConfig(intermediate_size=128, **shared)).eval().to(dtype)


def base_folder(path: Path, kind: str, base: str, dtype: str) -> Path:
    """A plain healthy folder: a copy of an embedded model (``base="demo"``) or a random one."""
    source = demo_path("moe" if kind == "moe" else "dense")
    if base == "demo":
        shutil.copytree(source, path)
        convert(path, getattr(torch, dtype))
        return path
    random_model(kind, getattr(torch, dtype)).save_pretrained(path)
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, path / name)
    edit(path / "generation_config.json", **SPECIAL, do_sample=False)
    return path


def convert(path: Path, dtype: torch.dtype) -> None:
    """Store the floating tensors of ``path`` as ``dtype``."""

    def cast(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({k: v.to(dtype) for k, v in tensors.items()})

    edit_weights(path, cast)
    edit(path / "config.json", dtype=str(dtype).removeprefix("torch."))


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON object file, creating it where missing."""
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}, indent=2) + "\n")


def edit_weights(path: Path, change: Any) -> None:
    """Load the tensors of ``path``, let ``change`` alter the mapping in place, write them back."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, file, {"format": "pt"})


def plant_code(path: Path, source: str, names: tuple[str, ...]) -> None:
    """Add ``sources/<source>.py`` as the folder's own modelling code."""
    shutil.copy(SOURCES / f"{source}.py", path / "modeling_planted.py")
    edit(
        path / "config.json",
        architectures=["PlantedForCausalLM"],
        auto_map={"AutoModelForCausalLM": "modeling_planted.PlantedForCausalLM"},
        planted=list(names),
    )


def add_ulp(path: Path, name: str, index: int = 0) -> None:
    """One unit in the last place of one element of tensor ``name``, away from zero."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        flat = tensors[name].view(-1)
        bits = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32)
        bits[index] += 1

    edit_weights(path, change)
