"""The cases of spec.pool: a model without pods of its own."""

from typing import Any

from tests.crds.objects import Case, Change

COMMIT, DIGEST = "0a" * 20, "sha256:" + "0a" * 32


def _member(**fields: Any) -> Change:
    """A model in a pool, with a change; `model`: of its model."""
    model = {"uri": "hf://org/m", "revision": COMMIT, "task": "predict", **fields.pop("model", {})}
    return {"model": model, "pool": {"name": "shared"}, **fields}


def _pool(**fields: Any) -> Change:
    return _member(pool={"name": "shared", **fields})


def _strategy(**fields: Any) -> Change:
    return _member(strategy=fields)


_STEPS = [{"setWeight": 50}, {"pause": {}}]

CEL_CASES = (
    Case(
        "pool-task",
        "spec.pool is for classic models",
        bad=(_member(model={"task": None}), _member(model={"task": "generate"})),
        good=(_member(), _member(model={"task": "classify", "format": "onnx"})),
    ),
    Case(
        "pool-registry",
        "spec.model.uri of a model with spec.pool is no models:/ URI",
        bad=(_member(model={"uri": "models:/m/3", "revision": DIGEST}),),
        good=(_member(),),
    ),
    Case(
        "pool-pods",
        "a model with spec.pool has no pods of its own: remove spec.resources, placement, pod, engine, batching, "
        "autoscaling and restartAt, and write them into the ModelPool",
        bad=(
            _member(resources={"cpu": 1}),
            _member(placement={"nodeSelector": {"zone": "a"}}),
            _member(pod={"labels": {"team": "a"}}),
            _member(engine={"image": "a"}),
            _member(batching={"maxBatchSize": 8}),
            _member(autoscaling={"maxReplicas": 4, "metrics": [{"type": "QueueDepth", "target": "4"}]}),
            _member(restartAt="2026-01-01T00:00:00Z"),
        ),
        good=(_member(progressDeadlineSeconds=60), _member(drain={"timeoutSeconds": 5})),
    ),
    Case(
        "standby-replicas",
        "spec.standbyReplicas is for models with pods of their own, one for each replica",
        bad=(
            _member(standbyReplicas=1),
            {"standbyReplicas": 1, "engine": {"type": "vllm", "image": "vllm:1", "parallelism": {"nodes": 2}}},
        ),
        good=(_member(standbyReplicas=0), {"standbyReplicas": 1}),
    ),
    Case(
        "pool-replicas",
        "a model with spec.pool has no pods of its own: remove spec.replicas",
        bad=(_member(replicas=2),),
        good=(_member(replicas=1), _member(replicas=0)),
    ),
    Case(
        "pool-source",
        "the pods of a pool download its models",
        bad=(
            _member(model={"uri": "pvc://claim/m", "revision": DIGEST}),
            _member(model={"secretRef": {"name": "keys"}}),
            _member(model={"cache": "node"}),
        ),
        good=(_member(model={"cache": "none"}), _member(model={"uri": "s3://bucket/m", "revision": DIGEST})),
    ),
    Case(
        "pool-revision",
        "pods of a pool download a model at different times and must get the same files",
        bad=(
            _member(model={"revision": None}),
            _member(model={"revision": "main"}),
            _member(model={"uri": "https://host/m.tar", "revision": None}),
            _member(model={"uri": "oci://registry.example.com/m:v1", "revision": None}),
        ),
        good=(
            _member(model={"uri": "file:///m", "revision": None}),
            _member(model={"uri": f"oci://registry.example.com/m@{DIGEST}", "revision": None}),
            _member(model={"uri": "https://host/m.tar", "revision": DIGEST}),
        ),
    ),
    Case(
        "pool-strategy",
        "a model with spec.pool has no pods of its own: remove baselinePod and twinShadow",
        bad=(
            _strategy(canary={"steps": _STEPS, "baselinePod": True}),
            _strategy(blueGreen={"prePromotionAnalysis": {"templates": [{"templateName": "a"}], "twinShadow": {}}}),
        ),
        good=(_strategy(canary={"steps": _STEPS, "baselinePod": False}), _strategy(blueGreen={})),
    ),
    Case(
        "pool-memory",
        "spec.pool.maxMemory must be a positive quantity of at most 64Ti: write for example 512Mi",
        bad=(_pool(maxMemory=0), _pool(maxMemory="-1Mi"), _pool(maxMemory="much"), _pool(maxMemory="65Ti")),
        good=(_pool(maxMemory="512Mi"), _pool(maxMemory=500_000_000)),
    ),
)

SCHEMA_CASES = (
    Case(
        "pool.name",
        "spec.pool.name",
        bad=tuple(_pool(name=name) for name in ("", "A", "-a", "a.b", "a" * 41)),
        good=tuple(_pool(name=name) for name in ("a", "a" * 40, "a-1")),
    ),
    Case(
        "pool.maxInFlight",
        "spec.pool.maxInFlight",
        bad=tuple(_pool(maxInFlight=number) for number in (0, 65_537)),
        good=(_pool(maxInFlight=1),),
    ),
    Case(
        "pool.threads",
        "spec.pool.threads",
        bad=tuple(_pool(threads=number) for number in (0, 257)),
        good=(_pool(threads=2, pinned=True),),
    ),
)
