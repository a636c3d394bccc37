"""The request as this server reads it, against the rule base; nothing is sent."""

from __future__ import annotations

from typing import Final

from detdiag.audit import audit_documents
from detdiag.audit.document import Document
from detdiag.audit.surfaces import SURFACES
from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.surfaces import surface_of
from detdiag.evidence.finding import Finding, Remedy
from detdiag.probes.endpoint.context import EndpointContext
from detdiag.targets.endpoint import EndpointTarget

FAMILY_SURFACES: Final = {
    "vllm": "vllm.openai_request",
    "sglang": "sglang.openai_request",
    "llamacpp": "llamacpp.server",
    "tgi": "tgi.chat",
    "ollama": "ollama.openai_api",
    "llama-cpp-python": "llamacpp.python",
    "transformers": "hf.serve",
    "openai": "openai.chat",
    "azure": "azure.openai_chat",
    "openrouter": "openrouter.chat",
}
SHOWN: Final = ("failed", "inconclusive")
BEST_EFFORT: Final = "config.best-effort-only"


def request_surface(target: EndpointTarget) -> str | None:
    """What kind of request this server takes: by what it said about itself, else by its host."""
    family = FAMILY_SURFACES.get(target.capabilities.family or "")
    found = family or surface_of(target.address.url("v1:/"), None, None)
    known = SURFACES.get(found or "")
    return found if known is not None and known.role == "request" else None


async def config(context: EndpointContext) -> str | None:
    """Findings on the request of the full length, and the parameters as they take effect."""
    target = context.target
    query = context.long()[0]
    _, body = target.body(query.prompt, max_tokens=query.max_tokens)
    surface = request_surface(target)
    document = Document("request", "request", surface, body, said=surface is not None)
    version = target.capabilities.info.get("version", {}).get("version")
    try:
        result = audit_documents([document], engine_version=version)
    except DetdiagError:
        result = audit_documents([document])  # a version that the rules cannot order
    dropped = target.capabilities.dropped
    for finding in result.findings:
        if finding.outcome in SHOWN and finding.subject not in dropped:
            context.emit(finding)
    if "temperature" in dropped:
        context.emit(_refused(target))
    if result.effective:
        context.emit(("effective_params", list(result.effective)))
    return None


def _refused(target: EndpointTarget) -> Finding:
    """No request makes this server greedy, so "send temperature 0" is no advice here."""
    rows = target.capabilities.found
    words = next((c.note for c in rows if c.name == "temperature 0"), "")
    return Finding(
        layer="config",
        rule=BEST_EFFORT,
        outcome="inconclusive",
        severity="high",
        kind="best_effort_only",
        subject="temperature",
        summary="the server refuses a temperature of 0 and uses its own",
        remedy=Remedy(
            "compare many answers instead of one, or use a model that takes temperature 0",
            verify="the same run on a model that takes temperature 0 repeats",
        ),
        data={"refused": "temperature", "words": words},
    )
