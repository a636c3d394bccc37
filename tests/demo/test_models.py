"""The embedded models: small, plain, trained, greedy."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from detdiag.demo import DEMO_CHATS, DEMO_PROMPTS, demo_path
from detdiag.demo.corpus import documents
from tests.demo.forwards import logits_of

KINDS = ("dense", "moe")
NEVER_GENERATED = (
    "on tuesday morning it rained hard, so the streets were wet and empty.",
    "peter is a sailor and works at the ferry.",
    "the favourite colour of lena is red.",
    "two plus six is eight.",
)
"""Sentences of the domain, written by hand."""


def loss_of(model: Any, ids: list[int]) -> list[float]:
    """Surprise of every token after the first in nats, by the definition."""
    logits = logits_of(model, [ids])[0].double()
    return [
        math.log(sum(math.exp(v) for v in (row - row.max()).tolist())) - float(row[t] - row.max())
        for row, t in zip(logits[:-1], ids[1:], strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_folder_is_small_and_plain(kind: str) -> None:
    folder = demo_path(kind)
    size = (folder / "model.safetensors").stat().st_size
    assert 1_000_000 <= size <= 3_000_000
    assert sum(f.stat().st_size for f in folder.iterdir()) < 3_300_000
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == {"dense": "llama", "moe": "qwen3_moe"}[kind]
    assert "auto_map" not in config
    assert str(folder.parent) not in "".join(f.read_text() for f in folder.glob("*.json"))


def test_unknown_model_is_refused() -> None:
    with pytest.raises(KeyError):
        demo_path("../dense")


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_made_of_the_domains_words(kind: str, load_demo: Any) -> None:
    model, tokenizer = load_demo(kind, "bfloat16")
    assert model.generation_config.do_sample is False
    words = Counter(w.strip(".,?") for d in islice(documents(5), 600) for w in d.split())
    for prompt in DEMO_PROMPTS[::2]:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=16)
        text = tokenizer.decode(out[0], skip_special_tokens=True)
        assert text.startswith(prompt)
        known = [w.strip(".,?") in words for w in text.split()[:-1]]
        assert sum(known) >= 0.9 * len(known), text


@pytest.mark.parametrize("kind", KINDS)
def test_chat_is_answered(kind: str, load_demo: Any) -> None:
    model, tokenizer = load_demo(kind, "bfloat16")
    messages = [{"role": "user", "content": DEMO_CHATS[0]}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert ids["input_ids"][0].tolist().count(tokenizer.bos_token_id) == 1
    out = model.generate(**ids, max_new_tokens=16)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(out) == "mira works at the bakery.<|end|>"


@pytest.mark.parametrize("kind", KINDS)
def test_loss_on_unseen_documents(kind: str, load_demo: Any) -> None:
    model, tokenizer = load_demo(kind, "bfloat16")
    rows = [tokenizer(d)["input_ids"] for d in islice(documents(424_242), 25)]
    losses = [v for row in rows for v in loss_of(model, row)]
    counts = Counter(t for row in rows for t in row[1:])
    total = sum(counts.values())
    unigram = -sum(n / total * math.log(n / total) for n in counts.values())
    assert sum(losses) / len(losses) < 0.25 * unigram


@pytest.mark.parametrize("kind", KINDS)
def test_loss_on_sentences_written_by_hand(kind: str, load_demo: Any) -> None:
    model, tokenizer = load_demo(kind, "bfloat16")
    losses = [v for s in NEVER_GENERATED for v in loss_of(model, tokenizer(s)["input_ids"])]
    assert sum(losses) / len(losses) < 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_loss_is_that_of_the_files(kind: str, load_demo: Any) -> None:
    model, tokenizer = load_demo(kind, "bfloat16")
    log = json.loads((demo_path(kind).parent / "training.json").read_text())[kind]
    assert log["parameters"] == sum(p.numel() for p in model.parameters())
    rows = [tokenizer(d)["input_ids"][:128] for d in islice(documents(977), 25)]
    losses = [v for row in rows for v in loss_of(model, row)]
    recorded = log["held_out_loss_nats_per_token_bf16"]
    assert sum(losses) / len(losses) == pytest.approx(recorded, rel=0.35)


def test_every_byte_string_has_tokens(load_demo: Any) -> None:
    _, tokenizer = load_demo("dense", "bfloat16")
    for text in ("\ufeffwhere", "naïve ☃\u202e", "a\x00b\x1b[31m", "</script>"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_experts_are_all_in_use(load_demo: Any) -> None:
    """A router that ignores experts would leave nothing to route."""
    model, tokenizer = load_demo("moe", "bfloat16")
    used: dict[str, Counter[int]] = {}
    handles = [
        m.register_forward_hook(
            lambda mod, a, out, p=p: used.setdefault(p, Counter()).update(out[2].flatten().tolist())
        )
        for p, m in model.named_modules()
        if p.endswith("mlp.gate")
    ]
    for d in islice(documents(31), 20):
        logits_of(model, [tokenizer(d)["input_ids"]])
    for handle in handles:
        handle.remove()
    assert len(used) == 4
    for counts in used.values():
        assert len(counts) == 8
        assert max(counts.values()) < 0.6 * sum(counts.values())


def test_import_loads_no_torch() -> None:
    code = "import sys, detdiag.demo; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
