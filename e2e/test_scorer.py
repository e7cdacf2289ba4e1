"""A scorer in the cluster rates both responses of pairs, and its ratings decide; texts and tokens are compared too."""

import json
from collections.abc import Callable, Iterator

import pytest

from e2e import faults
from e2e.weights import hardened
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

pytestmark = pytest.mark.extended

VERDICT_S = 420
BEFORE = 120  # streams, of which stable's quantile is known
PORT = 8080
LOAD = Shape(rate=12, streamed=1, max_tokens=None)
# It rates how many of the words are different ones, and prints what it gets: names of fields and headers, no contents.
SCORER = f"""
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = {{"fields": sorted(fields), "request": sorted(fields["request"]), "headers": sorted(self.headers)}}
        print(json.dumps(seen), flush=True)
        words = [text.split() for text in fields["answers"]]
        body = json.dumps({{"scores": [len(set(one)) / max(1, len(one)) for one in words]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("", {PORT}), Handler).serve_forever()
"""
SAME: Json = {"engine": {"args": ["--max-num-seqs", "8"]}}
# The model that was trained less repeats a word in its first sentences. In form its responses are as good.
REPEATS: Json = {"model": model_of("v1")}


def scorer_pod(image: str) -> Json:
    pod = hardened("scorer", image, ["python3", "-c", SCORER])
    return pod | {"metadata": pod["metadata"] | {"labels": {"app": "scorer"}}}


def service() -> Json:
    ports = [{"port": PORT, "targetPort": PORT}]
    spec = {"selector": {"app": "scorer"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "scorer"}, "spec": spec}


def template(namespace: str) -> Json:
    """Of what responses say and nothing else."""
    scorer = {"url": f"http://scorer.{namespace}.svc:{PORT}/", "content": "Send", "percentage": 100}
    metrics = [
        {
            "name": "scored",
            "kind": "PairedEvent",
            "event": "LowerScore",
            "share": 1.0,
            "maxExtra": 50,
            "scorer": scorer,
        },
        {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "dryRun": True},
    ]
    return faults.template("rated", minSamples={"pairs": 100, "warmupSeconds": 0}, metrics=metrics)


@pytest.fixture
def scorer(slipway: Installation, namespace: str) -> Iterator[str]:
    """A pod that scores, which gateways may call; gives its name for `kubectl logs`."""
    slipway.kube.apply(scorer_pod(slipway.images.server), namespace)
    slipway.kube.apply(service(), namespace)
    slipway.kube.kubectl("wait", "pod/scorer", "--namespace", namespace, "--for=condition=Ready", "--timeout=60s")
    try:
        slipway.upgrade(gateway={"extraArgs": [f"--scorer-hosts=scorer.{namespace}.svc"]})
        slipway.until_well()
        yield "scorer"
    finally:
        slipway.upgrade()
        slipway.until_well()


@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
@pytest.mark.parametrize(("change", "passes"), [(SAME, True), (REPEATS, False)], ids=["as-good", "repeats"])
def test_what_a_scorer_rates_lower_is_rejected(
    change: Json,
    passes: bool,
    slipway: Installation,
    namespace: str,
    scorer: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    slipway.kube.apply(template(namespace), namespace)
    analysis = {"templates": [{"templateName": "rated"}], "twinShadow": {"percentage": 100}, "maxDuration": "10m"}
    canary = {"baselinePod": True, "steps": [{"analysis": analysis}, {"pause": {}}]}
    chat = deploy("v2", strategy={"canary": canary, "capacity": {"maxSurge": 2}})
    stable = chat.until_stable("v2")["stableRevision"]
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(**change)
    decided = chat.until("there is a verdict", is_over, START_S + VERDICT_S)
    seen = running.stop()
    assert not [item for item in seen if item.trouble] and {item.revision for item in seen} == {stable}
    verdict = chat.analysis(decided)["verdict"]
    print(f"{change}: {verdict['outcome']}, {verdict['message']}")
    scores, quality = verdict["scores"], verdict["quality"]
    calls = [json.loads(line) for line in slipway.kube.kubectl("logs", scorer, "--namespace", namespace).splitlines()]
    if passes:
        assert (verdict["outcome"], state_of(decided)) == ("Pass", "Paused"), decided["message"]
        assert scores["pairs"] >= 50 and scores.get("lowerOnCanary", 0) == scores.get("lowerOnTwin", 0) == 0
        assert quality["tokens"] > 0, "the weights are the same"
        assert quality.get("textsDiffer", 0) == quality.get("flipsOnCanary", 0) == 0
        assert not calls, "equal texts need no call"
    else:
        assert (verdict["outcome"], verdict["metric"]) == ("Fail", "scored"), verdict["message"]
        assert scores["lowerOnCanary"] >= 5 and not scores.get("lowerOnTwin")
        assert scores["canaryMean"] < scores["twinMean"]
        assert len(calls) >= scores["lowerOnCanary"]
    for call in calls:
        assert call["fields"] == ["answers", "id", "model", "request", "version"]
        assert call["request"] == ["messages", "path"]
        assert "Authorization" not in call["headers"], "a scorer gets no key of a client"
    assert weights_of(chat.status) == {"v2": 100}


def is_over(status: Json) -> bool:
    return state_of(status) in ("Aborting", "Aborted", "Paused")
