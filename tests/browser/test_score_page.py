"""The score's page in a real browser: figures, widths, dark, no network, hostile text, axe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detdiag.score.compare import compare
from detdiag.score.gate import Question
from detdiag.score.html import render_html
from detdiag.score.sample import sample_of
from detdiag.score.score import score
from detdiag.score.words import with_words
from tests.score.make import observed

DRAWN = "['drawn', 'failed'].includes(document.documentElement.dataset.figures)"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def _score(hostile: bool) -> dict[str, Any]:
    bad = HOSTILE if hostile else ""
    runs = [
        observed(f"prompt {i}{bad}", f"{t}{bad}", batch_size=b, repeat=n, row=0, tokens=[7, ord(t)])
        for i in range(9)
        for b in (1, 8)
        for n, t in enumerate("aaab" * 3 if i % 3 == 0 and b == 8 else "aaaa" * 3)
    ]
    found = score(sample_of(runs), Question(0.9), target={"name": f"model{bad}"})
    found["compare"] = compare(found, found)
    return with_words(found)


Open = Callable[..., tuple[Any, list[str], list[str]]]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts: list[Any] = []

    def opened(
        *, width: int = 1280, scheme: str = "light", lang: str = "en", hostile: bool = False
    ) -> tuple[Any, list[str], list[str]]:
        path = tmp_path / "score.html"
        path.write_text(render_html(_score(hostile), lang=lang), "utf-8")
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN, timeout=30_000)
        return page, said, [u for u in asked if not u.startswith(("file:", "data:", "blob:"))]

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_the_page_is_drawn_offline_and_never_scrolls_sideways(
    open_page: Open, width: int, scheme: str, hostile: bool
) -> None:
    page, said, asked = open_page(width=width, scheme=scheme, hostile=hostile)
    assert page.evaluate("document.documentElement.dataset.figures") == "drawn"
    assert said == [] and asked == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.title() != "owned"
    plots = page.locator(".plot")
    assert plots.count() == 4
    for index in range(4):
        box = plots.nth(index).bounding_box()
        assert box["height"] > 100 and box["width"] > 200


def test_print_is_light_and_opens_every_table(open_page: Open) -> None:
    page, _, _ = open_page(scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    tables = page.locator("table")
    assert all(tables.nth(i).is_visible() for i in range(tables.count()))


@pytest.mark.parametrize(("lang", "scheme"), [("en", "light"), ("zh", "dark")])
def test_axe_finds_no_serious_violation(open_page: Open, axe: str, lang: str, scheme: str) -> None:
    page, _, _ = open_page(lang=lang, scheme=scheme)
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [], [(v["id"], v["nodes"][0]["html"]) for v in serious]
