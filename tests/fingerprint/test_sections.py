from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from models import TEMPLATE, tokenizer, write_model

from detdiag.fingerprint.collect import model_section
from detdiag.fingerprint.environment import cpu_facts, environment_section, library_versions
from detdiag.fingerprint.template import MESSAGES, TOOLS, render
from detdiag.fingerprint.tokenizer import PROBES, tokenizer_section

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some CPU @ 2.00GHz
stepping\t: 8
flags\t\t: fpu vme avx2 fma avx512f amx_tile amx_bf16 secret_flag
"""


def test_probe_ids_are_those_of_the_tokenizers_library(tmp_path: Path) -> None:
    section = tokenizer_section(write_model(tmp_path))
    made = tokenizer()
    assert section["behaviour"]["ids"] == [made.encode(text).ids for text in PROBES]
    plain = [made.encode(text, add_special_tokens=False).ids for text in PROBES]
    assert section["behaviour"]["ids_plain"] == plain


def test_a_broken_tokenizer_says_so_without_ids(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Nope"}}))
    assert "unavailable" in tokenizer_section(tmp_path)["behaviour"]


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{%- for m in messages %}\n    {{- m.content | trim }}\n{%- endfor %}",
        "{{ tools | tojson(indent=2) if tools else 'none' }}{{ bos_token }}",
        "{% if add_generation_prompt %}go{% endif %}{% for m in messages %}"
        "{% if loop.index > 2 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    ],
)
def test_renders_are_those_of_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for tools in (None, list(TOOLS)):
        rendered, _ = render_jinja_template(
            [[dict(m) for m in MESSAGES]], tools=tools, chat_template=template,
            add_generation_prompt=True, bos_token="<s>",
        )  # fmt: skip
        assert render(template, {"bos_token": "<s>"}, tools=tools) == rendered[0]
    assert transformers.__version__


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('no') }}",
        "{% for a in range(99999999) %}x{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% broken",
    ],
)
def test_a_hostile_template_is_an_error_not_an_escape(template: str) -> None:
    assert set(render(template, {})) == {"error"}


def test_a_template_that_reads_the_clock_is_marked(tmp_path: Path) -> None:
    folder = write_model(tmp_path, template="{{ strftime_now('%d %b %Y') }}")
    found = model_section(folder)["chat_template"]["renders"]["default"]
    assert found["reads_clock"] and found["chat"] == "04 Mar 2031"


def test_cpu_facts_and_the_isa_allow_list() -> None:
    found = cpu_facts(CPUINFO)
    assert found["model"] == "Some CPU @ 2.00GHz" and found["family"] == "6/143/8"
    assert found["isa"] == ["amx_bf16", "amx_tile", "avx2", "avx512f", "fma"]
    assert cpu_facts("").get("isa") is None


def test_environment_reads_the_allow_list_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    section = environment_section()
    assert section["environment"]["MKL_CBWR"] == "AVX2"
    assert "sk-secret" not in json.dumps(section)
    assert library_versions()["transformers"] == transformers.__version__


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_any_template_text_renders_or_errs(text: str) -> None:
    assert isinstance(render(text, {}), (str, dict))


def test_the_fingerprint_needs_no_code_of_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "modeling_x.py").write_text("raise SystemExit('executed')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    found = model_section(folder)
    assert list(found["model_code"]) == ["modeling_x.py"]
