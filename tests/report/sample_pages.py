"""The sample reports in ``reports/``: rendered from ``fixtures/``, compared to the byte by a test.

``python -m tests.report.sample_pages`` writes them again after a change that is meant.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from detdiag.report import kind_of, render
from tests.report.samples import ROOT, sample

FOLDER: Final = ROOT / "reports"
CASES: Final = {
    "batch-size-in-16-bit": ("html", "postmortem.md"),
    "clean-sixty-repeats": ("html",),
    "config-zero-dropped-on-the-wire": ("html", "sarif", "xml"),
    "decode-exact-tie-kept-by-top-k": ("html",),
    "inconclusive-gpu-and-tp-together": ("html", "checklist.md"),
    "input-zero-width-and-nfd": ("html", "zh.html"),
    "moe-selection-after-down-cast": ("html",),
    "version-tokenizer-class": ("html",),
}
WALKS: Final = {"demo-batch-effect": ("html", "md")}
"""Reports of live walks over the embedded models, stored as report objects."""


def samples() -> dict[str, str]:
    """``{file name: text}`` of every sample report."""
    made: dict[str, str] = {}
    for name, suffixes in CASES.items():
        report = _case(name)
        for suffix in suffixes:
            made[f"{name}.{suffix}"] = _rendered(report, suffix, "none")
    for name, suffixes in WALKS.items():
        for suffix in suffixes:
            made[f"{name}.{suffix}"] = _rendered(sample(name), suffix, "embed")
    return made


def _case(name: str) -> dict[str, Any]:
    from detdiag.engine.case_folder import load_case
    from detdiag.verdict import decide

    with _working_in(ROOT):
        return decide(load_case(Path("fixtures/cases") / name)).to_dict()


def _rendered(report: dict[str, Any], suffix: str, plotly: str) -> str:
    first, _, last = suffix.rpartition(".")
    style = first if first in ("postmortem", "checklist") else None
    lang = "zh" if first == "zh" else "en"
    kind = kind_of(f"x.{last}")
    return render(report, kind, lang=lang, plotly=plotly, style=style)


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


_PACKED: Final = re.compile(r"(base64,|id=\"plotly-bundle\">)(H4sI[A-Za-z0-9+/=]+)")
_OF_PLOTLY: Final = re.compile(r"sha256-[A-Za-z0-9+/=]+")


def comparable(text: str) -> str:
    """The text with compressed blocks replaced by the hash of what they hold.

    zlib builds may pack the same bytes in another way, and plotly's bundle moves with its version;
    everything else is compared as it is.
    """

    def unpacked(match: re.Match[str]) -> str:
        raw = gzip.decompress(base64.b64decode(match[2]))
        held = "plotly" if "plotly" in match[1] else hashlib.sha256(raw).hexdigest()
        return f"{match[1]}<{held}>"

    return _OF_PLOTLY.sub("sha256-<>", _PACKED.sub(unpacked, text))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made = samples()
    for stale in [p for p in FOLDER.iterdir() if p.name not in made and p.name != "README.md"]:
        print(f"not made here: {stale.name}")
    for name, text in made.items():
        (FOLDER / name).write_bytes(text.encode("utf-8"))
        print(f"{name}: {len(text.encode('utf-8')) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
