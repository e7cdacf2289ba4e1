"""Reads the metrics of the operator that keeps a ModelDeployment, through the API server."""

from slipway_cli.api import Json
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.cluster.ledgers import admin_port
from slipway_cli.errors import CommandError


def metrics(cluster: ClusterClient, namespace: str, pod_name: str) -> str:
    """The page of the operator's pod.

    Raises:
        CommandError: there is no such pod, it does not answer, or the user may not read it.
    """
    pods: list[Json] = cluster.operator_pods(namespace)
    pod = next((each for each in pods if each["metadata"]["name"] == pod_name), None)
    if pod is None:
        raise CommandError(f"the operator {pod_name} is no pod of namespace {namespace}")
    return cluster.page(namespace, f"{pod_name}:{admin_port(pod)}", "metrics")
