from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.probes.input import InputProbe
from detdiag.probes.interface import Plan, ProbeContext
from detdiag.targets.local import LocalTarget
from detdiag.targets.prompts import Prompt

PLAIN = "{{ bos_token }}{% for m in messages %}{{ m['role'] + ' ' + m['content'] }}{% endfor %}"
VOCAB = [*"abcdefghijklmnopqrstuvwxyz0123456789:", "user", "<s>", "[UNK]", "\ufeff"]


def make_tokenizer(template: str = PLAIN, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCAB)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if adds_bos:
        bos = VOCAB.index("<s>")
        made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", bos)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token=None, unk_token="[UNK]"
    )
    tokenizer.chat_template = template
    return tokenizer


def target_of(tokenizer: Any, *prompts: Prompt) -> LocalTarget:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=len(VOCAB), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data.mul_(20)
    return LocalTarget("tiny", None, model, tokenizer, "cpu", "float32", prompts)


def chat(text: str) -> Prompt:
    return Prompt("p1", None, ({"role": "user", "content": text},))


def findings(target: LocalTarget, **scratch: Any) -> tuple[dict[str, Finding], list[Any]]:
    context = ProbeContext(target, Plan(max_new_tokens=8), time.monotonic() + 60, dict(scratch))
    events = list(InputProbe().run(context))
    return {e.rule: e for e in events if isinstance(e, Finding)}, events


def test_a_plain_template_repeats() -> None:
    found, _ = findings(target_of(make_tokenizer(), chat("abc")))
    assert found["input.bytes-differ"].outcome == "passed"
    assert not any(f.outcome == "failed" for f in found.values())


def test_the_call_that_would_double_the_bos_is_noted_but_not_blamed() -> None:
    found, _ = findings(target_of(make_tokenizer(), chat("abc")))
    assert found["input.doubled-bos"].outcome == "passed"
    found, _ = findings(target_of(make_tokenizer(adds_bos=False), chat("abc")))
    assert "input.doubled-bos" not in found


@pytest.mark.parametrize("layout", ["%H:%M:%S", "%H:%M:%S.%f"])
def test_a_clock_in_the_template_is_caught_in_the_act(layout: str) -> None:
    template = "{{ strftime_now('" + layout + "') }}" + PLAIN
    found, _ = findings(target_of(make_tokenizer(template), chat("abc")))
    finding = found["input.volatile-content"]
    assert finding.proven and "repeat" in finding.explains and "clock" in finding.summary


def test_a_date_in_the_template_is_a_warning_only() -> None:
    template = "{{ strftime_now('%d %b %Y') }}" + PLAIN
    found, _ = findings(target_of(make_tokenizer(template), chat("abc")))
    assert found["input.bytes-differ"].outcome == "passed"
    assert found["input.template-reads-clock"].outcome == "inconclusive"


def test_text_that_carries_its_own_bos() -> None:
    found, _ = findings(target_of(make_tokenizer(), Prompt("p1", "<s>abc")))
    finding = found["input.doubled-bos"]
    assert finding.outcome == "failed" and not finding.mechanism


def write_pair(folder: Path, *bodies: Any) -> tuple[Path, Path]:
    paths = folder / "request_a.json", folder / "request_b.json"
    for path, body in zip(paths, bodies, strict=True):
        path.write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")
    return paths


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def test_a_bom_in_one_request_is_proven_by_running_both(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, body("abc"), body("\ufeffabc"))
    found, events = findings(target_of(make_tokenizer(), chat("abc")), requests=pair)
    finding = found["input.bytes-differ"]
    assert finding.outcome == "failed" and finding.proven and finding.mechanism
    assert "U+FEFF" in finding.summary
    runs = [e for e in events if isinstance(e, Observation)]
    assert [o.factors["client"] for o in runs] == ["request_a.json", "request_b.json"] * 2
    assert any(isinstance(e, tuple) and e[0] == "input_diff" for e in events)


def test_inert_and_untokenised_differences_are_not_blamed(tmp_path: Path) -> None:
    target = target_of(make_tokenizer(), chat("abc"))
    found, events = findings(target, requests=write_pair(tmp_path, body("a"), body("a", user="u")))
    assert not any(f.outcome == "failed" for f in found.values())
    # Both words are unknown to the vocabulary: other bytes, the same ids.
    found, events = findings(target, requests=write_pair(tmp_path, body("\u00e9"), body("\u00e8")))
    assert found["input.bytes-differ"].outcome == "inconclusive"
    assert not any(isinstance(e, Observation) for e in events)
