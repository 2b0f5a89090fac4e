"""Rules are imported only for specs that have what they are about; on others they have nothing to say."""

from __future__ import annotations

from pathlib import Path

import pytest

import servelint_specs
from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.review import Review
from servelint.rule import Finding, RuleEntry, collect
from servelint.spec.document import Document, parse
from servelint_rules import WHEN

PLUGINS = Plugins()
GATED = [entry for entry in PLUGINS.rule_entries if entry.when]


def documents() -> list[Document]:
    """Every shipped spec and every case of every rule that is structured."""
    texts = [path.read_text(encoding="utf-8") for path in Path(servelint_specs.__file__).parent.rglob("*.toml")]
    texts += [case.spec for rule in PLUGINS.rules for case in (*rule.failing, *rule.passing) if not case.files]
    found = [parse("spec.toml", text, PLUGINS.policies) for text in dict.fromkeys(texts)]
    return [document for document in found if document.deployment is not None]


DOCUMENTS = documents()


@pytest.mark.parametrize("entry", GATED, ids=lambda entry: entry.code)
def test_without_its_keys_a_rule_finds_nothing(entry: RuleEntry, tmp_path: Path) -> None:
    rule = PLUGINS.load_rule(entry)
    assert rule is not None
    without = [d for d in DOCUMENTS if not any(d.has(path) for path in entry.when)]
    assert without, "no spec is without the keys"
    for document in without:
        review = Review(document, PLUGINS, tmp_path)
        found = [item for item in collect(rule({}), review) if isinstance(item, Finding)]
        assert found == [], document.text


def test_the_table_names_rules_and_families() -> None:
    codes = {entry.code for entry in PLUGINS.rule_entries}
    assert set(WHEN) <= codes | {code[:-3] for code in codes}


def test_what_is_not_asked_for_is_not_loaded() -> None:
    plugins = Plugins()
    text = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
    result = Linter(plugins, Config(), Path()).check("spec.toml", text)
    loaded = set(plugins._loaded_rules)  # what the run imported is what is measured
    assert {"MEM001", "SPEC004"} <= loaded
    assert not loaded & {"CLM001", "SPD001", "DEC001", "ENG002"}
    assert ("CLM001", "claim") in result.lacking
