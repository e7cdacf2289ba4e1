"""What the operator learns about tenants: `/internal/tenants`."""

from slipway_contracts.tenants import GatewayTenants, TenantReport

from ..authentication.authenticator import Authenticator
from .admission import Admission


def report(authenticator: Authenticator, admission: Admission) -> GatewayTenants:
    """The report: use of every tenant that this gateway knows, and its problems with any."""
    admission.take_counts()
    known = authenticator.known
    table = known.current
    tenants: dict[str, TenantReport] = {}
    for name, tenant in table.tenants.items() if table else ():
        tenants[name] = admission.report(tenant)
        tenants[name].trouble = authenticator.trouble_of(tenant, table.pepper if table else b"")
    for name, problem in known.problems.items():
        tenants.setdefault(name, TenantReport()).problem = problem
    return GatewayTenants(tenants, authenticator.looks_at_tenants, admission.ledger.id)
