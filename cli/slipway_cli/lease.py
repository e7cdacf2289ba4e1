"""Whether an operator keeps the status up to date, by the Lease that its holder renews; pure."""

from datetime import datetime

from slipway_cli.deployment import Json
from slipway_cli.moments import parse_time, since

DURATION_S = 20  # of a Lease that does not say it: the operator's default


def place(obj: Json) -> tuple[str, str] | None:
    """Namespace and name of the Lease, as the operator wrote them; None where it wrote none, as former ones did."""
    namespace, _, name = str((obj.get("status") or {}).get("lease") or "").partition("/")
    return (namespace, name) if namespace and name else None


def outdated(where: tuple[str, str], lease: Json | None, now: datetime) -> str | None:
    """Why the status is not kept up to date; None while somebody renews the Lease. `now` is the API server's."""
    why = _why(lease, now)
    if why is None:
        return None
    return f"no operator runs: its Lease {'/'.join(where)} {why}; what follows is as it was written last"


def _why(lease: Json | None, now: datetime) -> str | None:
    if lease is None:
        return "is gone"
    spec = lease.get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed is None:
        return "has no holder"
    if (now - renewed).total_seconds() > (spec.get("leaseDurationSeconds") or DURATION_S):
        return f"was renewed {since(renewed, now)} ago for the last time"
    return None
