"""The report in a real browser: figures, widths, dark, print, no scripts, hostile text, axe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detdiag.report import render
from tests.report.samples import sample

NAMES = ("batch-confirmed", "moe-router-tie", "hostile")
DRAWN = "['drawn', 'failed'].includes(document.documentElement.dataset.figures)"


class Opened:
    """A page with everything it said and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def network(self) -> list[str]:
        return [u for u in self.requests if not u.startswith(("file:", "data:", "blob:"))]


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts: list[Any] = []

    def opened(
        name: str,
        *,
        width: int = 1280,
        scripts: bool = True,
        scheme: str = "light",
        plotly: str = "embed",
        lang: str = "en",
    ) -> Opened:
        path = tmp_path / f"{name}-{plotly}-{lang}.html"
        path.write_text(render(sample(name), "html", plotly=plotly, lang=lang), "utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        made = Opened(context.new_page())
        made.page.goto(path.as_uri())
        if scripts and plotly == "embed":
            made.page.wait_for_function(DRAWN, timeout=30_000)
        return made

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_offline_and_the_page_never_scrolls_sideways(
    open_page: Open, name: str, width: int, scheme: str
) -> None:
    opened = open_page(name, width=width, scheme=scheme)
    page = opened.page
    assert page.evaluate("document.documentElement.dataset.figures") == "drawn"
    assert opened.console == []
    assert opened.network() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator(".plot")
    assert plots.count() >= 2
    for index in range(plots.count()):
        box = plots.nth(index).bounding_box()
        assert box["height"] > 150 and box["width"] > 200
        assert plots.nth(index).locator("svg.main-svg").count() >= 1
    assert page.title() != "owned"


@pytest.mark.parametrize("name", NAMES)
def test_everything_can_be_read_without_scripts(open_page: Open, name: str) -> None:
    opened = open_page(name, scripts=False, width=360)
    page = opened.page
    report = sample(name)
    assert page.locator("h1").inner_text()
    assert page.locator(".plot").first.is_hidden()
    assert page.locator("noscript p").count() or page.get_by_text("needs JavaScript").count()
    closed = page.locator("details:not([open]) > summary")
    while closed.count():
        closed.first.click(timeout=5_000)
    visible = page.locator("main").inner_text()
    for layer in report["layers"]:
        for finding in layer["findings"]:
            assert finding["rule"] in visible
    tables = page.locator("table")
    assert all(tables.nth(i).is_visible() for i in range(tables.count()))
    assert page.locator("a[download]").get_attribute("href").startswith("data:application/gzip")


def test_the_evidence_link_downloads_without_scripts(open_page: Open, tmp_path: Path) -> None:
    import gzip
    import json

    page = open_page("batch-confirmed", scripts=False).page
    with page.expect_download() as waiting:
        page.locator("a[download]").click()
    waiting.value.save_as(tmp_path / "evidence.json.gz")
    raw = gzip.decompress((tmp_path / "evidence.json.gz").read_bytes())
    assert json.loads(raw) == sample("batch-confirmed")


@pytest.mark.parametrize("plotly", ["embed", "none"])
def test_hostile_text_stays_text(open_page: Open, plotly: str) -> None:
    opened = open_page("hostile", plotly=plotly)
    page = opened.page
    assert page.title() != "owned" and opened.console == [] and opened.network() == []
    assert page.locator("img").count() == 0
    scripts = page.locator("script").count()
    assert scripts == (0 if plotly == "none" else 3)
    assert "</script><script>" in page.locator("h1").inner_text()
    assert page.locator(".plot script, .plot img").count() == 0


def test_print_opens_every_disclosure_even_without_scripts(open_page: Open) -> None:
    page = open_page("batch-confirmed", scripts=False).page
    page.emulate_media(media="print")
    closed = page.locator("details.layer:not([open]) .body")
    assert closed.count() >= 3
    for index in range(closed.count()):
        assert closed.nth(index).is_visible()
        assert closed.nth(index).bounding_box()["height"] > 20
    assert page.locator("nav.toc").is_hidden() and page.locator("textarea").is_hidden()
    assert page.locator("pre.print-only").is_visible()
    assert page.locator("body").evaluate("e => getComputedStyle(e).color") == "rgb(0, 0, 0)"


def test_dark_mode_changes_the_ground_and_the_figure_text(open_page: Open) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page = open_page("batch-confirmed", scheme=scheme).page
        seen[scheme] = (
            page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"),
            page.locator(".plot text.xtitle").first.evaluate("e => getComputedStyle(e).fill"),
        )
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


def test_the_keyboard_reaches_the_verdict_first(open_page: Open) -> None:
    page = open_page("batch-confirmed", plotly="none").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_url("**#verdict", timeout=10_000)


def test_figures_that_cannot_be_drawn_leave_a_note_and_the_tables(open_page: Open) -> None:
    opened = open_page("batch-confirmed")
    html = opened.page.content()
    assert 'id="figure-note"' in html
    broken = render(sample("batch-confirmed"), "html").replace("H4sI", "XXXX")
    path = Path(opened.page.url.removeprefix("file://")).with_name("broken.html")
    path.write_text(broken, "utf-8")
    opened.page.goto(path.as_uri())
    opened.page.wait_for_function(DRAWN)
    assert opened.page.evaluate("document.documentElement.dataset.figures") == "failed"
    assert opened.page.locator("#figure-note").is_visible()
    assert opened.page.locator(".plot").first.is_hidden()


@pytest.mark.parametrize(
    ("name", "scheme", "lang"),
    [
        ("batch-confirmed", "light", "en"),
        ("moe-router-tie", "dark", "zh"),
        ("inconclusive-confounded", "light", "en"),
        ("clean", "dark", "en"),
    ],
)
def test_axe_finds_no_serious_violation(
    open_page: Open, axe: str, name: str, scheme: str, lang: str
) -> None:
    figures = "embed" if name in NAMES else "none"
    page = open_page(name, scheme=scheme, plotly=figures, lang=lang).page
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(r => r.violations)")
    told = [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
    assert [v for v in told if v[1] in ("serious", "critical")] == []
