"""The addresses that the fetcher never connects to, by the corpus that the operator's guard is tested with too."""

import ast
from pathlib import Path

import pytest

from slipway_fetcher.guard import EgressRules, RefusedError, check_address
from slipway_process.network.addresses import Reach, canonical, reach_of
from tests.contract import figures
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, PUBLIC

pytestmark = pytest.mark.attack_class(8)

HOST = "models.example.com"
EVERYTHING = EgressRules.of(networks=["0.0.0.0/0", "::/0"]).with_written(f"https://{HOST}/")


def is_refused(rules: EgressRules, address: str) -> bool:
    try:
        check_address(rules, HOST, address)
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
def test_blocked_addresses(address: str) -> None:
    assert is_refused(EVERYTHING, address)


@pytest.mark.finding("F19")
@pytest.mark.parametrize("address", ["fd20:ce::1", "fd20:ce::253", "fd20:ce:1::"])
def test_what_one_guard_forbids_the_other_does_too(address: str) -> None:
    """There were two tables, and the fetcher's had one address of this network."""
    assert reach_of(canonical(address)) is Reach.FORBIDDEN
    assert is_refused(EVERYTHING, address)


@pytest.mark.finding("F19")
def test_there_is_one_table_of_addresses() -> None:
    """Two tables differ some day: networks are written in the module that all guards import."""
    root = figures.ROOT
    packages = [figures.folder(name) for name in figures.NAMES]
    tables = {
        file.relative_to(root).as_posix()
        for package in packages
        for file in package.rglob("*.py")
        if any(isinstance(node, ast.Constant) and node.value == "169.254.0.0/16" for node in ast.walk(_parsed(file)))
    }
    assert tables == {"process/slipway_process/network/addresses.py"}


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert is_refused(EgressRules(), address) and not is_refused(EVERYTHING, address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert not is_refused(EgressRules(), address)


def test_only_loopback_may_be_allowed_by_a_host() -> None:
    found = {address for address in BLOCKED_ALWAYS if not is_refused(EgressRules.of([HOST]), address)}
    assert found == {
        "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1",
        "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1",
    }  # fmt: skip


def test_a_network_has_the_addresses_inside_ipv6() -> None:
    rules = EgressRules.of(networks=["10.0.0.0/8"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"):
        assert not is_refused(rules, address)
    assert is_refused(rules, "172.16.0.1") and is_refused(rules, "fd00::1")
