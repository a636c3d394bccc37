"""Small model folders to fingerprint, written with the libraries a user would use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ 'SYSTEM: be brief\n' }}{% endif %}"
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
)


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = [f"model.layers.{i}.{part}.weight" for i in range(3) for part in ("q", "k", "v")]
    out = {name: rng.standard_normal((4, 6)).astype(np.float32) for name in names}
    out["model.norm.weight"] = rng.standard_normal(6).astype(np.float16)
    return out


def tokenizer(normalizer: Any = None) -> Tokenizer:
    vocab = {chr(c): i for i, c in enumerate(range(33, 127))}
    vocab |= {"[UNK]": 100, "the": 101, "Hello": 102, "caf\u00e9": 103, "tall": 104, "<s>": 105}
    made = Tokenizer(models.WordLevel(vocab, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 105)])
    if normalizer is not None:
        made.normalizer = normalizer
    return made


def write_model(
    folder: Path,
    weights: dict[str, np.ndarray] | None = None,
    *,
    normalizer: Any = None,
    template: str = TEMPLATE,
    generation: dict[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors() if weights is None else weights
    write_shards(folder, weights, shards)
    tokenizer(normalizer).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float32"}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    generation = {"do_sample": False} if generation is None else generation
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def write_shards(folder: Path, weights: dict[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    names = list(weights)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[shard::shards]
        save_file({name: weights[name] for name in mine}, folder / file)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


LOWERCASE = normalizers.Lowercase()
NFKC = normalizers.NFKC()
