"""The page: complete without scripts, inert, small, and the same every time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from detdiag.report import render
from detdiag.report.html import EVIDENCE_CAP_BYTES
from detdiag.report.messages import LANGS
from tests.report.samples import NAMES, sample

STRICT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements with their attributes, the text of each, and a check that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack:
            self.texts[self.stack[-1]][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


def page(name: str, **options: Any) -> str:
    return render(sample(name), "html", **{"plotly": "none", **options})


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_a_well_formed_page(name: str, lang: str) -> None:
    parsed = Page(page(name, lang=lang))
    assert parsed.all("html")[0]["lang"] == {"en": "en", "zh": "zh-Hans"}[lang]
    for tag in ("h1", "main", "footer", "header", "title"):
        assert len(parsed.all(tag)) == 1
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {attrs["href"] for attrs in parsed.all("a") if (attrs["href"] or "").startswith("#")}
    assert {t[1:] for t in targets if t} <= set(ids)
    assert len(parsed.all("caption")) == len(parsed.all("table")) - len(
        [t for t in parsed.all("table") if t.get("aria-labelledby")]
    )
    assert all(th.get("scope") in ("col", "row") for th in parsed.all("th"))


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_page_is_strict_small_and_has_no_script(name: str) -> None:
    text = page(name)
    parsed = Page(text)
    policy = [m["content"] for m in parsed.all("meta") if m.get("http-equiv")]
    assert policy == [STRICT]
    assert parsed.all("script") == [] and parsed.all("img") == []
    assert len(text.encode()) <= 300_000


@pytest.mark.parametrize("plotly", ["none", "embed"])
@pytest.mark.parametrize("name", ["batch-confirmed", "moe-router-tie", "hostile"])
def test_nothing_points_to_the_network(name: str, plotly: str) -> None:
    parsed = Page(page(name, plotly=plotly))
    for tag, attrs in parsed.elements:
        for key, value in attrs.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("src", "href", "action", "data-src"):
                assert (value or "").startswith(("#", "data:application/gzip;base64,")), value


@pytest.mark.parametrize("plotly", ["none", "embed", "cdn"])
def test_the_same_report_gives_the_same_bytes(plotly: str) -> None:
    for name in ("batch-confirmed", "moe-router-tie"):
        assert page(name, plotly=plotly) == page(name, plotly=plotly)


def test_key_order_of_the_input_does_not_matter_to_what_is_shown() -> None:
    report = sample("batch-confirmed")
    shuffled = dict(reversed(list(report.items())))
    cut = lambda text: re.sub(r"data:application/gzip[^\"]*|<code class=\"hash\">\w+", "", text)  # noqa: E731
    assert cut(render(report, "html", plotly="none")) == cut(
        render(shuffled, "html", plotly="none")
    )


def test_the_evidence_link_holds_the_report_and_its_hash() -> None:
    text = page("batch-confirmed")
    packed = re.search(r'href="data:application/gzip;base64,([^"]+)"', text)
    assert packed is not None
    raw = gzip.decompress(base64.b64decode(packed[1]))
    assert json.loads(raw) == sample("batch-confirmed")
    assert hashlib.sha256(raw).hexdigest() in text
    assert "4c0d" * 16 in text


def test_a_large_case_stays_under_the_cap_and_says_so() -> None:
    import random

    rng = random.Random(0)
    report = sample("batch-confirmed")
    report["margins"] = [
        {"query": f"q{i % 97}", "position": i, "token": f"t{rng.random()}", "flipped": False,
         "margin_logits": rng.random(), "margin_ulp": rng.random(), "noise_logits": rng.random()}
        for i in range(20_000)
    ]  # fmt: skip
    text = render(report, "html", plotly="none")
    assert len(text.encode()) <= 300_000
    assert "Long tables are cut in this download" in text
    packed = re.search(r"base64,([^\"]+)\"", text)
    assert packed is not None and len(packed[1]) <= EVIDENCE_CAP_BYTES
    assert "riskiest of 20000 positions" in text


def test_layers_come_in_clump_order_and_the_first_two_are_open() -> None:
    parsed = Page(page("batch-confirmed"))
    layers = [d for d in parsed.all("details") if (d.get("class") or "").startswith("layer ")]
    assert [(d["id"] or "").removeprefix("layer-") for d in layers] == [
        "batch", "decode", "config", "input", "operator", "version", "moe",
    ]  # fmt: skip
    assert ["open" in d for d in layers] == [True, True, False, False, False, False, False]


def test_the_ladder_draws_the_counts() -> None:
    text = page("batch-confirmed")
    bars = re.findall(r'class="fill" style="width:([\d.]+)%"', text)
    assert bars == ["100", "100", "95"]
    whiskers = re.findall(r'class="whisker" style="left:([\d.]+)%;width:([\d.]+)%"', text)
    assert whiskers[2] == ("76.39", "22.72")
    assert text.count("divergence stops here") == 1
    assert text.count('class="track untested"') == 2
    assert "Divergence goes from 19/20 to 0/20 at “batch pinned”." in text


@pytest.mark.parametrize("name", ["batch-confirmed", "moe-router-tie"])
def test_every_figure_has_a_table_and_a_finding(name: str) -> None:
    parsed = Page(page(name, plotly="embed"))
    specs = json.loads(parsed.texts["script"][0])
    assert specs
    plots = {d["id"]: d for d in parsed.all("div") if d.get("role") == "img"}
    assert {spec["id"] for spec in specs} == set(plots)
    ids = {attrs["id"] for _, attrs in parsed.elements if "id" in attrs}
    for plot in plots.values():
        assert plot["aria-labelledby"] in ids and plot["aria-describedby"] in ids
    assert "Every batch condition" in page(name) or name != "batch-confirmed"


def test_the_policy_allows_exactly_the_scripts_of_the_page() -> None:
    text = page("batch-confirmed", plotly="embed")
    parsed = Page(text)
    policy = next(m["content"] or "" for m in parsed.all("meta") if m.get("http-equiv"))
    loader, packed = parsed.texts["script"][-1], parsed.texts["script"][1]
    bundle = gzip.decompress(base64.b64decode(packed))
    hashes = re.findall(r"'sha256-([^']+)'", policy)
    expected = [
        base64.b64encode(hashlib.sha256(b).digest()).decode() for b in (loader.encode(), bundle)
    ]
    assert hashes == expected
    assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy


def test_without_figures_even_the_embedding_page_is_strict() -> None:
    assert page("clean", plotly="embed") == page("clean", plotly="none")


def test_cdn_is_opt_in_with_an_integrity_hash() -> None:
    parsed = Page(page("batch-confirmed", plotly="cdn"))
    block = next(s for s in parsed.all("script") if s.get("id") == "figure-data")
    assert re.fullmatch(r"https://cdn\.plot\.ly/plotly-[\d.]+\.min\.js", block["data-src"] or "")
    assert (block["data-integrity"] or "").startswith("sha256-")


def test_hostile_text_is_text() -> None:
    for plotly in ("none", "embed"):
        text = page("hostile", plotly=plotly)
        parsed = Page(text)
        assert len(parsed.all("script")) == (3 if plotly == "embed" else 0)
        assert parsed.all("img") == [] and len(parsed.all("style")) == 1
        hidden = set("\u202e\u202c\u200b\u2028\x1b\x00\r") | {chr(0xD800)}
        assert not hidden & set(text)
        assert "{{7*7}}" in text and "49" not in parsed.texts["h1"][0]
        assert "\\u202egnp.exe" in "".join(parsed.texts["h1"] + parsed.texts["span"])


def test_the_first_difference_is_marked_in_shape_not_only_colour() -> None:
    text = page("batch-confirmed")
    assert "<del>⟦and⟧</del>" in text and "<ins>⟦which⟧</ins>" in text
    assert "[290]" in text and "[543]" in text


def test_combining_marks_are_told_apart_in_the_input_diff() -> None:
    text = page("version-tokenizer")
    assert "cafe\\u0301" in text
    assert "café [U+00E9]" in text


def test_a_crashed_probe_and_a_confounding_are_told() -> None:
    crashed = page("probe-crashed")
    assert "probe crashed" in crashed and "out of memory at block 3" in crashed
    confounded = page("inconclusive-confounded")
    assert "gpu + tp" in confounded and "detdiag run --endpoint http://a100:8000" in confounded


def test_clean_is_not_signed_off_while_layers_are_untested() -> None:
    text = page("clean")
    assert "INCONCLUSIVE" in text
    assert "Not tested, so not signed off: config, input, batch, decode, moe, version." in text


def test_chinese_page_translates_the_sentence_and_keeps_the_prompts() -> None:
    text = page("batch-confirmed", lang="zh")
    assert "最可能的层：batch（已确认）：" in text
    assert sample("batch-confirmed")["verdict"]["sentence"] not in text
    assert "The capital of France" in text


def test_chinese_page_keeps_a_sentence_that_nobody_translated() -> None:
    report = sample("batch-confirmed")
    report["verdict"]["sentence"] = "Quite another sentence."
    text = render(report, "html", lang="zh", plotly="none")
    assert "最可能的层：batch（已确认）。" in text
    assert '<p lang="en">Quite another sentence.</p>' in text


def test_no_plotly_import_for_a_page_without_figures() -> None:
    import subprocess
    import sys

    code = (
        "import sys, json; from detdiag.report import render;"
        "from tests.report.samples import sample;"
        "render(sample('batch-confirmed'), 'html', plotly='none');"
        "render(sample('clean'), 'html'); render(sample('clean'), 'text');"
        "bad = {'plotly', 'torch', 'pandas', 'scipy', 'numpy'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=sample.__globals__["ROOT"])


def test_a_cause_that_files_alone_show_is_not_called_no_difference() -> None:
    report = sample("config-static")
    verdict = {**report["verdict"], "status": "attributed", "divergence": "none"}
    page = render({**report, "verdict": verdict}, "html", plotly="none")
    assert "no difference" not in page.partition("<main")[2].partition("</section>")[0]
    clean = render(sample("clean"), "html", plotly="none")
    assert "no difference" in clean.partition("<main")[2].partition("</section>")[0]
