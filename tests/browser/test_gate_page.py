"""The gate's page in a browser, in both languages: readable on a phone, quiet, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detdiag.report import render
from tests.gate.test_formats import judged


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_gate_is_on_the_page_and_nothing_scrolls_sideways(
    browser: Any, tmp_path: Path, lang: str, width: int
) -> None:
    path = tmp_path / "gate.html"
    path.write_text(render(judged(), "html", plotly="none", lang=lang), "utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    box = page.locator("#checklist")
    assert "NO-GO" in box.inner_text() and "2026-12-31" in box.inner_text()
    assert box.locator("tbody tr").count() >= 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-Hans"}[lang]
    assert said == [] and [u for u in asked if not u.startswith(("file:", "data:"))] == []
    context.close()


def test_axe_finds_nothing_serious_on_the_gate(browser: Any, axe: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.html"
    path.write_text(render(judged(), "html", plotly="none", lang="zh"), "utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [v["id"] for v in found if v["impact"] in ("serious", "critical")]
    assert serious == [], serious
    page.close()
