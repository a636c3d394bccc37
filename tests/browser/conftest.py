"""A headless Chromium for the pages; every test here is skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        if (path := shutil.which(name))
    ),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser process for the session."""
    if CHROMIUM is None:
        pytest.skip("no Chromium binary")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Source of axe-core: the file named by ``DETDIAG_AXE``, else from npm; skipped without."""
    named = os.environ.get("DETDIAG_AXE")
    if named:
        return Path(named).read_text("utf-8")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core needs npm (or DETDIAG_AXE)")
    import subprocess
    import tarfile

    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(
        [npm, "pack", "--silent", "axe-core@4"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = list(folder.glob("axe-core-*.tgz"))
    if packed.returncode or not found:
        pytest.skip("axe-core cannot be had from npm here")
    with tarfile.open(found[0]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode("utf-8")
