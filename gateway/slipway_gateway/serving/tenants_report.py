"""What the operator learns about tenants: `/internal/tenants`."""

from typing import Any

from ..authentication.authenticator import Authenticator
from .admission import Admission


def report(authenticator: Authenticator, admission: Admission) -> dict[str, Any]:
    """The report: use of every tenant that this gateway knows, and its problems with any."""
    known = authenticator.known
    table = known.current
    tenants: dict[str, dict[str, Any]] = {}
    for name, tenant in table.tenants.items() if table else ():
        trouble = authenticator.trouble_of(tenant, table.pepper if table else b"")
        tenants[name] = admission.report(tenant) | {"generation": tenant.generation, "trouble": trouble}
    for name, problem in known.problems.items():
        tenants.setdefault(name, {})["problem"] = problem
    return {"authenticates": authenticator.looks_at_tenants, "ledger": admission.ledger.id, "tenants": tenants}
