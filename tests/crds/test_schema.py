"""The CRD as a document: complete, closed, and every rule with a test."""

from tests.crds.cases import CEL_CASES, SCHEMA_CASES
from tests.crds.schema import sentences, version, walk

# Rules about metadata and about changes; test_rules tries them by hand.
BY_HAND = (
    "metadata.name may have at most 52 characters",
    "with spec.strategy.canary.baselinePod metadata.name may have at most 43 characters",
    "with prePromotionAnalysis.twinShadow metadata.name may have at most 43 characters",
    "with spec.engine.parallelism.nodes above 1 metadata.name may have at most 28 characters",
    "metadata.name must start with a letter",
    "spec.model.name cannot change",
)


def test_every_field_is_described() -> None:
    # The API server describes metadata itself and refuses another description.
    missing = [path for path, node in walk() if path != "metadata" and not node.get("description")]
    assert not missing


def test_every_description_is_a_sentence() -> None:
    bad = [path for path, node in walk() if path != "metadata" and not node["description"].rstrip().endswith(".")]
    assert not bad


def test_every_rule_has_a_sentence_and_a_case() -> None:
    tried = (*BY_HAND, *(case.message for case in CEL_CASES))
    for sentence in sentences():
        assert any(sentence.startswith(message) for message in tried), f"no case in tests/crds/cases.py for: {sentence}"


def test_every_pattern_and_enum_of_the_spec_has_a_case() -> None:
    tried = {case.message for case in SCHEMA_CASES}
    for path, node in walk():
        if path.startswith("spec") and ("pattern" in node or "enum" in node):
            assert path.replace("[]", "[0]") in tried, f"no case in tests/crds/cases.py for {path}"


def test_nothing_is_open() -> None:
    """No free-form object: each accepted field has a meaning. Maps of bounded strings are allowed."""
    for path, node in walk():
        assert "x-kubernetes-preserve-unknown-fields" not in node, path
        if "additionalProperties" in node:
            assert node["maxProperties"] and node["additionalProperties"]["maxLength"], path
            assert node["additionalProperties"]["type"] == "string", path
            continue
        assert node.get("type") != "object" or node.get("properties") or path == "metadata", path


def test_intents_have_no_defaults() -> None:
    """A GitOps tool leaves spec.rollout alone only as long as no other client fills it."""
    assert not [path for path, node in walk() if path.startswith("spec.rollout") and "default" in node]


def test_print_columns() -> None:
    columns = version()["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    wide = [column["name"].upper() for column in columns if column.get("priority") == 1]
    assert shown == ["PHASE", "REASON", "STEP", "WEIGHT", "READY", "STABLE", "CANARY", "AGE"]
    assert wide == ["STANDBY", "MODEL", "ENDPOINT", "MESSAGE"]
    assert [column["name"] for column in columns if column["name"] != "Age" and not column.get("description")] == []
