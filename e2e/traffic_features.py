"""All that `spec.traffic` and ModelRoutes can do at once, for suites that repeat with it (`TRAFFIC=all`).

A verdict must be the same with prefix affinity, a fallback, a cache and a public name in the way of each request.
"""

import json
import os
from urllib.request import Request, urlopen

from testkit.cluster.deployment import NOTICE_S, Deployment, Json
from testkit.load.client import API_KEY
from testkit.until import until

ON = os.environ.get("SLIPWAY_TRAFFIC", "") == "all"
FALLBACK = "reserve"
# Prompts of the load repeat. A kept response would reach no revision, so all are computed, and kept again.
HEADERS = {"Cache-Control": "no-cache"} if ON else {}


def spec() -> Json:
    """`traffic` of a ModelDeployment's spec, or nothing."""
    if not ON:
        return {}
    return {
        "traffic": {
            "loadBalancing": {"policy": "PrefixAffinity"},
            "fallback": [{"name": FALLBACK}],
            "firstByteTimeoutSeconds": 60,
            "cache": {"mode": "Exact", "ttl": "1h"},
        }
    }


def model(chat: Deployment) -> str:
    """The name that clients send."""
    return f"public.{chat.namespace}" if ON else chat.model


def begin(chat: Deployment, url: str) -> None:
    """Makes the fallback and the public name beside a deployment that serves, and waits until gateways have both."""
    if not ON:
        return
    reserve = Deployment(chat.kube, chat.namespace, FALLBACK)
    reserve.create("v1", replicas=1)
    reserve.until_stable("v1")
    chat.kube.apply(_route(chat), chat.namespace)
    until(lambda: all(model(chat) in _models(url) for _ in range(10)), "gateways have the public name", NOTICE_S)


def _models(url: str) -> set[str]:
    """What one of the gateways lists: each connection comes to any of them."""
    request = Request(f"{url}/models", headers={"Authorization": f"Bearer {API_KEY}"})
    with urlopen(request, timeout=10) as response:
        return {listed["id"] for listed in json.load(response)["data"]}


def _route(chat: Deployment) -> Json:
    """Two rules of which the load fits the last one."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelRoute",
        "metadata": {"name": "public"},
        "spec": {
            "model": model(chat),
            "rules": [
                {
                    "name": "tools",
                    "matches": [{"hasTools": True}],
                    "backendRefs": [{"name": FALLBACK}],
                },
                {"name": "rest", "backendRefs": [{"name": chat.name}]},
            ],
        },
    }
