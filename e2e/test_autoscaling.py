"""Capacity follows demand by the real controller of HorizontalPodAutoscalers and by our metrics alone.

`make test` reads every series; `make autoscale` plays a load step, one during a canary, and what happens when a
gateway, the operator or the metrics API is not there. It prints the table, and WRITE=1 puts it into docs/autoscaling.md
with a picture.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from e2e import autoscaling
from e2e.autoscaling import BY_DEMAND, ENGINE, FEW, MOST, POD, Findings, at_least, exactly
from e2e.page import put_table
from e2e.timeline import Timeline, violations
from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL
from slipway_operator.metrics_api.release_loads import GATEWAY_IN_FLIGHT, OF_RELEASE
from slipway_operator.model import quantity
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import START_S, Deployment, Json, canary, model_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM, Kube
from testkit.load.closed import Load
from testkit.report import write
from testkit.until import WaitFailed, until

STEP, CANARY, SERIES = "a load step", "a load step in a paused canary", "every series, read with kubectl"
GATEWAY, OPERATOR, FOREIGN = "a gateway is killed", "the operator is away", "another provider's metrics API"
RESOURCES = "CPU and memory, by metrics-server"
EXPERIMENTS = (STEP, CANARY, SERIES, GATEWAY, OPERATOR, FOREIGN, RESOURCES)

SURGE = 1
AWAY_S = 45.0  # three periods of the autoscaler's controller
LOOK_S = 90.0  # the operator looks once a minute who serves the metrics API

Loads = Callable[..., Load]


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Iterator[Findings]:
    """Takes a row for each experiment, prints them all at the end, and writes them where an option is set."""
    found = Findings()
    yield found
    if not found.rows:
        return
    table = found.markdown(EXPERIMENTS)
    print(f"\n{table}")
    if {name for name, _ in found.rows} == set(EXPERIMENTS):
        write(found.report())
        if page := request.config.getoption("--autoscaling-page"):
            put_table(Path(page), table)


@pytest.fixture(scope="module")
def served(slipway: Installation) -> Iterator[Deployment]:
    """One that is scaled by its demand; each test leaves it with one pod of one revision."""
    strategy = canary({"setWeight": 50}, {"pause": {}}) | {"capacity": {"maxSurge": SURGE}}
    with slipway.deployed("v1", resources=POD, engine=ENGINE, autoscaling=BY_DEMAND, strategy=strategy) as chat:
        autoscaling.until_followed(chat)
        yield chat


# --- demand -----------------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_replicas_follow_a_load_step_and_come_back(
    served: Deployment, load: Loads, findings: Findings, request: pytest.FixtureRequest
) -> None:
    with Timeline(served) as timeline:
        steady = load(served, timeout_s=autoscaling.TIMEOUT_S, **FEW)
        up = autoscaling.climb(served, timeline, load)
        down = autoscaling.descend(timeline, up.crowd)
        served.until("its pods have left", lambda status: status["ready"] == "1/1" and len(served.pods()) == 1, 60)
        report = steady.stop()
        if picture := request.config.getoption("--autoscaling-picture"):
            autoscaling.draw(timeline, up, down, Path(picture))
    failures = (*down.crowd.failures, *report.failures)
    requests, queue = (
        down.crowd.requests + report.requests,
        max((waiting for _, waiting in timeline.waiting()), default=0),
    )
    seen = f"{up.summary()}; {down.summary()}; {queue:.0f} waited at most; {requests} requests, {len(failures)} failed"
    assert violations(timeline.moments(), SURGE) == []
    findings.add(STEP, seen, *autoscaling.step_bars(STEP, up, down, len(failures)))


@pytest.mark.extended
@pytest.mark.timeout(600, func_only=True)
def test_replicas_follow_a_load_step_in_a_paused_canary(
    slipway: Installation, served: Deployment, load: Loads, findings: Findings
) -> None:
    """Weights and step stay, also when the operator dies while the number grows; the promotion then goes on."""
    chat = served
    chat.edit(model={**model_of("v1"), "version": "next"})
    paused = chat.until_state("Paused")
    assert weights_of(paused) == {"next": 50, "v1": 50}
    with Timeline(chat) as timeline:
        steady = load(chat, timeout_s=autoscaling.TIMEOUT_S, **FEW)
        up = autoscaling.climb(chat, timeline, load, meanwhile=slipway.kill_operator)
        down = autoscaling.descend(timeline, up.crowd)
        settled = chat.until("the pods of the pause are left", lambda status: status["ready"] == "2/2", 90)
        promoting = timeline.now()
        assert (settled["step"], weights_of(settled)) == (paused["step"], {"next": 50, "v1": 50})
        chat.promote()
        chat.until_stable("next")
        chat.until_alone()
        report = steady.stop()
    failures = (*down.crowd.failures, *report.failures)
    during = [moment for moment in timeline.moments() if moment.at < promoting]
    others = [moment for moment in during if sorted(moment.weights.values()) != [50, 50]]
    violated = violations(timeline.moments(), SURGE)
    assert not violated, violated
    seen = f"{up.summary()}, with the operator killed in between; {down.summary()}"
    seen = f"{seen}; weights 50/50 in all of {len(during)} changes; then promoted"
    findings.add(
        CANARY,
        f"{seen}; {down.crowd.requests + report.requests} requests, {len(failures)} failed",
        *autoscaling.step_bars(CANARY, up, down, len(failures)),
        exactly(f"{CANARY}: moments with other weights", len(others), 0),
        exactly(f"{CANARY}: violated invariants", len(violated), 0),
    )


# --- the metrics API --------------------------------------------------------------------------------------------------


def test_every_series_is_read_and_the_autoscaler_is_healthy(
    served: Deployment, load: Loads, findings: Findings
) -> None:
    load(served, **FEW)
    place, label = f"namespaces/{served.namespace}", f"labelSelector=slipway.dev/modeldeployment%3D{served.name}"
    paths = []
    for version in ("v1beta2", "v1beta1"):
        for name in metrics_of(served.kube, f"{CUSTOM}/{version}"):
            resource, metric = name.split("/")
            some = f"*/{metric}?{label}" if resource == "pods" else f"{served.name}/{metric}"
            paths.append(f"{CUSTOM}/{version}/{place}/{resource}/{some}")
    external = set(metrics_of(served.kube, f"{EXTERNAL}/v1beta1"))
    assert external.issuperset(OF_RELEASE)
    paths += [f"{EXTERNAL}/v1beta1/{place}/{name}?{label}" for name in external.difference(OF_RELEASE)]
    paths.append(f"{EXTERNAL}/v1beta1/namespaces/{SYSTEM}/{GATEWAY_IN_FLIGHT}")  # without jobs: no lines
    rate = f"{CUSTOM}/v1beta2/{place}/pods/*/slipway_tokens_per_second?{label}"
    # Only an objective that acts publishes slipway_desired_replicas; this one follows another series.
    paths = [path for path in paths if "slipway_desired_replicas" not in path]
    assert rate in paths and len(paths) > 20
    empty = set(paths)

    def all_had_a_value() -> bool:
        empty.difference_update({path for path in empty if has_value(served.kube, path)})
        return not empty

    # A rate needs two readings, and a time to the first token a request that had it lately.
    with suppress(WaitFailed):
        until(all_had_a_value, "each series had a value", 60)
    print(f"without a value: {sorted(empty)}")
    described = served.kube.kubectl("describe", "hpa", f"{served.name}-autoscaler", "--namespace", served.namespace)
    print(described)
    assert re.search(r"ScalingActive +True +ValidMetricFound", described)
    assert re.search(r"AbleToScale +True", described)
    assert "<unknown>" not in described, "a metric has no value"
    seen = f"{len(paths) - len(empty)} of {len(paths)} have a value; `kubectl describe hpa`: ScalingActive True"
    findings.add(SERIES, seen, exactly("series without a value", len(empty), 0))


def metrics_of(kube: Kube, version: str) -> list[str]:
    """What the API itself lists: RESOURCE/METRIC, or METRIC."""
    return [item["name"] for item in json.loads(kube.kubectl("get", "--raw", f"/apis/{version}"))["resources"]]


def has_value(kube: Kube, path: str) -> bool:
    """Whether it is a number with a time; an error of the API is not one."""
    try:
        document = json.loads(kube.kubectl("get", "--raw", f"/apis/{path}"))
    except KubeError as error:
        assert "has no fresh value" in str(error), error
        return False
    return (
        all(quantity.parse(item["value"]) >= 0 and item["timestamp"] for item in document["items"])
        and document["items"] != []
    )


# --- when a part is missing -------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.timeout(600, func_only=True)
def test_the_number_stays_while_a_gateway_or_the_operator_is_gone(
    slipway: Installation, served: Deployment, load: Loads, findings: Findings
) -> None:
    with Timeline(served) as timeline:
        up = autoscaling.climb(served, timeline, load)

        killed = timeline.now()
        slipway.kill(sorted(slipway.ready("gateway"))[0])
        slipway.until_well()
        time.sleep(max(0.0, killed + AWAY_S - timeline.now()))
        least = min(moment.wanted for moment in timeline.moments(killed))
        seen = f"never fewer than {least} replicas wanted in the {AWAY_S:.0f} s from the kill on"
        findings.add(GATEWAY, seen, at_least("replicas wanted while a gateway is gone", least, MOST))

        steady = load(served, timeout_s=autoscaling.TIMEOUT_S, **FEW)
        with without_operator(slipway):
            up.crowd.stop()
            went = timeline.now()
            until(lambda: scaling_active(served)[0] == "False", "the controller has no metric", 60)
            _, reason = scaling_active(served)
            time.sleep(AWAY_S)
            least = served.kube.deployment(served.name, served.namespace)["spec"]["replicas"]
            assert len(served.pods()) == MOST, "pods left while the demand was unknown"
        back = timeline.now()
        gone = timeline.until(
            lambda now: now.condition("Autoscaling").get("reason") == reason,
            60,
            "the condition has the reason",
            since=went,
        )
        recovered = timeline.until(
            lambda now: is_true(now.condition("Autoscaling")), 90, "the condition is good again", since=gone.at
        )
        down = timeline.until(lambda now: now.wanted == 1, 90, "one replica is wanted", since=back)
        failed = len(steady.stop().failures)
    seen = (
        f"{least} replicas for {back - went:.0f} s without demand and without metrics ({reason}); "
        f"1 wanted {down.at - back:.0f} s after it is back, the condition good after {recovered.at - back:.0f} s"
    )
    findings.add(
        OPERATOR,
        f"{seen}; {failed} requests failed",
        exactly("replicas wanted while the operator is away", least, MOST),
        exactly("failed requests while the operator is away", failed, 0),
    )


@contextmanager
def without_operator(slipway: Installation) -> Iterator[None]:
    """Without reconciling and without the metrics API."""
    scale = ("scale", f"deployment/{RELEASE}-operator", "--namespace", SYSTEM)
    slipway.kube.kubectl(*scale, "--replicas=0")
    try:
        until(lambda: not slipway.pods("operator"), "the operator has left", 60)
        yield
    finally:
        slipway.kube.kubectl(*scale, "--replicas=1")
        slipway.until_well()


def scaling_active(chat: Deployment) -> tuple[str, str]:
    """Status and reason of that condition of its autoscaler."""
    conditions = autoscaler(chat)["status"].get("conditions") or ()
    active: Json = next((item for item in conditions if item["type"] == "ScalingActive"), {})
    return str(active.get("status")), str(active.get("reason"))


def autoscaler(chat: Deployment) -> Json:
    path = f"apis/autoscaling/v2/namespaces/{chat.namespace}/horizontalpodautoscalers/{chat.name}-autoscaler"
    return dict(chat.kube.api.find(path))


def is_true(condition: Json) -> bool:
    return condition.get("status") == "True"


@pytest.mark.extended
@pytest.mark.timeout(600, func_only=True)
def test_a_foreign_metrics_api_is_left_alone_and_reported(
    slipway: Installation, served: Deployment, findings: Findings
) -> None:
    ours = f"v1beta2.{CUSTOM}"
    with Timeline(served) as timeline:
        with foreign(slipway.kube, served.namespace, f"v1beta1.{CUSTOM}") as custom:
            until(lambda: not exists(slipway.kube, ours), "ours makes room", LOOK_S)
            until(lambda: read_as(served) == {"External"}, "the other group is read", 60)
            timeline.until(lambda now: is_true(now.condition("Autoscaling")), 60, "it computes by external metrics")
            with foreign(slipway.kube, served.namespace, f"v1beta1.{EXTERNAL}") as external:
                taken = timeline.until(
                    lambda now: now.condition("Autoscaling").get("reason") == "MetricsApiTaken", LOOK_S + 60, "reported"
                )
                kept = [custom(), external()]
        until(lambda: exists(slipway.kube, ours), "ours is back", LOOK_S)
        until(lambda: read_as(served) == {"Object"}, "it is read again", 60)
        timeline.until(lambda now: is_true(now.condition("Autoscaling")), LOOK_S, "it computes again")
    message = taken.condition("Autoscaling")["message"]
    assert f"{served.namespace}/somebodys-adapter" in message
    left = f"{kept.count(True)} of 2 left as they are"
    seen = f"ours makes room, and the group that is left is read; both taken: `MetricsApiTaken`; {left}"
    findings.add(FOREIGN, seen, exactly("registrations of somebody else that are left alone", kept.count(True), 2))


@contextmanager
def foreign(kube: Kube, namespace: str, name: str) -> Iterator[Callable[[], bool]]:
    """An APIService of another owner in the place of ours; yields a check that it is still theirs."""
    version, _, group = name.partition(".")
    service = {"name": "somebodys-adapter", "namespace": namespace, "port": 443}
    spec = {"group": group, "version": version, "service": service, "insecureSkipTLSVerify": True}
    priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
    manifest = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}}
    kube.kubectl("delete", "apiservice", name)
    kube.apply(manifest | {"spec": spec | priorities}, namespace)
    try:
        yield lambda: bool(service_of(kube, name) == service)
    finally:
        kube.kubectl("delete", "apiservice", name, "--ignore-not-found")


def service_of(kube: Kube, name: str) -> Json:
    found = kube.api.find(f"apis/apiregistration.k8s.io/v1/apiservices/{name}")
    return dict(found["spec"].get("service") or {})


def exists(kube: Kube, name: str) -> bool:
    return bool(kube.kubectl("get", "apiservice", name, "--ignore-not-found", "-o", "name"))


def read_as(chat: Deployment) -> set[str]:
    """Kinds of the metrics that its autoscaler has values of."""
    return {item["type"] for item in autoscaler(chat)["status"].get("currentMetrics") or () if item["type"]}


# --- CPU and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.timeout(600, func_only=True)
def test_replicas_follow_cpu_and_memory(
    metrics_server: None, deploy: Callable[..., Deployment], load: Loads, findings: Findings
) -> None:
    by_use = autoscaling.scaled({"type": "CPU", "target": "60%"}, {"type": "Memory", "target": "95%"}, most=2)
    chat = deploy("v1", resources=POD, engine=ENGINE, autoscaling=by_use)
    autoscaling.until_followed(chat)
    with Timeline(chat) as timeline:
        came = timeline.now()
        crowd = load(chat, timeout_s=autoscaling.TIMEOUT_S, **autoscaling.CROWD)
        grown = timeline.until(
            lambda now: now.wanted == 2, START_S, "two replicas are wanted for their CPU", since=came
        )
        used = autoscaler(chat)
        report = crowd.stop()
    current = {item["resource"]["name"]: item["resource"]["current"] for item in used["status"]["currentMetrics"]}
    assert current["cpu"]["averageUtilization"] > 60 and current["memory"]["averageUtilization"] > 0
    print(chat.kube.kubectl("top", "pods", "--namespace", chat.namespace))
    cpu, memory = current["cpu"]["averageUtilization"], current["memory"]["averageUtilization"]
    seen = (
        f"2 replicas wanted after {grown.at - came:.0f} s at {cpu} % of the CPU (target 60 %), {memory} % of the memory"
    )
    findings.add(RESOURCES, seen, exactly("failed requests while CPU is followed", len(report.failures), 0))
