"""The gate on a live server: GO where it repeats, NO-GO at the layer that does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from detdiag.cli import main
from tests.stub_server import Behaviour, StubServer


@pytest.mark.parametrize(
    ("behaviour", "layer"),
    [
        (Behaviour(), None),
        (Behaviour(temperature=1.0), "config"),
        (Behaviour(prefix_cache=True, warm_path=True), "batch"),
    ],
    ids=["healthy", "sampling", "warm-cache"],
)
def test_a_server_is_gated_by_what_it_does(
    behaviour: Behaviour, layer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    monkeypatch.chdir(tmp_path)
    with StubServer(behaviour) as server:
        monkeypatch.setattr(
            sys, "argv",
            ["detdiag", "check", "--endpoint", server.url, "--model-name", "stub", "--quiet",
             "--budget", "20s", "--fail-on", "bitwise", "-o", str(out)],
        )  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main()
    gate = json.loads(out.read_text())["gate"]
    assert gate["profile"] == "pr"
    failed = [row["layer"] for row in gate["items"] if row["outcome"] == "failed"]
    assert failed == ([layer] if layer else []), gate["why"]
    assert (stop.value.code, gate["decision"]) == ((1, "NO-GO") if layer else (0, "GO"))
