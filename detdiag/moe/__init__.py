"""Expert routing: who was routed where, what changed it, and whether that is cause or symptom.

Importing this package, :mod:`detdiag.moe.recorded`, :mod:`detdiag.moe.compare` or
:mod:`detdiag.moe.table` never imports torch; discovery, tracing and pinning do.
"""
