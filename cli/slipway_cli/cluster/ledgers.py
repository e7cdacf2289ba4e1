"""Reads the ledgers of a release's gateways, through the API server."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from slipway_cli.api import Json
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.errors import CommandError, ObjectNotFound, Unreachable

ADMIN_PORT = 8001


def rows(cluster: ClusterClient, namespace: str, hours: tuple[int, int], tenant: str) -> list[dict[str, Any]]:
    """The rows of all gateways in a namespace, each ledger once. `hours`: first and end, in hours of Unix time.

    Raises:
        CommandError: there is no gateway, or one with a ledger of its own does not answer, so the sum would be too low.
    """
    pods = [f"{pod['metadata']['name']}:{admin_port(pod)}" for pod in cluster.gateway_pods(namespace) if _runs(pod)]
    if not pods:
        raise CommandError(
            f"no gateway runs in the namespace {namespace}: name that of the release with --gateways NAMESPACE"
        )
    found: dict[str, list[dict[str, Any]]] = {}
    silent: list[CommandError] = []
    for pod in pods:
        try:
            ledger, is_shared, own = _read(cluster, namespace, pod, hours, tenant)
        except (Unreachable, ObjectNotFound) as error:
            silent.append(CommandError(f"the gateway {pod} does not answer, so there is no sum: {error}"))
            continue
        if is_shared:
            return own
        found[ledger] = own
    if silent:
        raise silent[0]
    return [row for own in found.values() for row in own]


def _read(
    cluster: ClusterClient, namespace: str, pod: str, hours: tuple[int, int], tenant: str
) -> tuple[str, bool, list[dict[str, Any]]]:
    """Id of the ledger, whether gateways share it, and its rows."""
    found: list[dict[str, Any]] = []
    ledger, is_shared = "", False
    for answer in _parts(cluster, namespace, pod, hours, tenant):
        if not (isinstance(answer.get("ledger"), str) and _are_rows(answer.get("rows"))):
            raise CommandError(f"the gateway {pod} answers with something else than rows of a ledger")
        ledger, is_shared = answer["ledger"], bool(answer.get("shared"))
        found += answer["rows"]
    return ledger, is_shared, found


def _are_rows(rows: object) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _parts(cluster: ClusterClient, namespace: str, pod: str, hours: tuple[int, int], tenant: str) -> Iterator[Json]:
    """Responses of a gateway with all rows. It sends a bounded number at once, so a long period is read in halves."""
    first, end = hours
    query = {"first": first, "end": end} | ({"tenant": tenant} if tenant else {})
    answer = cluster.gateway(namespace, pod, f"internal/usage?{urlencode(query)}")
    if answer.get("whole", True):
        yield answer
        return
    if end - first <= 1:
        raise CommandError(f"the gateway {pod} has more rows for one hour than it sends: choose a --tenant")
    middle = (first + end) // 2
    yield from _parts(cluster, namespace, pod, (first, middle), tenant)
    yield from _parts(cluster, namespace, pod, (middle, end), tenant)


def admin_port(pod: Json) -> int:
    """The number of the pod's port `admin`."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "admin"), ADMIN_PORT)


def _runs(pod: Json) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"))
