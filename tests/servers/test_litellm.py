"""A LiteLLM proxy before stub servers: ``pytest -m servers tests/servers/test_litellm.py``.

Set up once (some 760 MB)::

    python3 -m venv litellm-env
    litellm-env/bin/pip install "litellm[proxy]"
    export DETDIAG_LITELLM_PYTHON=$PWD/litellm-env/bin/python

The proxy is started as::

    LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true \\
      litellm-env/bin/litellm --config config.yaml --host 127.0.0.1 --port PORT

What it adds to its servers' replies, seen on 1.108: ``x-litellm-model-id`` and
``x-litellm-model-api-base`` on every reply, ``x-litellm-cache-key`` on those of its cache only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint.command import PROMPT, Done, detdiag_run
from tests.servers.running import _started, named
from tests.stub_server import Behaviour, StubServer

pytestmark = pytest.mark.servers
SMALL = ("--max-requests", "150", "--budget", "90s")


@contextlib.contextmanager
def litellm(models: dict[str, list[str]], folder: Path, **settings: Any) -> Iterator[str]:
    """URL of a proxy that serves each name from the given server URLs, in turn by chance."""
    python = Path(named("DETDIAG_LITELLM_PYTHON"))
    entries = [
        {
            "model_name": name,
            "litellm_params": {"model": "openai/stub", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for name, urls in models.items()
        for url in urls
    ]
    config = folder / "config.yaml"  # JSON is YAML
    config.write_text(
        json.dumps(
            {
                "model_list": entries,
                "litellm_settings": {"telemetry": False, **settings},
                "router_settings": {"routing_strategy": "simple-shuffle"},
            }
        )
    )
    words = [str(python.with_name("litellm")), "--config", str(config)]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with _started(words, environment, folder / "litellm.log") as url:
        yield url


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("litellm")
    with (
        StubServer(Behaviour(seed=1)) as one,
        StubServer(Behaviour(seed=1)) as twin,
        StubServer(Behaviour(seed=1, weights="other")) as other,
        StubServer(Behaviour(seed=1, temperature=1.0)) as drawing,
    ):
        models = {
            "plain": [one.url],
            "twins": [one.url, twin.url],
            "two": [one.url, other.url],
            "drawn": [drawing.url],
        }
        with litellm(models, folder) as url:
            yield url


def diagnose(url: str, folder: Path, model: str, *options: str) -> Done:
    done = detdiag_run([url], folder, "--model-name", model, *SMALL, *options)
    assert done.report is not None, done.shown
    assert done.report["target"]["engine"] == "litellm"
    return done


@pytest.mark.parametrize("model", ["plain", "twins"])
def test_what_passes_through_is_not_accused(model: str, proxy: str, tmp_path: Path) -> None:
    """Two deployments of one build answer alike: their labels differ, their replies do not."""
    verdict = diagnose(proxy, tmp_path, model).verdict
    assert verdict["status"] == "clean", verdict["sentence"]


def test_two_deployments_with_other_weights_are_version(proxy: str, tmp_path: Path) -> None:
    verdict = diagnose(proxy, tmp_path, "two").verdict
    if verdict["status"] == "inconclusive":
        assert verdict["layer"] is None, verdict["sentence"]
        return
    assert verdict["rule"] == "version.replica-changes-output", verdict["sentence"]


def test_a_server_that_draws_is_config(proxy: str, tmp_path: Path) -> None:
    verdict = diagnose(proxy, tmp_path, "drawn").verdict
    assert verdict["layer"] == "config", verdict["sentence"]


def test_its_response_cache_is_masking_and_can_be_passed(tmp_path: Path) -> None:
    """The cache hides a server that draws. Only the field in the body goes past it: LiteLLM does
    not look at a ``Cache-Control`` header."""
    cache = {"cache": True, "cache_params": {"type": "local"}}
    with (
        StubServer(Behaviour(seed=1, temperature=1.0)) as drawing,
        litellm({"cached": [drawing.url]}, tmp_path, **cache) as url,
    ):
        hidden = diagnose(url, tmp_path, "cached").verdict
        body = {
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "cache": {"no-cache": True},
        }
        own = tmp_path / "request.json"
        own.write_text(json.dumps(body))
        past = diagnose(url, tmp_path, "cached", "--request", str(own)).verdict
    assert hidden["status"] == "inconclusive", hidden["sentence"]
    assert "response cache" in hidden["sentence"]
    assert past["layer"] == "config", past["sentence"]
