"""The plan for an object whose spec was not parsed yet, as tests of decisions have it."""

from datetime import datetime

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.adapter_spec import base_of, parse_adapter
from slipway_operator.model.deployment.spec import parse
from slipway_operator.planning import plan as decisions
from slipway_operator.planning.decided import PlanSettings

BASE: Json = {"metadata": {"name": "base"}, "spec": {"model": {"uri": "file:///base"}, "adapters": {}}}


def plan(obj: Json, status: Status, observed: Observed, settings: PlanSettings, now: datetime) -> Plan:
    spec = parse_adapter(obj, BASE) if base_of(obj) else parse(obj)
    return decisions.plan(obj, spec, status, observed, settings, now)
