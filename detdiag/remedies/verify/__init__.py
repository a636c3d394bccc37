"""Measure remedies: each in a fresh process, on the contrast that was attributed.

:mod:`contrast` says what to compare for a rule, :mod:`trials` which remedies there are,
:mod:`measure` does the work inside a child, :mod:`run` plans, starts children and judges.
"""

from __future__ import annotations
