"""The embedded models, prompts from their training domain, and known faults to plant in them.

Importing this costs little: torch is loaded when a fault is applied, not before.
"""

from __future__ import annotations

from detdiag.demo.cases import DemoCase, Fault, demo_path
from detdiag.demo.faults import DEFAULT_FAULT, FAULTS, serve
from detdiag.demo.prompts import DEMO_CHATS, DEMO_PROMPTS

__all__ = [
    "DEFAULT_FAULT",
    "DEMO_CHATS",
    "DEMO_PROMPTS",
    "FAULTS",
    "DemoCase",
    "Fault",
    "demo_path",
    "serve",
]
