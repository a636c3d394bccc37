from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import detdiag.report
from detdiag.errors import DetdiagError
from detdiag.layers import LAYERS
from detdiag.report.messages import LANGS, catalogue, speaker
from detdiag.report.model import CLUMPS

PACKAGE = Path(detdiag.report.__file__).parent
SOURCES = "\n".join(
    path.read_text("utf-8")
    for pattern in (
        "report/**/*.py",
        "report/**/*.jinja",
        "gate/*.py",
        "audit/text.py",
        "commands/explain.py",
    )
    for path in sorted(PACKAGE.parent.glob(pattern))
)


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_key_has_every_language_with_the_same_fields() -> None:
    for key, texts in catalogue().items():
        assert set(texts) == set(LANGS), key
        assert all(texts[lang].strip() for lang in LANGS), key
        assert len({frozenset(_fields(texts[lang])) for lang in LANGS}) == 1, key


def test_chinese_is_chinese() -> None:
    same_on_purpose = {"head.ci95", "head.a", "head.b", "glossary.ulp.word"}
    for key, texts in catalogue().items():
        if key not in same_on_purpose:
            assert re.search("[\u4e00-\u9fff]", texts["zh"]) or key == "lang.id", key
        assert not re.search("[\u4e00-\u9fff]", texts["en"]), key


def test_every_key_that_code_asks_for_exists() -> None:
    asked = set(re.findall(r"""say\(\s*["']([a-z0-9_.]+)["']""", SOURCES))
    asked |= set(re.findall(r'\(\s*"(head\.[a-z0-9_]+)"', SOURCES))
    asked.discard("key")
    dotted = {key for key in asked if not key.endswith((".", "_"))}
    assert dotted - set(catalogue()) == set()
    assert len(dotted) > 120


def test_no_key_is_dead() -> None:
    asked = set(re.findall(r"""["']([a-z_]+\.[a-z0-9_.]+)["']""", SOURCES))
    built = set(re.findall(r"""["']([a-z_]+\.(?:[a-z]+_)?)["'{]""", SOURCES))
    suffix_built = {f"{id_}.title" for id_ in re.findall(r'^ +"([a-z_]+)",$', SOURCES, re.M)}
    suffix_built |= {key for key in catalogue() if re.match(r"glossary\.\w+\.(word|text)$", key)}

    def used(key: str) -> bool:
        return key in asked | suffix_built | {"yes", "no"} or any(
            key.startswith(head) for head in built
        )

    assert [key for key in catalogue() if not used(key)] == []


def test_words_for_every_state_and_layer() -> None:
    for state in CLUMPS:
        assert f"state.{state}" in catalogue() and f"layer_title.{state}" in catalogue()
    for layer in LAYERS:
        assert f"question.{layer}" in catalogue()


def test_unknown_language_is_one_clear_error() -> None:
    with pytest.raises(DetdiagError, match="unknown language 'fr'"):
        speaker("fr")
