"""Rebuild what is derived from the rule files: compiled rules and ``docs/rules.md``."""

from __future__ import annotations

import json
from pathlib import Path

from detdiag.rules import decode_facts, verdict_rules
from detdiag.rules.load import COMPILED, load_sources, to_compiled
from detdiag.rules.page import rules_page


def main() -> None:
    """Write both files; the tests compare them with what this would write."""
    rules, examples = load_sources()
    COMPILED.write_text(to_compiled(rules), encoding="utf-8")
    texts = json.dumps(verdict_rules.load_source(), indent=1, ensure_ascii=True)
    verdict_rules.COMPILED.write_text(texts + "\n", encoding="utf-8")
    facts = json.dumps(decode_facts.load_source(), indent=1, ensure_ascii=True)
    decode_facts.COMPILED.write_text(facts + "\n", encoding="utf-8")
    ids = {rule.id for rule in rules}
    print(f"{len(ids)} rules, {len(examples)} examples")
    page = Path(__file__).parent.parent / "docs" / "rules.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(rules_page(rules), encoding="utf-8")


if __name__ == "__main__":
    main()
