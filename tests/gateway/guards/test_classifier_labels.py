"""What the response of a classifier decides."""

import msgspec
import pytest

from slipway_contracts.guards import GuardDeployment
from slipway_gateway.guards import classifier
from slipway_gateway.guards.protocol import GuardFailed
from slipway_gateway.guards.verdict import BLOCKED

DEPLOYMENT = GuardDeployment("prompt-guard", ("injection", "1"), 50)


@pytest.mark.parametrize("label", [["injection"], {"label": "injection"}, None])
def test_what_is_no_label_decides_nothing(label: object) -> None:
    response = msgspec.json.encode([{"prediction": label, "confidence": 0.9}])
    with pytest.raises(GuardFailed):
        classifier._verdict(DEPLOYMENT, classifier._read(response, 1))


@pytest.mark.parametrize("label", ["injection", 1])
def test_a_label_blocks(label: object) -> None:
    response = msgspec.json.encode([{"prediction": label}])
    assert classifier._verdict(DEPLOYMENT, classifier._read(response, 1)).action == BLOCKED
