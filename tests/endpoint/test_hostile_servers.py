"""Servers that fail in every way: a clear outcome and exit code, the record kept, no key shown."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detdiag.errors import Exit
from detdiag.evidence.record import read_record
from tests.endpoint.command import Done, detdiag_run
from tests.stub_server import Behaviour, Fault, StubServer

KEY = "sk-hidden-0123456789"
QUICK: dict[str, Any] = {"base_s": 0.001, "step_s": 0.0}
LIMITS = ("--max-requests", "100", "--timeout", "1", "--budget", "30s")
Choice = Callable[[int, str], Fault | None]


def completions(fault: Fault, *, after: int = 0, every: int = 1) -> Choice:
    """``fault`` for completion requests number ``after`` and later, each ``every``-th of them."""
    count = iter(range(10**9))

    def choose(number: int, path: str) -> Fault | None:
        if "completions" not in path:
            return None
        mine = next(count)
        return fault if mine >= after and (mine - after) % every == 0 else None

    return choose


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("STUB_KEY", KEY)
    return ("--api-key-env", "STUB_KEY")


def run(choose: Choice, folder: Path, key: tuple[str, ...], **fields: Any) -> Done:
    with StubServer(Behaviour(fault=choose, **QUICK, **fields)) as server:
        done = detdiag_run([server.url], folder, *LIMITS, *key)
        assert any(h.get("authorization") == f"Bearer {KEY}" for _, _, h in server.requests)
    written = "".join(p.read_text("utf-8", "replace") for p in folder.iterdir())
    assert KEY not in written and KEY not in done.shown
    assert "\x1b" not in done.shown
    assert "Traceback" not in done.shown
    return done


ALWAYS: dict[Fault, str] = {
    "500": "HTTP 500: engine is dead",
    "429": "HTTP 429: slow down",
    "bad-json": "not JSON",
    "not-json": "not JSON",
    "content-type": "not JSON",
    "truncate": "broke off",
    "reset": "broke off",
    "no-choices": "no answer",
    "null": "no answer",
    "redirect": "moved to http://127.0.0.1:9/v1/elsewhere",
    "hang": "no reply within 1 s",
    "huge": "larger than",
    "bomb": "larger than",
    "html": "an HTML page: 502 Bad Gateway",
    "401": "--api-key-env",
    "wait": "asks to wait 3600 s",
    "half": "HTTP 200 with error 502: Provider disconnected",
}


@pytest.mark.parametrize("fault", ALWAYS)
def test_a_server_that_always_fails_is_one_clear_line(
    fault: Fault, tmp_path: Path, key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detdiag.targets.endpoint.client.LARGEST_BODY", 2**20)
    done = run(completions(fault), tmp_path, key)
    assert done.code == Exit.USAGE, done.shown
    assert ALWAYS[fault] in done.shown, done.shown
    assert "detdiag:" in done.shown.splitlines()[-1]


def test_a_closed_port_and_a_plain_server_asked_for_tls(tmp_path: Path) -> None:
    with StubServer(Behaviour(**QUICK)) as server:
        done = detdiag_run([server.url.replace("http", "https")], tmp_path, *LIMITS)
        assert done.code == Exit.USAGE and "cannot connect" in done.shown, done.shown
        assert "http:// if not" in done.shown
    done = detdiag_run([server.url], tmp_path, *LIMITS)
    assert done.code == Exit.USAGE and "cannot connect" in done.shown, done.shown


@pytest.fixture
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own for 127.0.0.1, with its key in one file."""
    file = tmp_path_factory.mktemp("tls") / "own.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", file, "-out",
         f"{file}.crt", "-days", "2", "-subj", "/CN=stub", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def test_a_certificate_of_its_own_is_one_line_and_can_be_trusted(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StubServer(Behaviour(**QUICK), certificate=certificate) as server:
        assert server.url.startswith("https://")
        done = detdiag_run([server.url], tmp_path, *LIMITS)
        assert done.code == Exit.USAGE
        assert "CERTIFICATE_VERIFY_FAILED" in done.shown and "SSL_CERT_FILE" in done.shown
        assert len([line for line in done.shown.splitlines() if line.startswith("detdiag:")]) == 1
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        done = detdiag_run([server.url], tmp_path, *LIMITS)
    assert done.verdict["status"] in ("clean", "inconclusive"), done.verdict["sentence"]
    assert done.verdict["layer"] is None


def test_a_wrong_model_name_is_the_servers_own_words(tmp_path: Path) -> None:
    with StubServer(Behaviour(**QUICK), model="other") as server:
        done = detdiag_run([server.url], tmp_path, *LIMITS)
    assert done.code == Exit.USAGE and "does not exist" in done.shown, done.shown


@pytest.mark.parametrize("fault", ["500", "429", "truncate", "html", "half"])
def test_failing_now_and_then_is_retried_and_recorded(
    fault: Fault, tmp_path: Path, key: tuple[str, ...]
) -> None:
    done = run(completions(fault, after=3, every=9), tmp_path, key)
    assert done.code in (Exit.CLEAN, Exit.INCONCLUSIVE), done.shown
    kept = read_record(tmp_path / "record.ndjson").observations
    retried = [o for o in kept if (o.response or {})["context"].get("retries")]
    assert retried
    assert done.verdict["layer"] is None


@pytest.mark.parametrize(
    "fault",
    ["500", "hang", "truncate", "no-choices", "401", "wait", "redirect", "html", "abort", "reset"],
)
def test_dying_in_the_middle_keeps_what_was_measured(
    fault: Fault, tmp_path: Path, key: tuple[str, ...]
) -> None:
    done = run(completions(fault, after=45), tmp_path, key)
    kept = read_record(tmp_path / "record.ndjson")
    assert len(kept.observations) >= 10
    assert done.code in (Exit.INCONCLUSIVE, Exit.INTERNAL), (done.code, done.shown)
    assert done.verdict["status"] == "inconclusive"


def test_another_model_in_the_middle_is_version_or_open(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    done = run(completions("other-model", after=45), tmp_path, key)
    verdict = done.verdict
    assert verdict["layer"] in (None, "version"), verdict["sentence"]
    assert verdict["status"] != "clean"
    assert "another" in json.dumps(done.report)


def test_random_faults_never_accuse(tmp_path: Path, key: tuple[str, ...]) -> None:
    """A healthy model behind a bad network."""
    faults: tuple[Fault, ...] = (
        "500", "429", "truncate", "reset", "bad-json", "null", "html", "half", "abort",
        "no-choices",
    )  # fmt: skip
    chance = random.Random(7)
    done = run(
        lambda number, path: chance.choice(faults) if chance.random() < 0.1 else None,
        tmp_path,
        key,
    )
    if done.report is not None:
        assert done.verdict["layer"] is None, done.verdict["sentence"]


def test_a_server_that_lies_about_its_numbers(
    tmp_path: Path, key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities of a foreign type are no crash."""
    monkeypatch.setattr("tests.stub_server.bodies._number", lambda engine, value: "NaN")
    done = run(lambda number, path: None, tmp_path, key, seed=4711)
    assert done.code in (Exit.CLEAN, Exit.INCONCLUSIVE, Exit.USAGE), done.shown
