"""Whether an operator keeps the status up to date, by the Lease that its holder renews; pure."""

from datetime import datetime

from slipway_cli.api import Json
from slipway_cli.objects.times import format_age, parse_time

OPERATOR = "slipway-operator"
DURATION_S = 20  # of a Lease without a duration: the operator's default


def parse_place(obj: Json) -> tuple[str, str] | None:
    """Namespace and name of the Lease, as the operator wrote them; None for former operators, which wrote none."""
    namespace, _, name = str((obj.get("status") or {}).get("lease") or "").partition("/")
    return (namespace, name) if namespace and name else None


def find_holder(lease: Json | None, now: datetime) -> str | None:
    """The pod of the operator that works now; None while no operator runs."""
    return None if lease is None or _why(lease, now) else str(lease["spec"]["holderIdentity"])


def explain_command(pod: Json, namespace: str, name: str) -> tuple[str, list[str]]:
    """Container and command that explain a ModelDeployment with the flags with which the operator itself runs.

    Raises:
        LookupError: when the pod has no container of the operator.
    """
    for container in pod["spec"]["containers"]:
        line: list[str] = [*(container.get("command") or [""]), *(container.get("args") or [])]
        program, arguments = line[0], line[1:]
        if program.rpartition("/")[2] == OPERATOR:
            flags = arguments[1:] if arguments[:1] == ["run"] else arguments
            return container["name"], [program, "explain", *flags, "-n", namespace, "--", name]
    raise LookupError(f"pod {pod['metadata']['name']} has no container that runs {OPERATOR}")


def find_outage(where: tuple[str, str], lease: Json | None, now: datetime) -> str | None:
    """Why the status is out of date; None while an operator renews the Lease. `now` is the API server's clock."""
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
        return f"was renewed {format_age(renewed, now)} ago for the last time"
    return None
