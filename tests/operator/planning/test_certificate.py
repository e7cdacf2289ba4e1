"""The condition CertificateReady: what cert-manager says about the certificate that pods with TLS wait for."""

from dataclasses import replace

import pytest

from slipway_operator.model.cluster.plan import Plan
from slipway_operator.planning.reporting.requeue import CERTIFICATE_POLL_S
from tests.support.model_cluster import ModelCluster, healthy, model
from tests.support.planned import plan

WHY = "Certificate sys/slipway-internal-pods-demo of the issuer Issuer/internal: the issuer is not there"


@pytest.fixture
def world() -> ModelCluster:
    """Stable without TLS, and a canary that has it."""
    world = healthy()
    world.settings = replace(world.settings, tls=True)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


def reconcile(world: ModelCluster, certificate: str | None) -> Plan:
    observed = replace(world.observed(), certificate=certificate)
    return plan(world.obj(), world.parsed(), observed, world.settings, world.now)


def shown(found: Plan) -> list[tuple[str, str, str]]:
    conditions = [item for item in found.status.conditions if item.type == "CertificateReady"]
    return [(item.status, item.reason, item.message) for item in conditions]


def events(found: Plan) -> list[str]:
    return [item.message for item in found.events if item.reason == "CertificateNotIssued"]


def test_a_certificate_that_is_not_issued_is_shown_with_the_reason_of_cert_manager(world: ModelCluster) -> None:
    found = reconcile(world, WHY)
    [(status, reason, message)] = shown(found)
    assert (status, reason) == ("False", "NotIssued")
    assert WHY in message and "slipway-pod-tls" in message
    assert events(found) == [message]
    assert found.status.reason == "NotIssued"
    assert found.requeue_after_s is not None and found.requeue_after_s <= CERTIFICATE_POLL_S
    again = plan(world.obj(), found.status, replace(world.observed(), certificate=WHY), world.settings, world.now)
    assert shown(again) == shown(found) and events(again) == []
    after = plan(world.obj(), found.status, replace(world.observed(), certificate=""), world.settings, world.now)
    assert [item[:2] for item in shown(after)] == [("True", "Issued")] and events(after) == []


@pytest.mark.parametrize("certificate", [None, ""])
def test_without_an_issuer_there_is_no_condition_and_an_issued_certificate_is_no_problem(
    world: ModelCluster, certificate: str | None
) -> None:
    found = reconcile(world, certificate)
    assert [item[0] for item in shown(found)] == ([] if certificate is None else ["True"])
    assert events(found) == [] and found.status.reason == "Paused"


def test_a_model_without_tls_needs_no_certificate() -> None:
    found = reconcile(healthy(), WHY)
    assert shown(found) == [] and events(found) == []
