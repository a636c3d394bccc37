"""From placed documents to units: which request is seen with which launch line and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detdiag.audit.document import Document
from detdiag.audit.engines import Inputs
from detdiag.audit.facts import RequestView, view_request
from detdiag.audit.surfaces import SURFACES, Surface
from detdiag.audit.unit import Unit
from detdiag.errors import DetdiagError
from detdiag.rules.condition import number
from detdiag.rules.versions import OLDEST, version_key

_EMPTY = RequestView({}, {})


def launches_of(documents: Sequence[Document]) -> list[Document | None]:
    launches: list[Document | None] = [
        doc for doc in documents if doc.role in ("launch", "env") and doc.surface != "torch.env"
    ]
    merged = _merge_env(launches)
    return merged or [None]


def _merge_env(launches: list[Document | None]) -> list[Document | None]:
    """Variables of an env file belong to the launch line of the same engine beside it."""
    lines = [doc for doc in launches if doc is not None and doc.role == "launch"]
    if not lines:
        return launches
    extra = {
        name: var
        for doc in launches
        if doc is not None and doc.role == "env" and doc.launch is not None
        for name, var in doc.launch.env.items()
    }
    return [
        replace(doc, launch=replace(doc.launch, env={**extra, **doc.launch.env}))
        for doc in lines
        if doc.launch is not None
    ]


def units_of(
    documents: Sequence[Document], launch: Document | None, surface: str | None
) -> list[Unit]:
    requests = [doc for doc in documents if doc.role in ("request", "response", "settings")]
    around = {
        role: next((doc for doc in documents if doc.role == role), None)
        for role in ("model_file", "call", "modelfile")
    }
    shared = {role: doc for role, doc in around.items() if doc is not None}
    if launch is not None:
        shared["launch"] = launch
    units = [_request_unit(doc, shared) for doc in requests]
    _mark_mixed(units)
    if not units:
        units = [unit for unit in (_bare_unit(shared, surface),) if unit is not None]
    units.extend(_torch_units(documents))
    return units


def _torch_units(documents: Sequence[Document]) -> list[Unit]:
    units = []
    for doc in documents:
        if doc.role == "env" and doc.surface == "torch.env":
            base = Inputs("torch.env", OLDEST, env={k: str(v) for k, v in doc.data.items()})
            units.append(
                Unit(("torch.env",), SURFACES["torch.env"], "torch", {"launch": doc}, _EMPTY, base)
            )
    return units


def _request_unit(doc: Document, shared: Mapping[str, Document]) -> Unit:
    own = SURFACES[doc.surface or "any.request"]
    view = view_request(own, doc.data)
    documents = {"request": doc, **shared}
    names = [own.name, *own.also]
    launch = shared.get("launch")
    if launch is not None and launch.surface is not None:
        side = SURFACES[launch.surface]
        names.extend(n for n in (side.name, *side.also) if n not in names)
    base = _inputs(own, documents, view, has_request=doc.role == "request")
    return Unit(tuple(dict.fromkeys(names)), own, own.engine, documents, view, base)


def _bare_unit(shared: Mapping[str, Document], surface: str | None) -> Unit | None:
    """A unit without a request: a launch line, a Modelfile, or transformers' own files."""
    launch = shared.get("launch")
    if launch is not None and launch.surface is not None:
        own = SURFACES[launch.surface]
    elif "modelfile" in shared:
        own = SURFACES["ollama.modelfile"]
    elif "call" in shared:
        own = SURFACES[shared["call"].surface or "hf.generate_kwargs"]
    elif "model_file" in shared:
        own = SURFACES["hf.generation_config"]
        if surface is not None and SURFACES[surface].engine != "hf":
            own = SURFACES[surface]
    else:
        return None
    names = tuple(dict.fromkeys((own.name, *own.also, *_asked(surface, own))))
    return Unit(
        names, own, own.engine, shared, _EMPTY, _inputs(own, shared, _EMPTY, has_request=False)
    )


def _asked(surface: str | None, own: Surface) -> tuple[str, ...]:
    """The surface asked for, where it belongs to the same engine and is no request."""
    if surface is None or SURFACES[surface].engine != own.engine:
        return ()
    return (surface,) if SURFACES[surface].role == "launch" else ()


def _inputs(
    own: Surface, documents: Mapping[str, Document], view: RequestView, *, has_request: bool
) -> Inputs:
    launch = documents.get("launch")
    start = None if launch is None else launch.launch
    call = dict(documents["call"].data) if "call" in documents else {}
    passed = call.get("generation_config")
    request = documents.get("request")
    return Inputs(
        surface=own.name,
        key=OLDEST,
        request=view.common(own),
        body={} if request is None else request.data,
        call={k: v for k, v in call.items() if k != "generation_config"},
        passed=passed if isinstance(passed, Mapping) else None,
        file=documents["model_file"].data if "model_file" in documents else None,
        flags={} if start is None else {name: flag.value for name, flag in start.flags.items()},
        env={} if start is None else {name: var.value for name, var in start.env.items()},
        modelfile=_modelfile_common(documents.get("modelfile")),
        has_request=has_request,
        has_launch=launch is not None and launch.role == "launch",
    )


def _modelfile_common(document: Document | None) -> dict[str, Any] | None:
    if document is None:
        return None
    names = {own: common for common, own in SURFACES["ollama.modelfile"].spelling.items()}
    return {names.get(key, key): value for key, value in document.data.items()}


def _mark_mixed(units: list[Unit]) -> None:
    """Requests of one server, one greedy and one sampled: their rows can share a batch."""
    values = [number(unit.base.request.get("temperature")) for unit in units]
    if any(v is not None and v < 1e-5 for v in values) and any(
        v is None or v >= 1e-5 for v in values
    ):
        for unit in units:
            unit.extras["mixed"] = True


def said_version(documents: Mapping[str, Document]) -> str | None:
    for role in ("launch", "request"):
        document = documents.get(role)
        if document is not None and document.version:
            try:
                version_key(document.version)
            except DetdiagError:
                continue
            return document.version
    return None
