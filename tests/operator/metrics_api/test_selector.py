"""Label selectors by the examples of Kubernetes' documentation."""

import pytest

from slipway_operator.metrics_api.selector import BadSelector, parse

LABELS = {"app": "chat", "slipway.dev/revision": "r1", "tier": ""}


@pytest.mark.parametrize(
    ("text", "picks"),
    [
        ("", True),
        ("app=chat", True),
        ("app==chat", True),
        ("app = chat , tier=", True),
        ("app=other", False),
        ("app!=chat", False),
        ("app!=other", True),
        ("zone!=a", True),
        ("zone=a", False),
        ("slipway.dev/revision in (r1,r2)", True),
        ("app=chat,slipway.dev/revision in (r2, r3)", False),
        ("slipway.dev/revision notin (r2)", True),
        ("zone notin (a)", True),
        ("app notin (chat, b)", False),
        ("app", True),
        ("zone", False),
        ("!zone", True),
        ("!app", False),
        ("zone=", False),
    ],
)
def test_selector_matches(text: str, picks: bool) -> None:
    assert parse(text)(LABELS) is picks


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "a in b",
        "a in (b",
        "=b",
        "a=b=c",
        "a>b",
        ",",
        "a=b,",
        "a in ((b))",
        "a" * 5000,
        ",".join("abcdefghi" * 4),
    ],
)
def test_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(BadSelector):
        parse(text)
