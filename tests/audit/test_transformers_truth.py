"""The transformers rules against the installed library: merges, refusals, draws, ties."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from detdiag.audit import audit_files  # noqa: E402
from detdiag.audit.engines import Inputs, resolve  # noqa: E402
from detdiag.rules.versions import version_key  # noqa: E402

VERSION = transformers.__version__
FILES: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 0.6, "top_k": 20},
    {"do_sample": True, "top_k": 1},
    {"do_sample": False, "temperature": 0.6},
    {"do_sample": True, "num_beams": 2},
)
CALLS: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": False},
    {"do_sample": True},
    {"temperature": 0.0},
    {"do_sample": False, "temperature": 0.0},
    {"do_sample": True, "temperature": 0.3, "top_k": 5},
    {"num_beams": 3},
    {"top_k": 1},
)
OBJECTS: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"do_sample": False},
    {"temperature": 0.0},
    {"do_sample": True, "top_p": 0.9},
)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config).eval()


def with_file(model: Any, file: dict[str, Any]) -> Any:
    model.generation_config = transformers.GenerationConfig(**file, pad_token_id=0)
    return model


def files(file: dict[str, Any], call: dict[str, Any], passed: dict[str, Any] | None) -> Any:
    import json

    kwargs = {**call, **({} if passed is None else {"generation_config": passed})}
    shipped = {**file, "transformers_version": VERSION}
    return {
        "generation_config.json": json.dumps(shipped).encode(),
        "generate_kwargs.json": json.dumps(kwargs).encode(),
    }


@pytest.mark.parametrize(
    ("file", "call", "passed"), itertools.product(FILES, CALLS, OBJECTS), ids=lambda v: str(v)
)
def test_the_resolver_merges_as_the_library_does(
    model: Any, file: dict[str, Any], call: dict[str, Any], passed: dict[str, Any] | None
) -> None:
    given = None if passed is None else transformers.GenerationConfig(**passed)
    merged, _ = with_file(model, file)._prepare_generation_config(given, **call)
    key = version_key(VERSION)
    mine = resolve("hf", Inputs("hf.generate_kwargs", key, call=call, passed=passed, file=file))
    for name in ("do_sample", "temperature", "top_k", "top_p", "num_beams"):
        assert mine.params[name].value == getattr(merged, name), name
    mode = merged.get_generation_mode().value
    refused = merged.do_sample is True and not merged.temperature > 0
    if refused:
        assert mine.error
    else:
        assert (mine.decoding in ("sampling", "tie-sampling")) == ("sample" in mode), mode


@pytest.mark.parametrize("file", FILES, ids=str)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_findings_agree_with_what_generate_does(
    model: Any, file: dict[str, Any], call: dict[str, Any]
) -> None:
    """A refusal is reported exactly where generate raises, greedy exactly where it leaves the
    random generator alone."""
    found = {
        f.kind: f for f in audit_files(files(file, call, None), engine_version=VERSION).findings
    }
    ids = torch.tensor([[1, 2, 3]])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        with_file(model, file).generate(ids, max_new_tokens=4, **call)
    except ValueError:
        assert "unsupported_error" in found
        return
    assert "unsupported_error" not in found
    drew = not torch.equal(before, torch.get_rng_state())
    assert ("sampling_still_on" in found) == drew


def test_top_k_1_keeps_every_tied_maximum_and_argmax_takes_the_first() -> None:
    scores = torch.zeros(1, 50)
    scores[0, [7, 16, 30]] = 5.0
    kept = transformers.TopKLogitsWarper(top_k=1)(None, scores)
    assert torch.isfinite(kept).nonzero()[:, 1].tolist() == [7, 16, 30]
    probabilities = kept.softmax(-1)
    drawn = {int(torch.multinomial(probabilities, 1)) for _ in range(60)}
    assert drawn == {7, 16, 30}
    assert int(scores.argmax()) == 7


def test_penalties_move_greedy_decoding(model: Any) -> None:
    ids = torch.tensor([[1, 2, 3]])
    plain = with_file(model, {}).generate(ids, max_new_tokens=8)
    penalised = with_file(model, {"repetition_penalty": 5.0}).generate(ids, max_new_tokens=8)
    assert not torch.equal(plain, penalised)
    found = audit_files(
        files({"repetition_penalty": 5.0}, {"do_sample": False}, None), engine_version=VERSION
    ).findings
    assert ("unspecified_default", "repetition_penalty") in {(f.kind, f.subject) for f in found}


def test_the_pipeline_default_is_the_librarys() -> None:
    from detdiag.audit.engines.transformers import PIPELINE_DEFAULTS

    shipped = transformers.TextGenerationPipeline._default_generation_config
    for name, value in PIPELINE_DEFAULTS.items():
        assert getattr(shipped, name) == value


def test_sampling_fields_do_nothing_in_greedy_mode(model: Any) -> None:
    ids = torch.tensor([[4, 5]])
    plain = with_file(model, {}).generate(ids, max_new_tokens=6, do_sample=False)
    warm = with_file(model, {}).generate(
        ids, max_new_tokens=6, do_sample=False, temperature=0.7, top_p=0.5
    )
    assert torch.equal(plain, warm)
