"""Renderers: each a pure function of the report object (``detdiag.report/1``); no torch."""

from __future__ import annotations

from detdiag.report.outputs import check_outputs, kind_of, write_outputs
from detdiag.report.render import KINDS, render

__all__ = ["KINDS", "check_outputs", "kind_of", "print_summary", "render", "write_outputs"]


def __getattr__(name: str) -> object:
    if name == "print_summary":
        from detdiag.report.text import print_summary

        return print_summary
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
