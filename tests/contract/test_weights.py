"""The operator pins the weights that the fetcher reports, and the fetcher reads that pin."""

import json
from pathlib import Path

from slipway_fetcher import pin
from slipway_operator.manifests.history import config_map
from slipway_operator.model.cluster.weights import ANNOTATION, FILE, LIMIT, Weights, render, reported
from slipway_process import termination
from tests.contract.documented import TEXT

DIGEST, COMMIT = "sha256:" + "0a" * 32, "c" * 40
RECORD = {"metadata": {"name": "chat-abcdefghij", "namespace": "default", "uid": "u2", "labels": {}}}


def test_a_report_becomes_a_pin(tmp_path: Path) -> None:
    for commit in ("", COMMIT):
        kept = reported(pin.Report(DIGEST, commit, 9, 2**40, False).text())
        assert kept == Weights(DIGEST, commit)
        file = tmp_path / FILE
        file.write_text(config_map("chat-abcdefghij", RECORD, kept)["data"][FILE])
        assert pin.read(file) == pin.ModelPin(DIGEST, commit)


def test_report_has_the_documented_shape() -> None:
    assert list(json.loads(render(Weights(DIGEST, COMMIT)))) == ["commit", "digest"]
    assert '`{"commit": "…", "digest": "sha256:…"}`' in TEXT
    assert f"`{ANNOTATION}`" in TEXT and f"`{FILE}`" in TEXT
    assert LIMIT == termination.LIMIT_BYTES
