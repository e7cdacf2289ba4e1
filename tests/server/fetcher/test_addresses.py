"""The addresses that the fetcher never connects to, by the corpus that the operator's guard is tested with too."""

import ipaddress

import pytest

from slipway_server.fetcher.addresses import AddressKind, is_in, judge
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, PUBLIC

pytestmark = pytest.mark.attack_class(8)


@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
def test_blocked_addresses(address: str) -> None:
    assert judge(address).kind in (AddressKind.BLOCKED, AddressKind.LOOPBACK)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert judge(address).kind is AddressKind.PRIVATE


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert judge(address).kind is AddressKind.PUBLIC


def test_only_loopback_is_loopback() -> None:
    found = {address for address in BLOCKED_ALWAYS if judge(address).kind is AddressKind.LOOPBACK}
    assert found == {
        "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1",
        "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1",
    }  # fmt: skip


def test_a_network_has_the_addresses_inside_ipv6() -> None:
    networks = (ipaddress.ip_network("10.0.0.0/8"),)
    assert is_in("10.1.2.3", networks) and is_in("::ffff:10.1.2.3", networks) and is_in("64:ff9b::a01:203", networks)
    assert not is_in("11.0.0.1", networks) and not is_in("fd00::1", networks)
