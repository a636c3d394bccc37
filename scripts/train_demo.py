"""Train the two demo models from scratch and write them into ``detdiag/demo``.

    python scripts/train_demo.py            # both, about three minutes each on one idle core
    python scripts/train_demo.py moe        # one of them

Seeded: the same torch build on the same CPU with the same thread count gives the same weights;
elsewhere the weights differ in rounding and the losses agree to about two decimals. Losses are
written to ``detdiag/demo/training.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from detdiag.demo.corpus import documents

DEMO_DIR = Path(__file__).resolve().parent.parent / "detdiag" / "demo"
SEED = 2025
VOCABULARY = 768
CONTEXT = 128
BATCH_ROWS = 16
HELD_OUT_SEED = 977
SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>")
BEGIN, END, PAD = 0, 1, 2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: every byte string has an encoding, so hostile prompts are representable."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(documents(SEED), 4000), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[BEGIN]} $A",
        pair=f"{SPECIAL[BEGIN]} $A {SPECIAL[BEGIN]} $B",
        special_tokens=[(SPECIAL[BEGIN], BEGIN)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[BEGIN],
        eos_token=SPECIAL[END],
        pad_token=SPECIAL[PAD],
        padding_side="left",
        model_max_length=512,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(kind: str) -> torch.nn.Module:
    """An untrained demo model. Widths are multiples of 32 so that every row of activations is
    aligned and CPU kernels have no ragged tail."""
    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
    if kind == "dense":
        return LlamaForCausalLM(LlamaConfig(intermediate_size=352, **shared))
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            intermediate_size=128,
            moe_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            router_aux_loss_coef=0.01,
            **shared,
        )
    )


def token_rows(tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
    """Yield (BATCH_ROWS, CONTEXT) blocks of int64 ids; documents start with the begin token and
    every row starts at a document, as prompts do."""
    source = documents(seed)
    while True:
        rows = []
        for _ in range(BATCH_ROWS):
            ids: list[int] = []
            while len(ids) < CONTEXT:
                ids += tokenizer(next(source))["input_ids"]
            rows.append(ids[:CONTEXT])
        yield torch.tensor(rows)


@torch.no_grad()
def held_out_loss(model: Any, tokenizer: PreTrainedTokenizerFast, blocks: int = 8) -> float:
    """Mean cross-entropy in nats per token on text of another seed."""
    model.eval()
    rows = token_rows(tokenizer, HELD_OUT_SEED)
    return sum(float(model(ids, labels=ids).loss) for ids in islice(rows, blocks)) / blocks


def unigram_loss(tokenizer: PreTrainedTokenizerFast, blocks: int = 8) -> float:
    """Entropy of the held-out token frequencies in nats: what knowing the words alone gives."""
    counts: Counter[int] = Counter()
    for ids in islice(token_rows(tokenizer, HELD_OUT_SEED), blocks):
        counts.update(ids.flatten().tolist())
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def train(kind: str, tokenizer: PreTrainedTokenizerFast, steps: int, peak_lr: float) -> Any:
    """AdamW with a short warm-up and cosine decay to zero, float32."""
    torch.manual_seed(SEED)
    model: Any = new_model(kind)
    is_moe = kind == "moe"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.05
    )
    began = time.perf_counter()
    for step, ids in enumerate(islice(token_rows(tokenizer, SEED + 1), steps)):
        warm = min(1.0, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
        model.train()
        extra = {"output_router_logits": True} if is_moe else {}
        loss = model(ids, labels=ids, **extra).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(f"{kind} step {step}: {loss.item():.3f} ({time.perf_counter() - began:.0f} s)")
    return model


def save(kind: str, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a plain Hugging Face folder with bfloat16 weights and a greedy generation config."""
    folder = DEMO_DIR / kind
    model = model.eval().to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["dense", "moe"])
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer()
    log_path = DEMO_DIR / "training.json"
    for kind in options.kinds:
        model = train(kind, tokenizer, options.steps, options.lr)
        save(kind, model, tokenizer)
        log = json.loads(log_path.read_text()) if log_path.exists() else {}
        log[kind] = {
            "steps": options.steps,
            "tokens": options.steps * BATCH_ROWS * CONTEXT,
            "parameters": sum(p.numel() for p in model.parameters()),
            "held_out_loss_nats_per_token_bf16": round(held_out_loss(model, tokenizer), 4),
            "unigram_loss_nats_per_token": round(unigram_loss(tokenizer), 4),
            "seed": SEED,
            "torch": torch.__version__.split("+")[0],
        }
        print(kind, log[kind])
        log_path.write_text(json.dumps(log, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
