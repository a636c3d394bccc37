"""Pages and texts: complete in both languages, and harmless with hostile text."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from string import Formatter
from typing import Any

import pytest

from detdiag.score import plots, words
from detdiag.score.compare import compare
from detdiag.score.gate import Question
from detdiag.score.html import render_html
from detdiag.score.sample import sample_of
from detdiag.score.score import score
from detdiag.score.write import render
from tests.score.make import observed, solo

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m| `x` ![](http://evil) {{7*7}}"


def _score(hostile: bool = False) -> dict[str, Any]:
    bad = HOSTILE if hostile else ""
    runs = [
        observed(f"p{i}{bad}", f"{t}{bad}", batch_size=b, repeat=n, row=0, tokens=[i, ord(t)])
        for i in range(4)
        for b in (1, 4)
        for n, t in enumerate("aaab" if i == 0 and b == 4 else "aaaa")
    ]
    made = score(
        sample_of(runs), Question(0.9), target={"name": f"m{bad}"}, method={"command": bad}
    )
    return words.with_words(made)


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_is_well_formed_offline_and_strict(lang: str) -> None:
    page = Parsed(render_html(_score(), lang=lang, plotly="none"))
    assert page.open == []
    assert not any(tag == "script" for tag, _ in page.tags)
    links = [a.get("href") or a.get("src") or "" for _, a in page.tags]
    assert all(link.startswith("#") or not link for link in links)
    ids = {a["id"] for _, a in page.tags if "id" in a}
    assert {link[1:] for link in links if link} <= ids


def test_the_figures_are_in_the_page_with_their_policy() -> None:
    page = render_html(_score())
    specs = json.loads(re.search(r'id="figure-data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert [s["id"] for s in specs] == ["prompts-plot", "conditions-plot", "survival-plot"]
    assert "script-src 'sha256-" in unescape(page)
    assert len(page) < 2_600_000
    assert page == render_html(_score())


@pytest.mark.parametrize("kind", ["html", "md", "json", "text"])
def test_hostile_text_is_harmless(kind: str) -> None:
    text = render(_score(hostile=True), kind, plotly="none")
    assert "\x1b" not in text and "\u202e" not in text
    if kind == "html":
        assert "<script>" not in text and "<img" not in text
        assert Parsed(text).open == []
    if kind == "md":
        assert "![](" not in text.replace("\\!\\[\\]", "").replace("```", "")[:0] + re.sub(
            r"```.*?```|````.*?````", "", text, flags=re.S
        )


def test_hostile_text_in_the_figures_is_no_markup() -> None:
    figure = plots.by_prompt(_score(hostile=True), words.speaker("en"))
    assert figure is not None
    assert "<script>" not in json.dumps(figure.to_plotly_json())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_text_says_deterministic(lang: str) -> None:
    for texts in words.catalogue().values():
        assert "deterministic" not in texts["en"].lower()
        assert "确定性" not in texts["zh"]
    assert "deterministic" not in render(_score(), "text", lang=lang)


def test_both_languages_are_complete_and_take_the_same_fields() -> None:
    for key, texts in words.catalogue().items():
        assert set(texts) == {"en", "zh"} and all(texts.values()), key
        fields = {
            lang: {name for _, name, _, _ in Formatter().parse(text) if name}
            for lang, text in texts.items()
        }
        extra = {"unit_word", "unit"} if key.startswith("survival") else set()
        assert fields["en"] - extra == fields["zh"] - extra, key


def test_every_key_that_the_code_names_exists() -> None:
    """Keys written out in the modules and the template, against both catalogues."""
    from pathlib import Path

    from detdiag.report import messages

    folder = Path(words.__file__).parent
    known = set(words.catalogue()) | set(messages.catalogue())
    named = set()
    for path in [*folder.glob("*.py"), *folder.glob("templates/*.jinja")]:
        text = path.read_text("utf-8")
        named |= set(re.findall(r'say\(\s*"([a-z_]+\.[a-z_.]+)"', text))
        named |= set(re.findall(r'"(limit\.[a-z_]+)"', text))
        named |= set(re.findall(r'"(head\.[a-z_]+)"', text))
    assert len(named) > 40
    assert named <= known


def test_plots_show_the_numbers_of_the_score() -> None:
    found, say = _score(), words.speaker("en")
    prompts = plots.by_prompt(found, say).to_plotly_json()  # type: ignore[union-attr]
    assert prompts["data"][0]["y"][0] == "p0"
    # p0: solo 1, batch 1/2 (3 of 6 pairs), between 3/4: mean (1 + 1/2 + 2 * 3/4) / 4.
    assert prompts["data"][0]["x"][0] == pytest.approx(0.75)
    assert prompts["data"][1]["x"][0] == 1.0 and prompts["data"][2]["x"][0] == 0.5
    between = plots.by_condition(found, say).to_plotly_json()["data"][0]  # type: ignore[union-attr]
    assert list(between["x"]) == pytest.approx([1.0, 0.875, 0.9375])
    curve = plots.survival(found, say).to_plotly_json()["data"][0]  # type: ignore[union-attr]
    # Tokens [i, t]: all pairs share the first; of 4 prompts one loses a quarter at the second.
    assert list(curve["x"]) == [0, 2] and list(curve["y"]) == pytest.approx([1.0, 0.9375])


def test_pages_without_figures_do_not_break() -> None:
    for runs in ([], [observed("p", "a")], [observed("p", "")], solo({"p": ["a", "a"]})):
        found = words.with_words(score(sample_of(runs), Question(0.9)))
        found["compare"] = compare(found, found)
        for kind in ("html", "md", "text", "json"):
            assert render(found, kind)


def test_before_and_after_are_drawn_side_by_side() -> None:
    found, say = _score(), words.speaker("en")
    assert plots.before_after(found, say) is None
    before = _score()
    for row in before["prompts"]:
        row["agreement"] = 0.25
    found["compare"] = compare(before, found)
    drawn = plots.before_after(found, say).to_plotly_json()["data"]  # type: ignore[union-attr]
    assert list(drawn[1]["x"]) == [0.25] * 4
    assert sorted(drawn[2]["x"]) == [0.75, 1.0, 1.0, 1.0]
    page = Parsed(render_html(found, plotly="none"))
    assert page.open == [] and any(a.get("id") == "compare" for _, a in page.tags)
