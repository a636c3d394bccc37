"""Judging a live server from outside: pure functions over observations and their arms.

Every observation carries, in ``response["context"]``, the arm it was made in (``idle``,
``burst``, ``cold``, ``warm``) and the unit that was randomised (a burst, a block, a salt). The
tests relabel units, never single replies; what they cannot tell apart is said to be so.
"""

from __future__ import annotations

from detdiag.verdict.endpoint.attribute import attribute_endpoint

__all__ = ["attribute_endpoint"]
