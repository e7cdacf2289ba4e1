"""Guards of a ModelDeployment: from its spec to the table of the gateways, and events of the judge."""

from slipway_contracts.guards import GuardSpec, GuardWebhook
from slipway_contracts.route_table import Traffic
from slipway_operator.model.analysis.template import BAD_EVENTS, INCLUDED
from slipway_operator.model.deployment.spec import Spec, parse

GUARD = {"name": "g", "stages": ["Input", "Output"], "webhook": {"url": "https://g.test/"}, "failurePolicy": "Ignore"}


def test_guards_of_the_spec_are_those_of_the_table() -> None:
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "hf://o/m"}, "traffic": {"guards": [GUARD]}}})
    assert isinstance(spec, Spec), spec
    (guard,) = spec.guards
    webhook = GuardWebhook("https://g.test/")
    assert guard == GuardSpec("g", ("Input", "Output"), webhook=webhook, failure_policy="Ignore")
    one, other = (Traffic(1, "chat", guards=guards) for guards in ((guard,), ()))
    assert one.digest != other.digest, "gateways acknowledge the table with them"


def test_blocked_responses_are_bad_ones_and_redacted_ones_are_an_event_of_their_own() -> None:
    assert {"BlockedAnswer": "blocked", "RedactedAnswer": "redacted"}.items() <= BAD_EVENTS.items()
    assert "BlockedAnswer" in INCLUDED and "RedactedAnswer" not in INCLUDED
