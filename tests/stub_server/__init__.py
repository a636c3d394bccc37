"""An OpenAI-compatible server inside the test process that really computes each cause."""

from __future__ import annotations

from tests.stub_server.behaviour import Behaviour, Fault
from tests.stub_server.server import StubServer

__all__ = ["Behaviour", "Fault", "StubServer"]
