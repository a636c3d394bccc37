from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import LOWERCASE, TEMPLATE, tensors, tokenizer, write_model

from detdiag.fingerprint.collect import model_section
from detdiag.fingerprint.consequence import consequence
from detdiag.fingerprint.diff import diff_fingerprints
from detdiag.fingerprint.findings import fingerprint_findings
from detdiag.fingerprint.tokenizer import PROBES
from detdiag.fingerprint.values import compare_values, tensor_places
from detdiag.fingerprint.weightdiff import value_comparison


def compare(tmp_path: Path, mechanism: bool = True, **change: Any) -> dict[str, Any]:
    """Findings by rule of a plain model against one with a change; folders are a and b."""
    folders = write_model(tmp_path / "a"), write_model(tmp_path / "b", **change)
    a, b = map(model_section, folders)
    values = value_comparison(a, b, *folders)
    found = fingerprint_findings(a, b, mechanism=mechanism, values=values)
    return {finding.rule: finding for finding in found}


def test_equal_models_pass(tmp_path: Path) -> None:
    (finding,) = compare(tmp_path).values()
    assert finding.rule == "version.fingerprint-equal" and finding.outcome == "passed"


def test_one_ulp_in_one_tensor_is_named_and_proven(tmp_path: Path) -> None:
    weights = tensors()
    name = "model.layers.1.k.weight"
    weights[name][2, 3] = np.nextafter(weights[name][2, 3], np.float32(np.inf))
    found = compare(tmp_path, weights=weights)
    (finding,) = found.values()
    assert finding.rule == "version.weights-changed" and finding.proven and finding.mechanism
    assert f"1 tensor of 10 changed ({name})" in finding.summary
    assert "1 element differs by one ULP" in finding.summary
    assert finding.explains == ("weights_digest",)


def test_renamed_tensors_and_another_layout_are_equal_values(tmp_path: Path) -> None:
    weights = {f"base.{name}": value for name, value in tensors().items()}
    (finding,) = compare(tmp_path / "1", weights=weights).values()
    assert finding.outcome == "inconclusive" and not finding.mechanism
    assert "10 renamed with equal values" in finding.summary
    (a, b) = (write_model(tmp_path / "2"), write_model(tmp_path / "3", shards=3))
    (finding,) = fingerprint_findings(model_section(a), model_section(b), mechanism=True)
    assert finding.outcome == "passed" and "equal values in another layout" in finding.summary


def test_a_tied_copy_left_out_is_equal_values(tmp_path: Path) -> None:
    weights = tensors()
    weights["lm_head.weight"] = weights["model.layers.0.q.weight"].copy()
    (finding,) = compare(tmp_path, weights=weights).values()
    assert finding.outcome == "passed" and "a copy of another" in finding.summary


def test_another_dtype_is_said(tmp_path: Path) -> None:
    weights = tensors()
    weights["model.layers.0.q.weight"] = weights["model.layers.0.q.weight"].astype(np.float16)
    finding = compare(tmp_path, weights=weights)["version.weights-changed"]
    assert "1 of 10 in another format" in finding.summary and "F32 [4, 6] to F16" in finding.summary


def test_a_normaliser_that_changes_ids(tmp_path: Path) -> None:
    finding = compare(tmp_path, normalizer=LOWERCASE)["version.tokenizer-changed"]
    assert "the normaliser changed" in finding.summary and finding.proven
    text = "Hello, world!"
    ids = [tokenizer(n).encode(text).ids for n in (None, LOWERCASE)]
    assert ids[0] != ids[1]
    assert f"first {text!r}: {ids[0]}".replace(",", "") in finding.summary.replace(",", "")


def test_a_tokenizer_part_that_no_probe_sees_is_no_cause(tmp_path: Path) -> None:
    folders = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    made = tokenizer()
    made.add_tokens(["never-in-any-probe"])
    made.save(str(folders[1] / "tokenizer.json"))
    (finding,) = fingerprint_findings(*map(model_section, folders), mechanism=True)
    assert finding.outcome == "inconclusive" and not finding.mechanism
    assert f"the ids of all {2 * len(PROBES)} probes agree" in finding.summary


def test_reformatted_tokenizer_json_is_the_same_tokenizer(tmp_path: Path) -> None:
    folders = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    path = folders[1] / "tokenizer.json"
    import json

    path.write_text(json.dumps(json.loads(path.read_text())))
    (finding,) = fingerprint_findings(*map(model_section, folders))
    assert finding.outcome == "passed"


def test_template_white_space_with_and_without_consequence(tmp_path: Path) -> None:
    harmless = TEMPLATE.replace("{% if messages", "{%  if messages")
    finding = compare(tmp_path / "1", template=harmless)["version.template-changed"]
    assert finding.outcome == "inconclusive" and "white space in the template" in finding.summary
    harmful = TEMPLATE.replace("': '", "':  '")
    finding = compare(tmp_path / "2", template=harmful)["version.template-changed"]
    assert finding.outcome == "failed" and finding.proven
    assert "white space in the template" in finding.summary and "render" in finding.summary


def test_a_changed_default_system_prompt_is_named(tmp_path: Path) -> None:
    other = TEMPLATE.replace("be brief", "be kind")
    finding = compare(tmp_path, template=other)["version.template-changed"]
    assert "the default system prompt changed" in finding.summary and finding.proven


def test_generation_defaults(tmp_path: Path) -> None:
    change = {"do_sample": True, "temperature": 0.6}
    finding = compare(tmp_path, generation=change)["version.generation-config-changed"]
    assert finding.outcome == "failed" and "do_sample" in finding.summary
    rows = finding.data["fingerprint_diff"]
    assert {row["acts_on"] for row in rows} == {"config"}


def test_nothing_is_a_mechanism_in_a_case_folder(tmp_path: Path) -> None:
    weights = tensors()
    weights["model.norm.weight"] = weights["model.norm.weight"] * 2
    found = compare(tmp_path, mechanism=False, weights=weights)
    assert not any(f.mechanism or f.proven for f in found.values())
    assert found["version.weights-changed"].outcome == "failed"


FACTS: dict[str, Any] = {
    "python": "3.12.4",
    "library_versions": {"transformers": "4.57.1", "torch": "2.9.0"},
    "weights_digest": "sha256:1",
    "gpu": "L40S",
    "driver": "570.86",
    "tp": 1,
    "cpu": {"isa": ["avx2"]},
}


@pytest.mark.parametrize(
    ("path", "value", "rule", "outcome", "acts_on"),
    [
        ("library_versions.transformers", "5.3.0", "library", "failed", "input"),
        ("library_versions.torch", "2.10.0", "library", "failed", "operator"),
        ("gpu", "H200", "hardware", "failed", "operator"),
        ("driver", "580.1", "driver", "failed", "operator"),
        ("tp", 2, "parallelism", "failed", "operator"),
        ("cpu.isa", ["avx2", "avx512f"], "hardware", "failed", "operator"),
        ("weights_digest", "sha256:2", "weights", "failed", "version"),
        ("python", "3.12.5", "noted", "passed", "version"),
    ],
)
def test_plain_facts(path: str, value: Any, rule: str, outcome: str, acts_on: str) -> None:
    other = copy.deepcopy(FACTS)
    *parents, last = path.split(".")
    inner = other
    for key in parents:
        inner = inner[key]
    inner[last] = value
    (finding,) = fingerprint_findings(FACTS, other)
    assert (finding.rule, finding.outcome) == (f"version.{rule}-changed", outcome)
    assert finding.data["fingerprint_diff"][0]["acts_on"] == acts_on


def test_a_fact_that_one_side_did_not_record_is_no_difference() -> None:
    other = {key: value for key, value in FACTS.items() if key != "gpu"}
    assert diff_fingerprints(FACTS, other) == ()
    fewer = {**FACTS, "library_versions": {"torch": "2.9.0"}}
    (row,) = diff_fingerprints(FACTS, fewer)
    assert row.field == "library_versions.transformers" and row.b == "(absent)"


def test_gravest_first_and_inert_last() -> None:
    other = {**FACTS, "python": "3.13", "weights_digest": "sha256:2", "driver": "580"}
    rows = diff_fingerprints(FACTS, other)
    assert [row.field for row in rows] == ["weights_digest", "driver", "python"]


KEYS = st.sampled_from(
    ["weights", "tokenizer", "chat_template", "weights_digest", "tokenizer_digest", "tensors",
     "template_digest", "behaviour", "ids", "texts", "renders", "default", "files", "parts", "x"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats()
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
FACT_OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)


@settings(max_examples=120, deadline=None)
@given(FACT_OBJECTS, FACT_OBJECTS)
def test_any_json_object_is_comparable(a: dict, b: dict) -> None:
    fingerprint_findings(a, b, mechanism=True)
    if "nan" not in repr(a):
        assert diff_fingerprints(a, a) == ()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ulp_distance_against_nextafter(tmp_path: Path, dtype: str) -> None:
    from safetensors.numpy import save_file

    a = np.array([1.0, -2.5, 0.0, 3.0, -0.0], dtype)
    b = a.copy()
    for _ in range(3):
        b[1] = np.nextafter(b[1], np.array(np.inf, dtype))
    b[2] = np.nextafter(b[2], np.array(-1, dtype))
    b[4] = 0.0
    for folder, value in (("a", a), ("b", b)):
        (tmp_path / folder).mkdir()
        save_file({"w": value}, tmp_path / folder / "model.safetensors")
    places = [tensor_places(tmp_path / folder) for folder in ("a", "b")]
    (found,) = compare_values(*places, ["w"])
    assert (found.changed, found.max_ulp, found.elements) == (3, 3, 5)
    assert found.max_abs == pytest.approx(float(np.abs(a - b).max()), rel=0)


def test_ulp_distance_in_bfloat16(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    a = torch.linspace(-3, 3, 64, dtype=torch.bfloat16)
    b = a.clone()
    b[5] = torch.nextafter(b[5], torch.tensor(10.0, dtype=torch.bfloat16))
    for folder, value in (("a", a), ("b", b)):
        (tmp_path / folder).mkdir()
        save_file({"w": value}, tmp_path / folder / "model.safetensors")
    (found,) = compare_values(*(tensor_places(tmp_path / f) for f in "ab"), ["w"])
    assert (found.changed, found.max_ulp) == (1, 1)
    assert found.max_abs == (a[5] - b[5]).abs().item()


def test_severity_table_places_what_explains_bits() -> None:
    for field, layer, effect in (
        ("threads.cpus", "operator", "bits"),
        ("environment.CUBLAS_WORKSPACE_CONFIG", "operator", "bits"),
        ("environment.VLLM_BATCH_INVARIANT", "batch", "bits"),
        ("environment.TOKENIZERS_PARALLELISM", "version", "inert"),
        ("library_versions.tokenizers", "input", "tokens"),
        ("generation_config.temperature", "config", "text"),
        ("config.dtype", "operator", "bits"),
        ("tokenizer.config.add_bos_token", "input", "tokens"),
        ("created", "version", "inert"),
    ):
        found = consequence(field)
        assert (found.acts_on, found.effect) == (layer, effect), field
