"""The hand-made report objects of ``fixtures/reports``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "fixtures" / "reports"
SCHEMAS = ROOT / "fixtures" / "schemas"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def sample(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return loaded
