"""``detdiag env``: what can run on this machine, what cannot, and what would enable it."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command("env", help="Which probes can run here, why not, and what would enable them.")(env)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    torch: Annotated[
        bool,
        typer.Option("--torch", help="Ask torch, in a child process, for devices and backends."),
    ] = False,
) -> None:
    """No model is loaded and torch is not imported in this process."""
    from detdiag.fingerprint.capabilities import survey

    found = survey(ask_torch=torch)
    if as_json:
        import json

        print(json.dumps(found, ensure_ascii=True, indent=1))
    else:
        print("\n".join(_lines(found)))


def _lines(found: dict[str, Any]) -> list[str]:
    machine = found["machine"]
    lines = [
        f"detdiag {found['detdiag']} on Python {machine['python']}, {machine['system']}",
        f"CPU: {machine['cpu'] or 'unknown'} ({machine['cpus']} usable; {machine['isa'] or 'ISA'})",
        f"GPU: {machine['gpu'] or 'none seen (nvidia-smi)'}",
        "",
        "libraries: "
        + (", ".join(f"{k} {v}" for k, v in found["libraries"].items()) or "none found"),
    ]
    if "torch" in found:
        lines.append("torch: " + ", ".join(f"{k}={v}" for k, v in found["torch"].items()))
    lines += ["", "layer      recorded evidence   local model         endpoint"]
    for row in found["layers"]:
        cells = [_cell(row[mode]) for mode in ("recorded", "local", "endpoint")]
        lines.append(f"{row['layer']:<10} " + "".join(f"{cell:<20}" for cell in cells).rstrip())
    missing = [item for item in found["missing"] if item]
    lines += ["", *(f"missing: {m['what']}: {m['why']}. Enable: {m['enable']}" for m in missing)]
    return lines if missing else [*lines, "nothing is missing"]


def _cell(state: dict[str, Any]) -> str:
    return "yes" if state["can_run"] else ("-" if state["reason"] == "no such probe" else "no")
