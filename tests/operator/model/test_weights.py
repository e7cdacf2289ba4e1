"""Reports of pods about their weights: pods may run any image, so only a digest and a commit are read."""

import json

import pytest

from slipway_operator.model.cluster.weights import Weights, parse, render, reported

DIGEST, COMMIT = "sha256:" + "0a" * 32, "c" * 40


def test_what_is_written_is_read() -> None:
    for weights in (Weights(DIGEST), Weights(DIGEST, COMMIT)):
        assert parse(render(weights)) == weights
        message = {"weights": {"digest": DIGEST, "commit": weights.commit, "files": 3, "bytes": 9, "pinned": False}}
        assert reported(json.dumps(message)) == weights


@pytest.mark.attack_class(9)
@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "3", '"x"', "{", "[" * 4000, '{"weights": 3}', '{"weights": []}', "{}", '{"digest": 3}',
        '{"digest": "sha256:12"}', '{"digest": "md5:%s"}', '{"digest": "sha256:%s\\n"}',
        '{"digest": "sha256:%s", "commit": "main"}', '{"digest": "sha256:%s", "commit": "../../x"}',
        '{"digest": "sha256:%s", "commit": {"a": 1}}',
    ],
)  # fmt: skip
def test_invalid_pin_is_none(text: str) -> None:
    text = text.replace("%s", "0a" * 32)
    assert parse(text) is None
    assert reported(text) is None
    assert reported('{"weights": %s}' % (text or "0")) is None


def test_none_is_none() -> None:
    assert parse(None) is None
