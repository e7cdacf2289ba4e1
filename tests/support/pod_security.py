"""Namespaces in which Pod Security `restricted` is enforced, for sure."""

from functools import partial

from testkit.cluster.api import Answer, Api
from testkit.until import until

FORBIDDEN = 403
LABEL = "pod-security.kubernetes.io/enforce"
AS_ROOT = {"containers": [{"name": "a", "image": "a:1"}]}


def enforce_restricted(api: Api, namespace: str) -> None:
    """Label a namespace, and wait until the API server refuses a pod there that may run as root.

    The admission plugin reads labels from a cache of its own. For some milliseconds after the change of a label it may
    still accept everything, and a test of an accepted pod would show nothing.

    Raises:
        WaitFailed: when the API server goes on accepting such a pod.
    """
    assert api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: "restricted"}}}).ok
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": AS_ROOT}
    create = partial(api.post, f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    until(create, "a pod that may run as root is refused", holds=_refused_by_pod_security)


def _refused_by_pod_security(answer: Answer) -> bool:
    return answer.status == FORBIDDEN and "violates PodSecurity" in answer.message
