"""Quantities have one implementation, and it agrees with the API server and with the Kubernetes client's own."""

import re
from decimal import localcontext
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from slipway_operator.model import quantity
from testkit.cluster.api import Api
from tests.crds.objects import dry_run, model_deployment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("operator", "gateway", "server", "cli", "devcluster")
SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
NUMBERS = st.decimals(0, 10**6, places=6).map(lambda number: f"{number:f}")

GOOD = ("4", "+4", ".5", "5.", "500m", "1.5Gi", "1e3", "1E3", "12e-3", "1E", "3k", "7n", "1Ei", "0.000001")
BAD = (
    *("", "four", "1K", " 1", "1 ", "1_000", "1e3Ki", "Infinity", "nan", "1ki", "1GiB", "0x1", "m", "i", "1e", "--1"),
    "\u0661",  # a digit of another script
)


def is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except ValueError:
        return False
    return True


def test_no_other_module_reads_quantities() -> None:
    table = re.compile(r"""["']Ki["']|parse_quantity""")
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in sources if table.search(path.read_text())]
    assert found == ["operator/slipway_operator/model/quantity.py"]


@given(NUMBERS, st.sampled_from(SUFFIXES), st.sampled_from(("", "-", "+")))
def test_values_are_those_of_the_kubernetes_client(number: str, suffix: str, sign: str) -> None:
    text = sign + number + suffix
    with localcontext(prec=60):  # the client's is 28 digits by default, and it rounds to them
        theirs = Fraction(parse_quantity(text))
    assert quantity.parse(text) == theirs


@pytest.mark.integration
@pytest.mark.parametrize("text", [*GOOD, *BAD])
def test_the_api_server_accepts_the_same_texts(api: Api, text: str) -> None:
    answer = dry_run(api, model_deployment({"resources": {"cpu": text}}))
    assert answer.ok is is_quantity(text) is (text in GOOD), answer.message
