"""Rebuild what is derived from the rule files: the compiled rules and the page ``docs/rules.md``."""

from __future__ import annotations

import json
from pathlib import Path

from detdiag.rules import verdict_rules
from detdiag.rules.load import COMPILED, load_sources, to_compiled


def main() -> None:
    """Write both files; the tests compare them with what this would write."""
    rules, examples = load_sources()
    COMPILED.write_text(to_compiled(rules), encoding="utf-8")
    texts = json.dumps(verdict_rules.load_source(), indent=1, ensure_ascii=True)
    verdict_rules.COMPILED.write_text(texts + "\n", encoding="utf-8")
    ids = {rule.id for rule in rules}
    print(f"{len(ids)} rules, {len(examples)} examples")
    try:
        from detdiag.rules.page import rules_page
    except ImportError:
        return
    page = Path(__file__).parent.parent / "docs" / "rules.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(rules_page(rules), encoding="utf-8")


if __name__ == "__main__":
    main()
