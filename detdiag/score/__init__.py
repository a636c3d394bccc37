"""How repeatable is it? Agreement of repeated runs, with bounds that hold when runs stop early.

Everything is computed from observations, so a live model, an endpoint and a pile of logs are
scored by the same code. No torch here except in :mod:`detdiag.score.local`.
"""
