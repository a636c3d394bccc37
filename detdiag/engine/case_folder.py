"""Read a case folder into a :class:`~detdiag.evidence.case.Case`. Never imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from detdiag.engine.case_logs import read_logs, recorded_method, unique
from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.layers import LAYERS

OBSERVATIONS: Final = "observations.jsonl"
CONFIG_FILES: Final = (
    "request.json",
    "request_a.json",
    "request_b.json",
    "intent.json",
    "generation_config.json",
    "generate_kwargs.json",
    "server_args.txt",
)
PAIRS: Final = (("prompt_a.txt", "prompt_b.txt"), ("request_a.json", "request_b.json"))
FINGERPRINTS: Final = ("fingerprint_a.json", "fingerprint_b.json")
KNOWN: Final = frozenset(
    {OBSERVATIONS, *CONFIG_FILES, *FINGERPRINTS, *(name for pair in PAIRS for name in pair)}
)


def load_case(
    folder: Path,
    *,
    surface: str | None = None,
    engine_version: str | None = None,
    factor_layers: Mapping[str, str] | None = None,
    extra: Sequence[Path] = (),
) -> Case:
    """Read every file of ``folder``; raise :class:`DetdiagError` where one is unreadable or the
    folder holds no evidence at all."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise DetdiagError(f"expected a case folder: {what}", path=folder)
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    observations, layers = _observations(folder / OBSERVATIONS)
    read = read_logs([*(p for p in files if p.name not in KNOWN), *extra])
    ignored = list(read.ignored)
    method = recorded_method(read, passive=bool(read.observations))
    observations = unique([*observations, *read.observations], ignored)
    audited = _audited(files, surface, engine_version)
    findings = [
        *audited[0],
        *request_findings(observations, surface, engine_version),
        *_input_findings(folder, observations),
        *_fingerprint_findings(folder),
    ]
    if not observations and not read.without_answers and not any(p.name in KNOWN for p in files):
        held = f"; not recognised: {'; '.join(ignored)}" if ignored else ""
        raise DetdiagError(
            f"no evidence in this folder{held}",
            path=folder,
            tip="a case holds observations.jsonl, request.json or an export of a known tool",
        )
    return Case(
        observations=tuple(observations),
        findings=tuple(findings),
        factor_layers=checked_layers({**layers, **(factor_layers or {})}),
        target={"kind": "case", "name": folder.resolve().name},
        series={"effective_params": audited[1]} if audited[1] else {},
        method=method,
        ignored=tuple(ignored),
    )


def load_evidence(paths: Sequence[Path], factor_layers: Mapping[str, str] | None = None) -> Case:
    """A case from exports of other tools; a file that no adapter knows is an error here."""
    for path in paths:
        if not path.is_file():
            raise DetdiagError("no such file", path=path)
    read = read_logs(paths)
    ignored = list(read.ignored)
    observations = unique(list(read.observations), ignored)
    if not observations and not read.without_answers:
        raise DetdiagError(f"no evidence found: {'; '.join(ignored) or 'the files are empty'}")
    return Case(
        observations=tuple(observations),
        findings=(
            *request_findings(observations, None, None),
            *_input_findings(None, observations),
        ),
        factor_layers=checked_layers(factor_layers or {}),
        target={"kind": "case", "name": ", ".join(p.name for p in paths)},
        method=recorded_method(read, passive=True),
        ignored=tuple(ignored),
    )


def checked_layers(layers: Mapping[str, str]) -> dict[str, str]:
    """Refuse a factor layer that is none of the seven."""
    for factor, layer in layers.items():
        if layer not in LAYERS:
            raise DetdiagError(
                f"factor {factor!r}: expected one of {', '.join(LAYERS)}, found {layer!r}"
            )
    return dict(layers)


def read_json(path: Path) -> Any:
    """Decode a JSON file; a byte order mark is allowed, everything else must be UTF-8 JSON."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DetdiagError(f"expected UTF-8 text: {error.reason}", path=path) from error
    except json.JSONDecodeError as error:
        raise DetdiagError(f"not valid JSON: {error.msg}", path=path, line=error.lineno) from error
    except (OSError, RecursionError) as error:
        raise DetdiagError(f"cannot read: {error}", path=path) from error


def _observations(path: Path) -> tuple[list[Observation], dict[str, str]]:
    """Observations and the ``factor_layers`` that any line may carry."""
    if not path.exists():
        return [], {}
    out: list[Observation] = []
    layers: dict[str, str] = {}
    for number, text in enumerate(_lines(path), start=1):
        if not text.strip():
            continue
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DetdiagError(
                f"expected one JSON object a line: {error}", path=path, line=number
            ) from error
        placed = raw.pop("factor_layers", None) if isinstance(raw, dict) else None
        if isinstance(placed, Mapping):
            layers.update({str(k): str(v) for k, v in placed.items()})
            if "id" not in raw:
                continue
        out.append(_completed(Observation.from_dict(raw, path=str(path), line=number)))
    return out, layers


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DetdiagError("expected UTF-8 text", path=path, line=line) from error
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error


def _completed(observation: Observation) -> Observation:
    """Fill the output and the factors from a raw ``response`` body where it is all there is."""
    if observation.response is None:
        return observation
    from detdiag.evidence.adapters import adapt_response, response_factors

    factors = {**response_factors(observation.response), **observation.factors}
    output = observation.output
    if output.text is None and output.token_ids is None and output.positions is None:
        output = adapt_response(observation.response, observation.surface)
    return replace(observation, factors=factors, output=output)


def _audited(
    files: list[Path], surface: str | None, engine_version: str | None
) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Config findings of the case's own files, and their effective parameters."""
    paths = [p for p in files if p.name in CONFIG_FILES]
    if not paths:
        return [], []
    from detdiag.audit import audit_files

    result = audit_files(paths, surface=surface, engine_version=engine_version)
    return list(result.findings), list(result.effective)


MAX_REQUEST_SHAPES: Final = 40


def request_findings(
    observations: Sequence[Observation], surface: str | None, engine_version: str | None
) -> list[Finding]:
    """Requests inside observations that certainly sample, one audit per distinct set of
    parameters; ``data["sampled_observations"]`` lists whose."""
    shapes: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.request is not None and "parameters" not in observation.unrecorded:
            shapes.setdefault(_shape(observation), []).append(observation)
    if not shapes:
        return []
    from detdiag.audit import audit_request

    out = []
    for members in list(shapes.values())[:MAX_REQUEST_SHAPES]:
        first = members[0]
        assert first.request is not None
        version = engine_version or _text(first.factors.get("engine_version"))
        try:
            found = audit_request(
                first.request, first.surface or surface, engine_version=version, where=first.id
            )
        except DetdiagError:
            continue  # a surface or version that the rules do not know decides nothing
        ids = [o.id for o in members]
        out += [
            replace(f, data={**f.data, "sampled_observations": ids})
            for f in found
            if f.outcome == "failed" and f.kind == "sampling_still_on"
        ]
    return out


def _shape(observation: Observation) -> str:
    from detdiag.inputs.canonical import sampling_parameters

    assert observation.request is not None
    shown = [
        observation.surface,
        sorted(map(str, observation.request)),
        sampling_parameters(observation.request),
        observation.factors.get("engine_version"),
    ]
    return json.dumps(shown, sort_keys=True, default=str)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _input_findings(folder: Path | None, observations: list[Observation]) -> list[Finding]:
    """Diffs of the file pairs, and what the observations of one query differ in as inputs.

    The latter only describe: whether the outcome goes with them is for the contrasts to say.
    """
    from detdiag.inputs.observed import static_input_findings

    prompts, requests = (_pair(folder, names) for names in PAIRS)
    found = static_input_findings(prompts=prompts, requests=requests)
    described = [
        replace(f, outcome="inconclusive", mechanism=False, data={**f.data, "describes": True})
        if f.outcome == "failed"
        else f
        for f in static_input_findings(observations=observations)
    ]
    return found + described


def _pair(folder: Path | None, names: tuple[str, str]) -> tuple[bytes, bytes] | None:
    if folder is None or not all((folder / name).is_file() for name in names):
        return None
    return (folder / names[0]).read_bytes(), (folder / names[1]).read_bytes()


def _fingerprint_findings(folder: Path) -> list[Finding]:
    paths = [folder / name for name in FINGERPRINTS]
    if not all(p.is_file() for p in paths):
        return []
    from detdiag.fingerprint import fingerprint_findings

    a, b = (read_json(p) for p in paths)
    for path, value in zip(paths, (a, b), strict=True):
        if not isinstance(value, Mapping):
            raise DetdiagError("expected a JSON object of version facts", path=path)
    return list(fingerprint_findings(a, b))
