"""Owners of model names: gateways read the object that the operator writes."""

from datetime import UTC, datetime

from slipway_gateway.routing.table import OWNERS_KEY, parse_owners
from slipway_gateway.settings import GatewaySettings
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.names import Claim
from slipway_operator.settings import parse
from tests.support.settings import parsed

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_claims_of_the_operator_are_owners_for_the_gateway() -> None:
    claims = {"chat": Claim("a/chat", START), 'o"d': Claim("b/old", START, START)}
    assert names.DATA_KEY == OWNERS_KEY
    assert parse_owners({"data": {names.DATA_KEY: names.encode(claims)}}) == {"chat": "a/chat", 'o"d': "b/old"}
    assert parse_owners({"data": {names.DATA_KEY: names.encode({})}}) == {}


def test_both_look_in_the_same_place_by_default() -> None:
    for environment in ({}, {"POD_NAMESPACE": "slipway-system"}):
        operator, gateway = parsed(parse, [], environment).settings, parsed(GatewaySettings.parse, [], environment)
        assert (operator.own_namespace, operator.names_configmap) == (gateway.own_namespace, gateway.names_configmap)
