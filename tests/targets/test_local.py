"""The local target against transformers called directly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from detdiag.demo import demo_path
from detdiag.errors import DetdiagError
from detdiag.targets.local import LocalTarget, Prompt, load_local
from detdiag.targets.padding import pad_rows
from tests.probes import tiny

ROWS = [(5, 6, 7, 8, 9), (11, 12, 13)]


@pytest.fixture(scope="module")
def demo() -> LocalTarget:
    return load_local(demo_path("dense"))


def test_padding_positions_are_those_of_generate() -> None:
    batch = pad_rows(ROWS, pad_id=0, side="left", padded_length=6)
    assert batch.input_ids.tolist() == [[0, 5, 6, 7, 8, 9], [0, 0, 0, 11, 12, 13]]
    assert batch.position_ids.tolist() == [[0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 1, 2]]
    assert [batch.input_ids[i, batch.real(i)].tolist() for i in (0, 1)] == [list(r) for r in ROWS]


@pytest.mark.parametrize(("rows", "length"), [([()], None), ([(1, 2, 3)], 2), ([], None)])
def test_padding_refuses(rows: list[tuple[int, ...]], length: int | None) -> None:
    with pytest.raises(ValueError):
        pad_rows(rows, pad_id=0, padded_length=length)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_unpadded_forward_is_the_bare_call(kind: str) -> None:
    made = tiny.target(kind)
    ids = torch.tensor([ROWS[0]])
    with torch.no_grad():
        plain = made.model(ids).logits[0]
    assert torch.equal(made.forward([ROWS[0]])[0], plain)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_padding_does_not_change_what_a_row_means(kind: str, side: str) -> None:
    made = tiny.target(kind)
    padded = made.forward(ROWS, padding_side=side, padded_length=9)  # type: ignore[arg-type]
    for row, logits in zip(ROWS, padded, strict=True):
        assert logits.shape == (len(row), tiny.VOCAB)
        assert torch.allclose(logits, made.forward([row])[0], atol=1e-4)


def test_generate_is_the_librarys(demo: LocalTarget) -> None:
    ids = demo.encode(Prompt("p", "The lighthouse"))
    made = demo.generate([ids], max_new_tokens=8, do_sample=False)[0]
    with torch.no_grad():
        plain = demo.model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=demo.pad_id,
        )[0, len(ids) :].tolist()
    assert list(made.token_ids) == plain[: len(made.token_ids)]
    assert made.step_logits.shape[0] == len(made.token_ids)
    assert made.step_logits.argmax(-1).tolist() == list(made.token_ids)


def test_generation_stops_at_end_of_text(demo: LocalTarget) -> None:
    ids = demo.encode(Prompt("p", "The"))
    first = demo.generate([ids], max_new_tokens=3, do_sample=False)[0].token_ids[1]
    made = demo.generate([ids], max_new_tokens=3, do_sample=False, eos_token_id=int(first))[0]
    assert (made.token_ids[-1], len(made.token_ids), made.finish_reason) == (first, 2, "stop")


def test_beams_take_logits_of_the_kept_sequence() -> None:
    demo = load_local(demo_path("dense"), dtype="float32")
    ids = demo.encode(Prompt("p", "The lighthouse"))
    made = demo.generate([ids], max_new_tokens=4, do_sample=False, num_beams=3)[0]
    row = (*ids, *made.token_ids[:-1])
    forced = demo.forward([row])[0][len(ids) - 1 :]
    assert torch.allclose(made.step_logits, forced.float(), atol=1e-3)


def test_users_arguments_decide_whether_it_samples() -> None:
    made = tiny.target()
    assert not made.samples()
    assert made.samples(do_sample=True)
    made.generate_kwargs = {"generation_config": {"do_sample": True, "temperature": 0.5}}
    assert made.samples()
    assert made.effective_generation().temperature == 0.5


def test_fresh_model_has_old_state_and_shares_weights() -> None:
    made = tiny.target()
    made.model.register_buffer("count", torch.zeros(()), persistent=False)
    made.remember()
    made.model.count += 5
    fresh = made.fresh_model()
    assert fresh is not None
    assert float(fresh.count) == 0.0
    assert fresh.lm_head.weight is made.model.lm_head.weight


def test_nothing_is_seeded() -> None:
    made = tiny.target()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    made.forward([ROWS[0]])
    made.generate([ROWS[0]], max_new_tokens=2, do_sample=False)
    assert torch.equal(before, torch.get_rng_state())


def test_planted_training_mode_survives_loading() -> None:
    made = tiny.target()
    made.model.model.layers[0].train()
    again = tiny.around(made.model)
    assert again.model.model.layers[0].training


def test_chat_needs_a_template() -> None:
    made = tiny.target()
    prompt = Prompt("c", None, ({"role": "user", "content": "hi"},))
    with pytest.raises(DetdiagError, match="no chat template"):
        made.encode(prompt)


@pytest.mark.parametrize(
    ("where", "words"),
    [("empty", "config.json is missing"), ("gone", "not a model folder")],
)
def test_folders_without_a_model(tmp_path: Path, where: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DetdiagError, match=words):
        load_local(tmp_path / where)


def test_hub_id_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DetdiagError) as caught:
        load_local("nobody/nothing-here")
    assert "\n" not in str(caught.value)


def test_broken_weights_are_one_line(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(demo_path("dense"), folder)
    (folder / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(DetdiagError) as caught:
        load_local(folder)
    assert "load the model" in caught.value.message
    assert "\n" not in str(caught.value)


def test_unknown_dtype_suggests() -> None:
    with pytest.raises(DetdiagError, match="bfloat16"):
        load_local(demo_path("dense"), dtype="bfloat15")


def test_dtype_is_the_checkpoints_own(demo: LocalTarget) -> None:
    assert demo.dtype == str(demo.model.dtype).removeprefix("torch.")
    assert load_local(demo_path("dense"), dtype="bf16").dtype == "bfloat16"
