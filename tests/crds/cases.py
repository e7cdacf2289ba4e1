"""For every rule of the CRD: objects that it refuses, with the message, and similar ones that it accepts."""

from typing import Any

from tests.crds import adapter_cases, engine_cases, pod_cases, pool_cases, source_cases
from tests.crds.objects import Case, Change

REVISION = "abcdefgh23"
EXTERNAL = {
    "url": "https://api.openai.com/v1",
    "model": "gpt-4o-mini",
    "apiKeySecretRef": {"name": "openai", "key": "token"},
}
GOOD_KEYS = ("zone", "nvidia.com/gpu.product", "a.b/C_d-1", "n" * 63)
BAD_KEYS = ("", "-a", "a b", "/a", "a/", "A.b/c/d", "n" * 64, f"{'n' * 260}/{'n' * 60}")
GOOD_VALUES = ("", "a", "A100-SXM4-80GB", "a_b.c", "v" * 63)
BAD_VALUES = ("-a", "a b", "a/b", "v" * 64)


def _model(**fields: Any) -> Change:
    return {"model": fields}


def _predict(**fields: Any) -> dict[str, Any]:
    return {**_model(task="predict"), **fields}


def _uri(*uris: str) -> tuple[Change, ...]:
    return tuple(_model(uri=uri) for uri in uris)


def _args(*args: str) -> Change:
    return {"engine": {"args": list(args)}}


def _env(*variables: Any) -> Change:
    return {"engine": {"env": list(variables)}}


def _from(**source: Any) -> Change:
    return _env({"name": "A", "valueFrom": source})


def _secret_ref(**reference: str) -> Change:
    return _model(secretRef=reference)


def _from_secret(**reference: str) -> Change:
    return _from(secretKeyRef=reference)


def _from_config_map(**reference: str) -> Change:
    return _from(configMapKeyRef=reference)


def _named(*names: str) -> tuple[Change, ...]:
    return tuple(_env({"name": name, "value": "x"}) for name in names)


def _amount(name: str, *amounts: str | int) -> tuple[Change, ...]:
    return tuple({"resources": {name: amount}} for amount in amounts)


def _placement(**fields: Any) -> Change:
    return {"placement": fields}


def _toleration(**fields: Any) -> Change:
    return _placement(tolerations=[{"key": "nvidia.com/gpu", **fields}])


def _required(**requirement: Any) -> Change:
    """Of a node; `requirement` overrides a valid one."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"], **requirement}]}]
    return _affinity(requiredDuringSchedulingIgnoredDuringExecution={"nodeSelectorTerms": terms})


def _preferred(**requirement: Any) -> Change:
    preference = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"], **requirement}]}
    return _affinity(preferredDuringSchedulingIgnoredDuringExecution=[{"weight": 1, "preference": preference}])


def _affinity(**fields: Any) -> Change:
    return _placement(affinity={"nodeAffinity": fields})


def _spread(**fields: Any) -> Change:
    sound = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    return _placement(topologySpreadConstraints=[{**sound, **fields}])


def _canary(**fields: Any) -> Change:
    return {"strategy": {"canary": fields}}


def _steps(*steps: Any) -> Change:
    return _canary(steps=list(steps))


def _pause(*durations: str) -> tuple[Change, ...]:
    return tuple(_steps({"pause": {"duration": duration}}) for duration in durations)


def _rollout(verb: str, *tokens: str) -> tuple[Change, ...]:
    return tuple({"rollout": {verb: token}} for token in tokens)


def _cache(ttl: str) -> Change:
    return {"traffic": {"cache": {"mode": "Exact", "ttl": ttl}}}


_SECRET = {"name": "team-chat", "key": "url"}


def _hooks(*hooks: Change) -> Change:
    return {"strategy": {"hooks": list(hooks)}}


def _hook(**fields: Any) -> Change:
    return {"name": "gate", "type": "confirm-rollout", "url": "http://gate.tools.svc/approve", **fields}


def _weights(*weights: int) -> Change:
    return _steps(*({"setWeight": weight} for weight in weights))


def _match(name: str = "X-Team", **value: str) -> list[dict[str, Any]]:
    return [{"headerName": name, "headerValue": value or {"exact": "qa"}}]


def _analysis(*names: str, **fields: Any) -> dict[str, Any]:
    return {"analysis": {"templates": [{"templateName": name} for name in names or ("llm-default",)], **fields}}


def _shadowed(place: str, field: str, value: str) -> dict[str, Any]:
    """A twin shadow with this value of a field, in a canary or before a blue-green switch."""
    shadow = {"probes": {"prompts": ["x"], "api": value}} if field == "probes.api" else {field: value}
    if place.startswith("canary"):
        return _beside(_analysis(twinShadow=shadow))
    return _around("prePromotionAnalysis", twinShadow=shadow)


def _ramp(**fields: Any) -> dict[str, Any]:
    return {"ramp": {"templates": [{"templateName": "llm-release"}], **fields}}


def _beside(*steps: dict[str, Any]) -> dict[str, Any]:
    return _canary(baselinePod=True, steps=list(steps))


def _around(field: str, *names: str, **fields: Any) -> dict[str, Any]:
    return {"strategy": {"blueGreen": {field: _analysis(*names, **fields)["analysis"]}}}


def _route(match: list[dict[str, Any]]) -> dict[str, Any]:
    return _steps({"setHeaderRoute": {"name": "testers", "match": match}})


def _preview(match: list[dict[str, Any]]) -> dict[str, Any]:
    return {"strategy": {"blueGreen": {"previewRoute": {"match": match}}}}


def _threshold(strategy: str, kind: str, value: int) -> dict[str, Any]:
    return {"strategy": {strategy: {"replicaProgressThreshold": {"type": kind, "value": value}}}}


def _capacity(**capacity: object) -> dict[str, Any]:
    return {"strategy": {"capacity": capacity}}


def _scaled(*metrics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"autoscaling": {"maxReplicas": 4, "metrics": list(metrics) or [_follow()], **fields}}


def _follow(**fields: Any) -> dict[str, Any]:
    return {"type": "QueueDepth", "target": "4", **fields}


def _objective(**fields: Any) -> dict[str, Any]:
    objective = {"mode": "Advise", **fields}
    return {"slo": {"ttftP95": "800ms"}, "autoscaling": {"maxReplicas": 4, "objective": objective}}


def _schedule(**fields: Any) -> dict[str, Any]:
    schedule = {"name": "day", "cron": "0 8 * * 1-5", "durationSeconds": 3600, "minReplicas": 2, **fields}
    return _objective(schedules=[{name: value for name, value in schedule.items() if value is not None}])


def _behavior(direction: str, **rules: Any) -> dict[str, Any]:
    return _scaled(behavior={direction: rules})


def _policy(kind: str) -> dict[str, Any]:
    return {"policies": [{"type": kind, "value": 1, "periodSeconds": 60}]}


GUARD_URL = "https://guard.tools.svc/check"


def guarded(**changes: Any) -> dict[str, Any]:
    """A spec with a guard that has these fields; None: without the field."""
    guard = {"name": "policy", "stages": ["Input"], "webhook": {"url": GUARD_URL}} | changes
    return {"traffic": {"guards": [{name: value for name, value in guard.items() if value is not None}]}}


CEL_CASES = (
    Case(
        "accuracy.empty",
        "spec.accuracy watches nothing",
        bad=({"accuracy": {}}, {"accuracy": {"onAlarm": "Rollback"}}),
        good=({"accuracy": {"predictions": {}}},),
    ),
    Case(
        "accuracy.feedback",
        "spec.accuracy.feedback has one limit",
        bad=({"accuracy": {"feedback": {}}}, {"accuracy": {"feedback": {"minAccuracy": 0.9, "maxDrop": 0.1}}}),
        good=({"accuracy": {"feedback": {"minAccuracy": 0.9}}}, {"accuracy": {"feedback": {"maxDrop": 0.05}}}),
    ),
    Case(
        "accuracy.feedback.maxAge",
        "accuracy.feedback.maxAge is a number of minutes, hours or days",
        bad=tuple(
            {"accuracy": {"feedback": {"minAccuracy": 0.9, "maxAge": age}}} for age in ("0d", "30", "1w", "1.5h")
        ),
        good=({"accuracy": {"feedback": {"minAccuracy": 0.9, "maxAge": "45d"}}},),
    ),
    Case(
        "accuracy.predictions.reference",
        "accuracy.predictions.reference is a number of minutes, hours or days",
        bad=tuple({"accuracy": {"predictions": {"reference": time}}} for time in ("0d", "7", "1w")),
        good=({"accuracy": {"predictions": {"reference": "12h"}}},),
    ),
    Case(
        "slo.empty",
        "spec.slo has no objective",
        bad=({"slo": {}}, {"slo": {"window": "28d"}}),
        good=({"slo": {"availability": "99.9"}},),
    ),
    *(
        Case(
            f"slo.{name}",
            f"slo.{name} is written in milliseconds or seconds",
            bad=tuple({"slo": {name: limit}} for limit in ("0ms", "1m", "60", "1.5s", "-1s")),
            good=({"slo": {name: "800ms"}}, {"slo": {name: "2s"}}),
        )
        for name in ("ttftP95", "itlP95", "latencyP99")
    ),
    Case(
        "slo.availability",
        "slo.availability is a percentage",
        bad=tuple({"slo": {"availability": share}} for share in ("100", "99,9", "9", "99.9%", "0")),
        good=({"slo": {"availability": "99.999"}}, {"slo": {"availability": "95"}}),
    ),
    Case(
        "slo.window",
        "slo.window is a number of days",
        bad=tuple({"slo": {"availability": "99", "window": days}} for days in ("0d", "91d", "4w", "24h")),
        good=tuple({"slo": {"availability": "99", "window": days}} for days in ("1d", "28d", "90d")),
    ),
    *engine_cases.CEL_CASES,
    *pod_cases.CEL_CASES,
    *source_cases.CEL_CASES,
    *pool_cases.CEL_CASES,
    *adapter_cases.CEL_CASES,
    Case(
        "placement.tolerations of Kubernetes",
        "a toleration in spec.placement names a taint of your own nodes",
        bad=tuple(
            _toleration(key=key)
            for key in ("node-role.kubernetes.io/control-plane", "node.kubernetes.io/not-ready", "node.kubernetes.io/x")
        ),
        good=(_toleration(operator="Exists"), _toleration(key="dedicated", value="models", effect="NoSchedule")),
    ),
    Case(
        "placement.tolerations.value",
        "a toleration with operator Exists has no value",
        bad=(_toleration(operator="Exists", value="a"),),
        good=(_toleration(operator="Equal", value="a"), _toleration(value="a"), _toleration(operator="Exists")),
    ),
    Case(
        "placement.tolerations.tolerationSeconds",
        "tolerationSeconds of a toleration goes with effect NoExecute only",
        bad=(_toleration(tolerationSeconds=1), _toleration(tolerationSeconds=1, effect="NoSchedule")),
        good=(_toleration(tolerationSeconds=0, effect="NoExecute"),),
    ),
    Case(
        "placement.affinity.values",
        "values of a node requirement",
        bad=tuple(
            change(**wrong)
            for change in (_required, _preferred)
            for wrong in (
                {"values": []},
                {"operator": "Exists"},
                {"operator": "Gt"},
                {"operator": "Lt", "values": ["1", "2"]},
            )
        ),
        good=tuple(
            change(**right)
            for change in (_required, _preferred)
            for right in (
                {},
                {"operator": "NotIn"},
                {"operator": "Exists", "values": []},
                {"operator": "DoesNotExist", "values": []},
                {"operator": "Gt", "values": ["70000"]},
            )
        ),
    ),
    Case(
        "placement.nodeSelector keys",
        "a key of spec.placement.nodeSelector is no label",
        bad=tuple(_placement(nodeSelector={key: "a"}) for key in BAD_KEYS),
        good=tuple(_placement(nodeSelector={key: "a"}) for key in GOOD_KEYS),
    ),
    Case(
        "accelerator and engine.args",
        "spec.engine.args must not set --device",
        bad=tuple(
            {"resources": {"accelerator": {"count": 1}}, "engine": {"args": args}}
            for args in (["--device", "cpu"], ["--device=cpu"])
        ),
        good=(
            {"engine": {"args": ["--device", "cpu"]}},
            {"resources": {"accelerator": {"count": 1}}, "engine": {"args": ["--allow-slow"]}},
        ),
    ),
    Case(
        "accelerator and quantization",
        "spec.model.quantization int8 and int4 are for CPUs",
        bad=tuple(
            {"resources": {"accelerator": {"count": 1}}, "model": {"quantization": bits}} for bits in ("int8", "int4")
        ),
        good=({"model": {"quantization": "int8"}}, {"model": {"quantization": "int4"}}),
    ),
    Case(
        "secret-uri",
        "spec.model.secretRef holds credentials of a hub, an object store or a registry and goes with hf://, s3://",
        bad=tuple(_model(uri=uri, secretRef={"name": "hub"}) for uri in ("https://a/m.tar", "pvc://a/b", "file:///m")),
        good=(
            *(
                _model(uri=uri, secretRef={"name": "keys"})
                for uri in ("s3://abc/m", "gs://abc/m", "oci://h/r:1", "models:/m/3")
            ),
            *(_model(secretRef={"name": "hub"}), _model(uri="https://a/m.tar")),
        ),
    ),
    Case(
        "uri-credentials",
        "spec.model.uri must not hold credentials",
        bad=_uri("https://user:word@host/m.tar", "https://word@host/m.tar"),
        good=_uri("https://host/m.tar?mail=a@b", "https://host/a@b/m.tar"),
    ),
    Case(
        "env-hub-token",
        "spec.engine.env must not hold a hub's token",
        bad=_named("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"),
        good=(_env({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),),
    ),
    Case(
        "env-secret",
        "spec.engine.env must not hold a secret",
        bad=_named("OPENAI_API_KEY", "APIKEY", "db_password", "AWS_SECRET_ACCESS_KEY", "TOKEN", "CLIENT_SECRET"),
        good=_named("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "SECRETS_DIR", "KEY", "HF_ENDPOINT"),
    ),
    Case(
        "env-url",
        "a value of spec.engine.env must not hold a URL with credentials",
        bad=(_env({"name": "HF_ENDPOINT", "value": "https://user:word@mirror/"}),),
        good=(_env({"name": "HF_ENDPOINT", "value": "https://mirror:443/a:b@c"}),),
    ),
    Case(
        "env-operator",
        "spec.engine.env must not set SLIPWAY_PIN_FILE or SLIPWAY_DEPLOYMENT",
        bad=(*_named("SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"),),
        good=_named("HOME", "POD_NAME", "SLIPWAY_LOG_LEVEL"),
    ),
    Case(
        "env-value-or-source",
        "a variable of spec.engine.env has either value or valueFrom",
        bad=(
            _env({"name": "A"}),
            _env({"name": "A", "value": "", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),
        ),
        good=(_from(secretKeyRef={"name": "a", "key": "b"}),),
    ),
    Case(
        "env-source",
        "valueFrom in spec.engine.env has either secretKeyRef or configMapKeyRef",
        bad=(_from(), _from(secretKeyRef={"name": "a", "key": "b"}, configMapKeyRef={"name": "a", "key": "b"})),
        good=(_from(configMapKeyRef={"name": "a", "key": "b"}),),
    ),
    Case(
        "autoscaling-bounds",
        "spec.autoscaling.minReplicas is at most maxReplicas",
        bad=(_scaled(minReplicas=5),),
        good=(_scaled(minReplicas=4), _scaled()),
    ),
    Case(
        "autoscaling-follows",
        "spec.autoscaling needs metrics, or an objective",
        bad=({"autoscaling": {"maxReplicas": 4}},),
        good=(_scaled(), _objective()),
    ),
    Case(
        "autoscaling-objective-slo",
        "spec.autoscaling.objective needs a latency that pods have to hold",
        bad=(_objective() | {"slo": None}, _objective() | {"slo": {"availability": "99"}}),
        good=(_objective() | {"slo": {"latencyP99": "2s"}},),
    ),
    Case(
        "autoscaling-schedule",
        "spec.autoscaling.objective.schedules changes a bound",
        bad=(_schedule(minReplicas=None),),
        good=(_schedule(), _schedule(minReplicas=None, maxReplicas=3)),
    ),
    Case(
        "autoscaling-schedule-bounds",
        "spec.autoscaling.objective.schedules.minReplicas is at most maxReplicas",
        bad=(_schedule(maxReplicas=1),),
        good=(_schedule(maxReplicas=2),),
    ),
    Case(
        "autoscaling-zero",
        "spec.autoscaling.minReplicas: 0 and idleSeconds go together",
        bad=(_scaled(minReplicas=0), _scaled(idleSeconds=60), _scaled(minReplicas=1, idleSeconds=60)),
        good=(_scaled(minReplicas=0, idleSeconds=60),),
    ),
    Case(
        "autoscaling-hold",
        "spec.autoscaling.holdSeconds goes with idleSeconds only",
        bad=(_scaled(holdSeconds=60),),
        good=(_scaled(minReplicas=0, idleSeconds=60, holdSeconds=0),),
    ),
    Case(
        "autoscaling-name",
        "spec.autoscaling.metrics.name goes with External and Pods",
        bad=(_scaled(_follow(type="External")), _scaled(_follow(type="Pods")), _scaled(_follow(name="depth"))),
        good=(_scaled(_follow(type="External", name="sqs_depth"), _follow(type="Pods", name="busy")),),
    ),
    Case(
        "autoscaling-name-path",
        "spec.autoscaling.metrics.name is a part of a URL",
        bad=tuple(_scaled(_follow(type="External", name=name)) for name in ("kafka/lag", "lag%", ".", "..")),
        good=(_scaled(_follow(type="External", name="kafka.lag:rate-5m")),),
    ),
    Case(
        "autoscaling-selector",
        "spec.autoscaling.metrics.selector goes with External and Pods only",
        bad=(_scaled(_follow(selector={"matchLabels": {"queue": "a"}})),),
        good=(_scaled(_follow(type="External", name="depth", selector={"matchLabels": {"queue": "a"}})),),
    ),
    Case(
        "autoscaling-target-type",
        "spec.autoscaling.metrics.targetType goes with External only",
        bad=(_scaled(_follow(targetType="Value")), _scaled(_follow(type="Pods", name="busy", targetType="Value"))),
        good=(_scaled(_follow(type="External", name="depth", targetType="Value")),),
    ),
    Case(
        "autoscaling-target",
        "spec.autoscaling.metrics.target is a positive quantity",
        bad=(
            *(_scaled(_follow(target=target)) for target in ("0", "-1", "many", "70%", "")),
            *(_scaled(_follow(type="CPU", target=target)) for target in ("0%", "7.5%", "%", "-5%")),
        ),
        good=(
            *(_scaled(_follow(target=target)) for target in ("4", "500m", "1.5")),
            *(_scaled(_follow(type="CPU", target=target)) for target in ("70%", "250%", "500m")),
            _scaled(_follow(type="Memory", target="20Gi")),
        ),
    ),
    Case(
        "revision-is-a-digest",
        "spec.model.revision of an https://, s3://, gs://, az://, pvc://, file:// or models:/ model is its digest",
        bad=(
            _model(uri="pvc://claim/m", revision="main"),
            _model(uri="file:///m", revision="sha256:12"),
            _model(uri="https://host/m.tar", revision="sha256:" + "A" * 64),
            _model(uri="s3://bucket/m", revision="main"),
            _model(uri="models:/m/3", revision="main"),
        ),
        good=tuple(
            _model(uri=uri, revision="sha256:" + "0a" * 32)
            for uri in ("pvc://c/m", "file:///m", "https://h/m.tar", "gs://abc/m", "models:/m/3")
        ),
    ),
    Case(
        "revision-alias",
        "spec.model.revision does not go with an alias of a registered model",
        bad=(_model(uri="models:/m@champion", revision="sha256:" + "0a" * 32),),
        good=(_model(uri="models:/m@champion"), _model(uri="models:/m/3", revision="sha256:" + "0a" * 32)),
    ),
    Case(
        "revision-of-a-repository",
        "spec.model.revision of an hf:// model is a branch, a tag or a commit",
        bad=(_model(revision="sha256:" + "0a" * 32),),
        good=(_model(revision="main"), _model(revision="9f3c1e0")),
    ),
    Case(
        "uri-scheme",
        "spec.model.uri must start with hf://, https://, s3://, gs://, az://, oci://, pvc://, file:// or models:/",
        bad=_uri(
            "org/model", "S3://bucket/model", "http://host/model.tar", "HF://org/model", "hf://", "docker://h/r:1"
        ),
        good=_uri("https://host/model.tar", "https://host:8443/a/b.tar?x=1"),
    ),
    Case(
        "uri-hf",
        "an hf:// uri names one repository: write hf://org/model",
        bad=_uri("hf://model", "hf://org/model/file", "hf://org/model@main", "hf://org/", "hf:///model", "hf://o rg/m"),
        good=_uri("hf://Qwen/Qwen3-0.6B", "hf://org/model_v1.2"),
    ),
    Case(
        "model-name-slash",
        "spec.model.name must not contain '/', because namespace/name is how a ModelDeployment is always reached",
        bad=tuple(_model(name=name) for name in ("org/chat", "Qwen/Qwen3-0.6B", "a/b/c")),
        good=(_model(name="Qwen3-0.6B"),),
    ),
    Case(
        "uri-registry",
        "a models:/ uri names a registered model by an alias or a version",
        bad=(
            *_uri("models:/m", "models:/m/Production", "models:/m/0", "models:/m@", "models://m@x", "models:/a:b@x"),
            *_uri("models:/a?b@x", "models:/ a@x", "models:/a\tb@x", "models:/m@a/3", "models:m/3"),
        ),
        good=_uri("models:/chat@champion", "models:/a.b my_model/12", "models:/é-1@x_2"),
    ),
    Case(
        "uri-pvc",
        "a pvc:// uri names a claim in the same namespace: write pvc://claim/path",
        bad=_uri("pvc:///models", "pvc://Claim/models", "pvc://claim-/models", "pvc://my claim"),
        good=_uri("pvc://claim", "pvc://claim/models/chat", "pvc://team.claim-1/"),
    ),
    Case(
        "uri-file",
        "a file:// uri holds an absolute path: write file:///path/to/model",
        bad=_uri("file://models/tiny", "file://localhost/models/tiny"),
        good=_uri("file:///opt/slipway/models/tiny-v1"),
    ),
    Case(
        "uri-no-parent",
        "spec.model.uri must not contain '..'",
        bad=_uri("file:///models/../etc", "pvc://claim/..", "pvc://claim/a/../../b"),
        good=_uri("file:///models/a..b", "pvc://claim/..hidden"),
    ),
    Case(
        "format-predicts",
        "spec.model.format is for task: predict, classify and rerank",
        bad=(_model(format="onnx"), _model(task="embed", format="onnx")),
        good=(_model(format="auto"), _model(task="classify", format="onnx")),
    ),
    Case(
        "rerank-format",
        "spec.model.task: rerank is for rerankers of Hugging Face",
        bad=(_model(task="rerank", format="onnx"),),
        good=(_model(task="rerank"), _model(task="rerank", format="transformers")),
    ),
    Case(
        "predict-no-language-model",
        "spec.model.dtype, quantization and maxModelLen are for language models",
        bad=tuple(
            _model(task=task, **one)
            for task in ("predict", "classify", "rerank")
            for one in ({"dtype": "float16"}, {"quantization": "int8"}, {"maxModelLen": 16})
        ),
        good=(_model(task="predict", dtype="auto", quantization="none"),),
    ),
    Case(
        "batching-predicts",
        "spec.batching is for spec.model.task: predict, classify and rerank",
        bad=({"batching": {"maxBatchSize": 8}},),
        good=(
            _predict(batching={"maxBatchSize": 8}),
            _predict(batching={}),
            *({**_model(task=task), "batching": {"maxBatchSize": 8}} for task in ("classify", "rerank")),
        ),
    ),
    Case(
        "predict-engine",
        "spec.model.task predict, classify or rerank is for the engine type slipway",
        bad=(
            _predict(engine={"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}),
            _predict(engine={"toolParser": "hermes"}),
        ),
        good=(_predict(engine={"args": ["--max-batch-s", "5"]}),),
    ),
    Case(
        "predict-cpu",
        "spec.model.task predict, classify or rerank uses CPUs",
        bad=(_predict(resources={"accelerator": {"resource": "nvidia.com/gpu", "count": 1}}),),
        good=(_predict(resources={"cpu": 2}),),
    ),
    Case(
        "args-reserved",
        "spec.engine.args must not set --model",
        bad=tuple(
            _args(arg)
            for arg in (
                *("--model", "--model=/x", "--served-model-name=x", "--model-version", "--task", "--dtype=auto"),
                *("--quantization=int8", "--format=onnx", "--model-revision", "--max-batch-size=1", "--max-queue-size"),
                *("--max-model-len", "--port=1", "--probe-port", "--drain-timeout", "--host=0.0.0.0"),
            )
        ),
        good=(_args("--max-num-seqs", "8"), _args("--model-cache=/tmp"), _args("--portable")),
    ),
    Case(
        "cpu",
        "spec.resources.cpu must be a positive quantity",
        bad=_amount("cpu", "0", 0, "-1", "four", "4 cores"),
        good=_amount("cpu", 4, "4", "500m", "0.5"),
    ),
    Case(
        "storage",
        "spec.resources.storage must be a positive quantity",
        bad=_amount("storage", "0", "-1Gi", "24GB", "much", "65Ti"),
        good=_amount("storage", "200Gi", "1T", 1073741824),
    ),
    Case(
        "storage-of-downloads",
        "spec.resources.storage is for models that are downloaded",
        bad=tuple(
            {"model": model, "resources": {"storage": "1Gi"}}
            for model in ({"uri": "pvc://claim/m"}, {"uri": "file:///m"}, {"uri": "oci://h/r:1", "cache": "image"})
        ),
        good=tuple(
            {"model": {"uri": uri}, "resources": {"storage": "1Gi"}}
            for uri in ("hf://o/m", "https://h/m.tar", "s3://abc/m", "oci://h/r:1", "models:/m@champion")
        ),
    ),
    Case(
        "memory",
        "spec.resources.memory must be a positive quantity",
        bad=_amount("memory", "0", "-1Gi", "24GB", "much"),
        good=_amount("memory", "24Gi", "512Mi", 1073741824),
    ),
    Case(
        "one-strategy",
        "spec.strategy takes canary or blueGreen, not both",
        bad=({"strategy": {"canary": {}, "blueGreen": {}}},),
        good=({"strategy": {"canary": {}}}, {"strategy": {"blueGreen": {}}}, {"strategy": {}}),
    ),
    Case(
        "steps-or-percent",
        "spec.strategy.canary takes steps or trafficPercent, not both",
        bad=(_canary(steps=[{"setWeight": 10}], trafficPercent=10),),
        good=(_canary(trafficPercent=10), _weights(10)),
    ),
    Case(
        "weights-rise",
        "the weights of spec.strategy.canary.steps must rise",
        bad=(_weights(50, 10), _steps({"setWeight": 50}, {"pause": {}}, {"setWeight": 49})),
        good=(_weights(10, 50, 100), _weights(10, 10), _steps({"setWeight": 0}, {"pause": {}}, {"setWeight": 50})),
    ),
    Case(
        "step-one-thing",
        "each step of spec.strategy.canary.steps is exactly one of setWeight, setCanaryScale, setHeaderRoute, set",
        bad=(_steps({"setWeight": 10, "pause": {}}), _steps({}), _steps({"pause": {}, **_analysis()})),
        good=(
            _steps({"pause": {}}),
            _steps({"setWeight": 10}),
            _steps({"setCanaryScale": {"replicas": 2}}),
            _steps({"setHeaderRoute": {"name": "testers", "match": _match()}}, {"setHeaderRoute": {"name": "testers"}}),
            _steps(
                {"setMirrorRoute": {"percentage": 20}}, {"setMirrorRoute": {"match": _match()}}, {"setMirrorRoute": {}}
            ),
        ),
    ),
    Case(
        "canary-scale-one-thing",
        "setCanaryScale takes exactly one of replicas, weight and matchTrafficWeight",
        bad=(
            _steps({"setCanaryScale": {}}),
            _steps({"setCanaryScale": {"replicas": 1, "weight": 10}}),
            _steps({"setCanaryScale": {"weight": 10, "matchTrafficWeight": True}}),
        ),
        good=(_steps({"setCanaryScale": {"weight": 25}}), _steps({"setCanaryScale": {"matchTrafficWeight": True}})),
    ),
    Case(
        "match-traffic-weight",
        "setCanaryScale.matchTrafficWeight is true or left out",
        bad=(_steps({"setCanaryScale": {"matchTrafficWeight": False}}),),
        good=(_steps({"setCanaryScale": {"matchTrafficWeight": True}}),),
    ),
    Case(
        "header-name",
        "headerName is the name of an HTTP header",
        bad=(_route(_match(name="X Canary")), _preview(_match(name="X:Canary"))),
        good=(_route(_match(name="Host")), _preview(_match(name="X-Canary_1"))),
    ),
    Case(
        "header-value",
        "headerValue takes either exact or prefix",
        bad=(_route(_match(exact="a", prefix="a")), _preview([{"headerName": "X", "headerValue": {}}])),
        good=(_route(_match(exact="a")), _preview([{"headerName": "X", "headerValue": {"prefix": "a"}}])),
    ),
    Case(
        "blue-green-gate",
        "spec.strategy.blueGreen waits for a promotion or for autoPromotionSeconds, not for both",
        bad=({"strategy": {"blueGreen": {"autoPromotionEnabled": False, "autoPromotionSeconds": 5}}},),
        good=(
            {"strategy": {"blueGreen": {"autoPromotionSeconds": 5, "previewReplicaCount": 1}}},
            {"strategy": {"blueGreen": {"autoPromotionEnabled": False}}},
        ),
    ),
    Case(
        "progress-threshold",
        "replicaProgressThreshold.value is at most 100 for type Percent",
        bad=(_threshold("canary", "Percent", 101), _threshold("blueGreen", "Percent", 200)),
        good=(_threshold("canary", "Percent", 90), _threshold("blueGreen", "Pod", 200)),
    ),
    Case(
        "max-surge",
        "maxSurge is a number of pods or a percentage up to 100%",
        bad=tuple(_capacity(maxSurge=surge) for surge in (-1, "101%", "1", "-5%", "1.5%")),
        good=tuple(_capacity(maxSurge=surge) for surge in (0, 1, "0%", "25%", "100%")),
    ),
    Case(
        "pause-duration",
        "pause.duration is written in hours, minutes and seconds",
        bad=_pause("10", "1d", "5m1h", "m5", "-5m", "1.5h", "10 m"),
        good=_pause("30s", "10m", "1h30m", "1h1m1s"),
    ),
    Case(
        "analysis-one-template",
        "an analysis takes exactly one template in this release",
        bad=(
            _steps(_analysis("a", "b")),
            _canary(**_analysis("a", "b")),
            _around("prePromotionAnalysis", "a", "b"),
            _around("postPromotionAnalysis", "a", "b"),
        ),
        good=(
            _steps(_analysis(untilVerdict=False)),
            _canary(**_analysis("mine", startingStep=2)),
            _around("prePromotionAnalysis", "mine"),
            _around("prePromotionAnalysis", "mine", twinShadow={"percentage": 50}),
            _around("postPromotionAnalysis", untilVerdict=False),
        ),
    ),
    Case(
        "twin-shadow-without-baseline",
        "an analysis with twinShadow needs baseline pods: add spec.strategy.canary.baselinePod: true",
        bad=(
            _steps(_analysis(twinShadow={})),
            _canary(baselinePod=False, steps=[_analysis(twinShadow={})]),
            _steps(_analysis(twinShadow={"reference": "BaselinePod"})),
        ),
        good=(
            _beside(_analysis(twinShadow={})),
            _beside(_analysis(twinShadow={"percentage": 25, "reference": "OnFailure"})),
            _steps(_analysis(twinShadow={"reference": "OnFailure"}), {"setWeight": 5}),
        ),
    ),
    Case(
        "probes-too-long",
        "the prompts of probes have at most 16384 characters together",
        bad=(_beside(_analysis(twinShadow={"probes": {"prompts": ["x" * 4096] * 4 + ["y"]}})),),
        good=(
            _beside(_analysis(twinShadow={"probes": {"prompts": ["x" * 4096] * 4}})),
            _beside(_analysis(twinShadow={"probes": {"prompts": ["x"] * 32, "api": "Completions", "maxTokens": 1}})),
            _around("prePromotionAnalysis", twinShadow={"probes": {"prompts": ["x"], "pairsPerMinute": 600}}),
        ),
    ),
    Case(
        "twin-shadow-after-weight",
        "an analysis with twinShadow comes before the first setWeight above 0",
        bad=(
            _beside({"setWeight": 5}, _analysis(twinShadow={})),
            _beside({"setWeight": 5}, {"pause": {}}, _analysis(), _analysis(twinShadow={})),
        ),
        good=(
            _beside({"setWeight": 0}, _analysis(twinShadow={}), {"setWeight": 5}, _analysis()),
            _beside({"setCanaryScale": {"replicas": 2}}, _analysis(twinShadow={"maxPairsPerSecond": 5})),
        ),
    ),
    Case(
        "ramp-without-shadow",
        "a ramp comes once, after an analysis with twinShadow",
        bad=(
            _steps(_ramp()),
            _beside(_ramp(), _analysis(twinShadow={})),
            _beside(_analysis(), _ramp()),
            _beside(_analysis(twinShadow={}), _ramp(), _ramp()),
        ),
        good=(
            _beside(_analysis(twinShadow={}), _ramp()),
            _beside({"setWeight": 0}, _analysis(twinShadow={}), {"pause": {}}, _ramp(), {"pause": {}}),
        ),
    ),
    Case(
        "ramp-and-weights",
        "a ramp chooses the weights: remove setWeight from 1 to 99",
        bad=(
            _beside(_analysis(twinShadow={}), _ramp(), {"setWeight": 95}),
            _beside(_analysis(twinShadow={}), {"setWeight": 5}, _ramp()),
        ),
        good=(_beside(_analysis(twinShadow={}), _ramp(), {"setWeight": 100}, {"pause": {"duration": "10m"}}),),
    ),
    Case(
        "ramp-bake",
        "ramp.auto.bake is written in hours, minutes and seconds",
        bad=tuple(_beside(_analysis(twinShadow={}), _ramp(auto={"bake": bake})) for bake in ("10", "1d", "m5")),
        good=tuple(_beside(_analysis(twinShadow={}), _ramp(auto={"bake": bake})) for bake in ("0s", "1h30m")),
    ),
    Case(
        "ramp-duration",
        "ramp.maxDuration is written in hours, minutes and seconds",
        bad=tuple(_beside(_analysis(twinShadow={}), _ramp(maxDuration=text)) for text in ("10", "1d", "1.5h")),
        good=tuple(_beside(_analysis(twinShadow={}), _ramp(maxDuration=text)) for text in ("30s", "1h30m")),
    ),
    Case(
        "cache-ttl",
        "traffic.cache.ttl is written in hours, minutes and seconds",
        bad=tuple(_cache(ttl) for ttl in ("1d", "3600", "1 h", "-1h")),
        good=tuple(_cache(ttl) for ttl in ("1s", "90m", "1h30m", "720h")),
    ),
    Case(
        "cache-ttl-bounds",
        "traffic.cache.ttl is from 1s to 720h: remove traffic.cache for no cache",
        bad=tuple(_cache(ttl) for ttl in ("0s", "00h", "0h0m", "721h", "99999h")),
        good=tuple(_cache(ttl) for ttl in ("1s", "719h59m60s")),
    ),
    Case(
        "guard-kind",
        "a guard is one of webhook, deployment and builtin: write exactly one of them",
        bad=(guarded(webhook=None), guarded(builtin={"patterns": ["a"]})),
        good=(guarded(), guarded(webhook=None, builtin={"patterns": ["a"]})),
    ),
    Case(
        "guard-builtin",
        "builtin looks for something: write patterns, pii or json",
        bad=(guarded(webhook=None, builtin={}), guarded(webhook=None, builtin={"patterns": []})),
        good=(guarded(webhook=None, builtin={"pii": {"entities": ["EMAIL_ADDRESS"]}}),),
    ),
    Case(
        "guard-json-alone",
        "json is a guard of its own: write patterns and pii in another one",
        bad=(guarded(webhook=None, stages=["Output"], builtin={"json": {}, "patterns": ["a"]}),),
        good=(guarded(webhook=None, stages=["Output"], builtin={"json": {"retries": 0}}),),
    ),
    Case(
        "guard-json-stages",
        "builtin.json looks at responses: its stages are [Output]",
        bad=(guarded(webhook=None, stages=["Input", "Output"], builtin={"json": {}}),),
        good=(guarded(webhook=None, stages=["Output"], builtin={"json": {}}),),
    ),
    Case(
        "breaker-time",
        "traffic.circuitBreaker.baseEjectionTime is written in hours, minutes and seconds",
        bad=tuple({"traffic": {"circuitBreaker": {"baseEjectionTime": one}}} for one in ("1d", "10", "-1s")),
        good=({"traffic": {"circuitBreaker": {"baseEjectionTime": "1m30s"}}},),
    ),
    Case(
        "breaker-time-bounds",
        "traffic.circuitBreaker.baseEjectionTime is from 1s to 1h",
        bad=tuple({"traffic": {"circuitBreaker": {"baseEjectionTime": one}}} for one in ("0s", "2h", "61m")),
        good=tuple({"traffic": {"circuitBreaker": {"baseEjectionTime": one}}} for one in ("1s", "60m")),
    ),
    Case(
        "degradation-empty",
        "traffic.degradation takes nothing away",
        bad=({"traffic": {"degradation": {}}}, {"traffic": {"degradation": {"singleChoice": False}}}),
        good=({"traffic": {"degradation": {"singleChoice": True}}},),
    ),
    Case(
        "baseline-without-analysis",
        "spec.strategy.canary.baselinePod is for an analysis to compare with",
        bad=(_canary(baselinePod=True), _beside({"setWeight": 10}), _canary(baselinePod=True, trafficPercent=10)),
        good=(
            _canary(baselinePod=False),
            _canary(baselinePod=True, **_analysis()),
            _canary(baselinePod=True, trafficPercent=10, **_analysis()),
            _beside({"setWeight": 10}, _analysis()),
        ),
    ),
    *(
        Case(
            f"{field}-duration",
            f"{field}.maxDuration is written in hours, minutes and seconds",
            bad=tuple(_around(field, maxDuration=duration) for duration in ("10", "1d", "1.5h")),
            good=tuple(_around(field, maxDuration=duration) for duration in ("30s", "1h30m")),
        )
        for field in ("prePromotionAnalysis", "postPromotionAnalysis")
    ),
    Case(
        "analysis-duration",
        "analysis.maxDuration is written in hours, minutes and seconds",
        bad=tuple(_steps(_analysis(maxDuration=duration)) for duration in ("10", "1d", "m5", "1.5h")),
        good=tuple(_steps(_analysis(maxDuration=duration)) for duration in ("30s", "60m", "1h30m")),
    ),
    Case(
        "hook-names",
        "the names of spec.strategy.hooks must differ",
        bad=(_hooks(_hook(), _hook(type="rollout")),),
        good=(_hooks(_hook(), _hook(name="gate-2")), _hooks(*(_hook(name=f"gate-{n}") for n in range(16)))),
    ),
    Case(
        "hook-format",
        "format in spec.strategy.hooks is for notifications",
        bad=(_hooks(_hook(type="rollback", format="Slack")), _hooks(_hook(type="pre-rollout", format="Teams"))),
        good=(_hooks(_hook(type="event", format="Slack")), _hooks(_hook(type="post-rollout", format="Teams"))),
    ),
    Case(
        "hook-secret",
        "secretRef in spec.strategy.hooks is for notifications with a format",
        bad=(_hooks(_hook(type="event", secretRef=_SECRET)),),
        good=(_hooks(_hook(type="event", format="Slack", secretRef=_SECRET)),),
    ),
    Case(
        "hook-pagerduty",
        "format PagerDuty in spec.strategy.hooks needs secretRef",
        bad=(_hooks(_hook(type="event", format="PagerDuty")),),
        good=(_hooks(_hook(type="event", format="PagerDuty", secretRef=_SECRET)),),
    ),
    Case(
        "hook-url",
        "spec.strategy.hooks.url must be http:// or https://",
        bad=tuple(
            _hooks(_hook(url=url))
            for url in (
                *("gate.tools.svc", "ftp://gate/x", "file:///etc/passwd", "http://", "http:///x", "HTTP://gate/"),
                *("http://user:secret@gate/", "http://gate/a b", "http://gate#x", "https://ga te/"),
            )
        ),
        good=tuple(
            _hooks(_hook(url=url))
            for url in (
                "http://gate",
                "https://gate.example.com:8443/a/b?c=d",
                "http://[fd00::1]:80/",
                "http://10.0.0.1/",
            )
        ),
    ),
    Case(
        "promote",
        "spec.rollout.promote is REVISION/ATTEMPT/STEP",
        bad=_rollout("promote", "", REVISION, f"{REVISION}/1", "ABCDEFGH23/1/2", f"{REVISION}/1/2/3", "short/1/2"),
        good=_rollout("promote", f"{REVISION}/1/0", f"{REVISION}/12/34"),
    ),
    Case(
        "promote-full",
        "spec.rollout.promoteFull is REVISION/ATTEMPT",
        bad=_rollout("promoteFull", "", f"{REVISION}/1/2", f"{REVISION}/", "abcdefgh21", "abc"),
        good=_rollout("promoteFull", f"{REVISION}/1", f"{REVISION}/12", REVISION),
    ),
    Case(
        "abort",
        "spec.rollout.abort is REVISION/ATTEMPT",
        bad=_rollout("abort", REVISION, f"{REVISION}/1/2", "true", f"{REVISION}/x"),
        good=_rollout("abort", f"{REVISION}/1"),
    ),
    Case(
        "retry",
        "spec.rollout.retry is REVISION/ATTEMPT",
        bad=_rollout("retry", REVISION, f"{REVISION}/", f"{REVISION}/1/2"),
        good=_rollout("retry", f"{REVISION}/2"),
    ),
    Case(
        "rollback-to",
        "spec.rollout.rollbackTo is FROM/TO",
        bad=_rollout("rollbackTo", REVISION, f"{REVISION}/7", f"{REVISION}/{REVISION}/1"),
        good=_rollout("rollbackTo", f"{REVISION}/zyxwvuts76"),
    ),
)

# Limits that the schema itself holds; `message` is what the API server's own message contains.
SCHEMA_CASES = (
    *engine_cases.SCHEMA_CASES,
    *pod_cases.SCHEMA_CASES,
    *source_cases.SCHEMA_CASES,
    *pool_cases.SCHEMA_CASES,
    *adapter_cases.SCHEMA_CASES,
    *(
        Case(
            f"autoscaling.objective.schedules[0].{field}",
            f"spec.autoscaling.objective.schedules[0].{field}",
            bad=tuple(_schedule(**{field: value}) for value in bad),
            good=tuple(_schedule(**{field: value}) for value in good),
        )
        for field, bad, good in (
            ("name", ("Day", "-day", "a b"), ("day-1",)),
            ("cron", ("0 8 * *", "@daily-today", "0 0 8 * * 1"), ("*/5 8-18 * 1,2 MON-FRI",)),
            ("timeZone", ("Europe/", "../etc", "1UTC"), ("Europe/Berlin", "UTC")),
        )
    ),
    Case(
        "autoscaling.objective.mode",
        "spec.autoscaling.objective.mode",
        bad=(_objective(mode="advise"), _objective(mode="Off")),
        good=(_objective(mode="Act"),),
    ),
    *(
        Case(
            f"autoscaling.{field}",
            f"spec.autoscaling.{field}",
            bad=(bad,),
            good=(good,),
        )
        for field, bad, good in (
            ("metrics[0].type", _scaled(_follow(type="Queue")), _scaled(_follow(type="TTFT", target="500m"))),
            (
                "metrics[0].targetType",
                _scaled(_follow(type="External", name="depth", targetType="Utilization")),
                _scaled(_follow(type="External", name="depth", targetType="AverageValue")),
            ),
            ("idleSeconds", _scaled(minReplicas=0, idleSeconds=4), _scaled(minReplicas=0, idleSeconds=5)),
            *(
                case
                for direction in ("scaleUp", "scaleDown")
                for case in (
                    (
                        f"behavior.{direction}.selectPolicy",
                        _behavior(direction, selectPolicy="Most"),
                        _behavior(direction, selectPolicy="Disabled"),
                    ),
                    (
                        f"behavior.{direction}.policies[0].type",
                        _behavior(direction, **_policy("Nodes")),
                        _behavior(direction, **_policy("Percent"), stabilizationWindowSeconds=0),
                    ),
                )
            ),
        )
    ),
    *(
        Case(
            f"{strategy}.threshold.type",
            f"spec.strategy.{strategy}.replicaProgressThreshold.type",
            bad=(_threshold(strategy, "Pods", 1),),
            good=(_threshold(strategy, "Pod", 1),),
        )
        for strategy in ("canary", "blueGreen")
    ),
    *(
        Case(
            f"{place}.{field}",
            f"spec.strategy.{place}.twinShadow.{field}",
            bad=(_shadowed(place, field, bad),),
            good=tuple(_shadowed(place, field, value) for value in good),
        )
        for place in ("canary.steps[0].analysis", "blueGreen.prePromotionAnalysis")
        for field, bad, good in (
            ("reference", "Stable", ("BaselinePod", "OnFailure")),
            ("probes.api", "chat", ("Chat", "Completions")),
        )
    ),
    Case(
        "capacity.policy",
        "spec.strategy.capacity.policy",
        bad=(_capacity(policy="Surge"),),
        good=tuple(_capacity(policy=policy) for policy in ("PreferSurge", "RequireSurge", "AllowRecreate")),
    ),
    Case(
        "model.name",
        "spec.model.name",
        bad=tuple(_model(name=name) for name in ("", "-chat", "chat-", "a b", "x" * 129)),
        good=tuple(_model(name=name) for name in ("chat", "chat:v1", "Qwen3-0.6B")),
    ),
    Case(
        "model.version",
        "spec.model.version",
        bad=tuple(_model(version=version) for version in ("", ".1", "1.", "a/b", "x" * 64)),
        good=tuple(_model(version=version) for version in ("3.1", "2026-11-21", "v2_b")),
    ),
    Case(
        "model.task",
        "spec.model.task",
        bad=(_model(task="rank"),),
        good=tuple(_model(task=task) for task in ("embed", "predict", "classify", "rerank")),
    ),
    Case(
        "model.format",
        "spec.model.format",
        bad=(_model(task="predict", format="pickle"),),
        good=tuple(
            _model(task="predict", format=name)
            for name in ("auto", "onnx", "xgboost", "lightgbm", "skops", "transformers")
        ),
    ),
    Case(
        "batching.maxBatchSize",
        "spec.batching.maxBatchSize",
        bad=tuple(_predict(batching={"maxBatchSize": size}) for size in (0, 65537, "8")),
        good=tuple(_predict(batching={"maxBatchSize": size}) for size in (1, 65536)),
    ),
    Case(
        "batching.maxQueueDelayMicroseconds",
        "spec.batching.maxQueueDelayMicroseconds",
        bad=tuple(_predict(batching={"maxQueueDelayMicroseconds": time}) for time in (-1, 10_000_001)),
        good=tuple(_predict(batching={"maxQueueDelayMicroseconds": time}) for time in (0, 5000)),
    ),
    Case(
        "batching.maxQueueSize",
        "spec.batching.maxQueueSize",
        bad=tuple(_predict(batching={"maxQueueSize": size}) for size in (0, 100_001)),
        good=(_predict(batching={"maxQueueSize": 1}),),
    ),
    Case(
        "batching.timeoutMilliseconds",
        "spec.batching.timeoutMilliseconds",
        bad=tuple(_predict(batching={"timeoutMilliseconds": time}) for time in (0, 86_400_001)),
        good=(_predict(batching={"timeoutMilliseconds": 50}),),
    ),
    Case("model.cache", "spec.model.cache", bad=(_model(cache="disk"),), good=(_model(cache="node"),)),
    Case(
        "model.cacheClaimName",
        "spec.model.cacheClaimName",
        bad=(_model(cache="claim", cacheClaimName="A_b"), _model(cache="claim", cacheClaimName="")),
        good=(_model(cache="claim", cacheClaimName="models"),),
    ),
    Case("model.dtype", "spec.model.dtype", bad=(_model(dtype="int8"),), good=(_model(dtype="bfloat16"),)),
    Case(
        "model.quantization",
        "spec.model.quantization",
        bad=(_model(quantization="int2"),),
        good=(_model(quantization="int8"), _model(quantization="int4"), _model(quantization="none")),
    ),
    Case(
        "model.maxModelLen",
        "spec.model.maxModelLen",
        bad=(_model(maxModelLen=15), _model(maxModelLen=10_000_001), _model(maxModelLen="4096")),
        good=(_model(maxModelLen=16), _model(maxModelLen=8192)),
    ),
    Case("model.uri", "spec.model", bad=({"model": {"uri": None}}, _model(uri="")), good=({},)),
    Case(
        "engine.env.name",
        "spec.engine.env[0].name",
        bad=tuple({"engine": {"env": [{"name": name, "value": "x"}]}} for name in ("", "1X", "A-B", "A=B")),
        good=({"engine": {"env": [{"name": "HF_ENDPOINT", "value": "https://mirror"}]}},),
    ),
    Case(
        "traffic.forwardHeaders",
        "spec.traffic.forwardHeaders[0]",
        bad=tuple({"traffic": {"forwardHeaders": [name]}} for name in ("Authorization", "host", "proxy-authorization")),
        good=({"traffic": {"forwardHeaders": ["authorization", "cookie", "api-key", "x-api-key"]}}, {"traffic": {}}),
    ),
    Case(
        "accuracy.onAlarm",
        "spec.accuracy.onAlarm",
        bad=tuple({"accuracy": {"predictions": {}, "onAlarm": one}} for one in ("Page", "rollback", "")),
        good=({"accuracy": {"predictions": {}, "onAlarm": "Rollback"}},),
    ),
    Case(
        "traffic.inferenceLog.contents",
        "spec.traffic.inferenceLog.contents",
        bad=tuple({"traffic": {"inferenceLog": {"contents": one}}} for one in ("full", "", True)),
        good=({"traffic": {"inferenceLog": {}}}, {"traffic": {"inferenceLog": {"percentage": 0, "contents": "Full"}}}),
    ),
    Case(
        "traffic.fallback.name",
        "spec.traffic.fallback[0].name",
        bad=({"traffic": {"fallback": [{"name": ""}]}},),
        good=({"traffic": {"fallback": []}}, {"traffic": {"fallback": [{"name": "chat-small"}, {"name": "other"}]}}),
    ),
    Case(
        "traffic.fallback.external.url",
        "spec.traffic.fallback[0].external.url",
        bad=tuple(
            {"traffic": {"fallback": [{"name": "openai", "external": {**EXTERNAL, "url": url}}]}}
            for url in ("http://api.openai.com/v1", "https://a@b.c/v1", "https://a.b/v1/", "https://a.b/v1?x", "api")
        ),
        good=({"traffic": {"fallback": [{"name": "openai", "external": EXTERNAL}]}},),
    ),
    Case(
        "traffic.fallback.external.secret",
        "spec.traffic.fallback[0].external.apiKeySecretRef.name",
        bad=tuple(
            {
                "traffic": {
                    "fallback": [{"name": "a", "external": {**EXTERNAL, "apiKeySecretRef": {"name": name, "key": "k"}}}]
                }
            }
            for name in ("", "../x", "A", "a/b")
        ),
        good=({"traffic": {"fallback": [{"name": "openai", "external": EXTERNAL}]}},),
    ),
    Case(
        "traffic.fallback.external.key",
        "spec.traffic.fallback[0].external.apiKeySecretRef.key",
        bad=tuple(
            {
                "traffic": {
                    "fallback": [{"name": "a", "external": {**EXTERNAL, "apiKeySecretRef": {"name": "a", "key": key}}}]
                }
            }
            for key in ("", "a/b", "a b")
        ),
        good=({"traffic": {"fallback": [{"name": "openai", "external": EXTERNAL}]}},),
    ),
    Case(
        "traffic.guards.name",
        "spec.traffic.guards[0].name",
        bad=(guarded(name="Policy"), guarded(name="")),
        good=(guarded(name="policy-2"),),
    ),
    Case(
        "traffic.guards.stages",
        "spec.traffic.guards[0].stages[0]",
        bad=(guarded(stages=["input"]),),
        good=(guarded(stages=["Input", "Output"]),),
    ),
    Case(
        "traffic.guards.webhook.url",
        "spec.traffic.guards[0].webhook.url",
        bad=tuple(guarded(webhook={"url": url}) for url in ("ftp://guard.tools.svc", "https://guard/?q=1")),
        good=(guarded(webhook={"url": "http://guard.tools.svc:8080/check"}),),
    ),
    Case(
        "traffic.guards.webhook.secretRef.name",
        "spec.traffic.guards[0].webhook.secretRef.name",
        bad=(guarded(webhook={"url": GUARD_URL, "secretRef": {"name": "../keys"}}),),
        good=(guarded(webhook={"url": GUARD_URL, "secretRef": {"name": "guard"}}),),
    ),
    Case(
        "traffic.guards.webhook.secretRef.key",
        "spec.traffic.guards[0].webhook.secretRef.key",
        bad=(guarded(webhook={"url": GUARD_URL, "secretRef": {"name": "guard", "key": "a/b"}}),),
        good=(guarded(webhook={"url": GUARD_URL, "secretRef": {"name": "guard", "key": "token"}}),),
    ),
    Case(
        "traffic.guards.deployment.name",
        "spec.traffic.guards[0].deployment.name",
        bad=(guarded(webhook=None, deployment={"name": "Other/x", "blockLabels": ["bad"]}),),
        good=(guarded(webhook=None, deployment={"name": "prompt-guard", "blockLabels": ["bad"]}),),
    ),
    Case(
        "traffic.guards.builtin.pii.entities",
        "spec.traffic.guards[0].builtin.pii.entities[0]",
        bad=(guarded(webhook=None, builtin={"pii": {"entities": ["email"]}}),),
        good=(guarded(webhook=None, builtin={"pii": {"entities": ["CREDIT_CARD"]}}),),
    ),
    Case(
        "traffic.guards.builtin.pii.language",
        "spec.traffic.guards[0].builtin.pii.language",
        bad=(guarded(webhook=None, builtin={"pii": {"entities": ["CREDIT_CARD"], "language": "English"}}),),
        good=(guarded(webhook=None, builtin={"pii": {"entities": ["CREDIT_CARD"], "language": "de"}}),),
    ),
    Case(
        "traffic.guards.builtin.action",
        "spec.traffic.guards[0].builtin.action",
        bad=(guarded(webhook=None, builtin={"patterns": ["a"], "action": "Drop"}),),
        good=(guarded(webhook=None, builtin={"patterns": ["a"], "action": "Block"}),),
    ),
    Case(
        "traffic.guards.failurePolicy",
        "spec.traffic.guards[0].failurePolicy",
        bad=(guarded(failurePolicy="Open"),),
        good=(guarded(failurePolicy="Ignore"),),
    ),
    Case(
        "traffic.circuitBreaker",
        "spec.traffic.circuitBreaker",
        bad=(
            {"traffic": {"circuitBreaker": {"consecutive5xxErrors": 0}}},
            {"traffic": {"circuitBreaker": {"consecutive5xxErrors": "5"}}},
        ),
        good=(
            {"traffic": {"circuitBreaker": {}}},
            {"traffic": {"circuitBreaker": {"consecutive5xxErrors": 5, "baseEjectionTime": "1m"}}},
        ),
    ),
    Case(
        "traffic.retryBudget",
        "spec.traffic.retryBudget",
        bad=tuple({"traffic": {"retryBudget": {"budgetPercent": one}}} for one in (-1, 101, "20%")),
        good=({"traffic": {"retryBudget": {}}}, {"traffic": {"retryBudget": {"minRetryConcurrency": 0}}}),
    ),
    Case(
        "traffic.degradation",
        "spec.traffic.degradation",
        bad=({"traffic": {"degradation": {"maxTokens": 0}}}, {"traffic": {"degradation": {"name": ""}}}),
        good=(
            {"traffic": {"degradation": {"name": "small"}}},
            {"traffic": {"degradation": {"maxTokens": 16, "singleChoice": True}}},
        ),
    ),
    Case(
        "traffic.firstByteTimeoutSeconds",
        "spec.traffic.firstByteTimeoutSeconds",
        bad=tuple({"traffic": {"firstByteTimeoutSeconds": one}} for one in (0, 3601, "5s", 1.5)),
        good=({"traffic": {"firstByteTimeoutSeconds": 20}},),
    ),
    Case(
        "traffic.fallback",
        "spec.traffic.fallback",
        bad=({"traffic": {"fallback": [{"name": f"chat-{n}"} for n in range(5)]}},),
        good=({"traffic": {"fallback": [{"name": f"chat-{n}"} for n in range(4)]}},),
    ),
    Case(
        "traffic.loadBalancing.policy",
        "spec.traffic.loadBalancing.policy",
        bad=tuple({"traffic": {"loadBalancing": {"policy": one}}} for one in ("prefixAffinity", "", True)),
        good=(
            {"traffic": {"loadBalancing": {}}},
            *({"traffic": {"loadBalancing": {"policy": one}}} for one in ("LeastLoad", "PrefixAffinity")),
        ),
    ),
    Case(
        "traffic.cache.mode",
        "spec.traffic.cache.mode",
        bad=tuple({"traffic": {"cache": one}} for one in ({}, {"mode": "exact"}, {"mode": "Semantic"}, {"ttl": "1h"})),
        good=({"traffic": {"cache": {"mode": "Exact"}}}, {"traffic": {"cache": {"mode": "Exact", "shared": True}}}),
    ),
    Case(
        "traffic.generationLog.percentage",
        "spec.traffic.generationLog.percentage",
        bad=tuple({"traffic": {"generationLog": {"percentage": one}}} for one in (-1, 101, "10", 1.5)),
        good=({"traffic": {"generationLog": {"percentage": 100}}},),
    ),
    Case(
        "traffic.generationLog.contents",
        "spec.traffic.generationLog.contents",
        bad=tuple({"traffic": {"generationLog": {"contents": one}}} for one in ("full", "Metadata", True)),
        good=(
            {"traffic": {"generationLog": {}}},
            {"traffic": {"generationLog": {"percentage": 0, "contents": "Full"}}},
        ),
    ),
    Case(
        "traffic.inferenceLog.percentage",
        "spec.traffic.inferenceLog.percentage",
        bad=tuple({"traffic": {"inferenceLog": {"percentage": one}}} for one in (-1, 101, "10", 1.5)),
        good=({"traffic": {"inferenceLog": {"percentage": 100}}},),
    ),
    Case(
        "engine.env.unique",
        "Duplicate value",
        bad=({"engine": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},),
        good=({"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}]}},),
    ),
    Case(
        "engine.env.value",
        "spec.engine.env[0].value",
        bad=({"engine": {"env": [{"name": "A", "value": "x" * 4097}]}},),
        good=({"engine": {"env": [{"name": "A", "value": ""}]}},),
    ),
    *(
        Case(
            f"{where}.{field}",
            f"spec.{where}.{field}",
            bad=tuple(change(**{"name": "a", "key": "b", field: value}) for value in wrong),
            good=tuple(change(**{"name": "a", "key": "b", field: value}) for value in right),
        )
        for where, change in (
            ("model.secretRef", _secret_ref),
            ("engine.env[0].valueFrom.secretKeyRef", _from_secret),
            ("engine.env[0].valueFrom.configMapKeyRef", _from_config_map),
        )
        for field, wrong, right in (
            ("name", ("", "A", "a_b", "-a", "a" * 254), ("a", "a.b-c")),
            ("key", ("", "/", "a b"), ("HF_TOKEN", "a.b-C_1")),
        )
    ),
    *(
        Case(path, f"spec.placement.{path}", tuple(map(change, bad)), tuple(map(change, good)))
        for path, change, bad, good in (
            ("tolerations[0].key", lambda key: _toleration(key=key), BAD_KEYS, GOOD_KEYS),
            ("tolerations[0].value", lambda value: _toleration(value=value), BAD_VALUES, GOOD_VALUES),
            ("tolerations[0].operator", lambda name: _toleration(operator=name), ("exists", "In"), ("Equal", "Exists")),
            (
                "tolerations[0].effect",
                lambda name: _toleration(effect=name),
                ("noSchedule", ""),
                ("NoSchedule", "PreferNoSchedule", "NoExecute"),
            ),
            *(
                (f"affinity.nodeAffinity.{field}.matchExpressions[0].{name}", change, bad, good)
                for field, requirement in (
                    ("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]", _required),
                    ("preferredDuringSchedulingIgnoredDuringExecution[0].preference", _preferred),
                )
                for name, change, bad, good in (
                    ("key", lambda key, of=requirement: of(key=key), BAD_KEYS, GOOD_KEYS),
                    ("operator", lambda name, of=requirement: of(operator=name), ("in", "=="), ("In", "NotIn")),
                    ("values[0]", lambda value, of=requirement: of(values=[value]), BAD_VALUES, GOOD_VALUES),
                )
            ),
            ("topologySpreadConstraints[0].topologyKey", lambda key: _spread(topologyKey=key), BAD_KEYS, GOOD_KEYS),
            (
                "topologySpreadConstraints[0].whenUnsatisfiable",
                lambda name: _spread(whenUnsatisfiable=name),
                ("Wait", ""),
                ("DoNotSchedule", "ScheduleAnyway"),
            ),
            ("topologySpreadConstraints[0].maxSkew", lambda skew: _spread(maxSkew=skew), (0, 10_001), (1, 10_000)),
        )
    ),
    Case(
        "placement.nodeSelector",
        "spec.placement.nodeSelector",
        bad=(
            *(_placement(nodeSelector={"zone": value}) for value in BAD_VALUES),
            _placement(nodeSelector={f"a{number}": "b" for number in range(33)}),
        ),
        good=(_placement(nodeSelector={}), *(_placement(nodeSelector={"zone": value}) for value in GOOD_VALUES)),
    ),
    Case(
        "engine.imagePullSecrets[0].name",
        "spec.engine.imagePullSecrets[0].name",
        bad=tuple({"engine": {"imagePullSecrets": [{"name": name}]}} for name in ("", "A", "a_b", "a" * 254)),
        good=tuple({"engine": {"imagePullSecrets": [{"name": name}]}} for name in ("a", "registry.example-1")),
    ),
    Case(
        "accelerator.resource",
        "spec.resources.accelerator.resource",
        bad=tuple({"resources": {"accelerator": {"count": 1, "resource": name}}} for name in ("gpu", "/gpu", "a.b/")),
        good=tuple(
            {"resources": {"accelerator": {"count": 1, "resource": name}}} for name in ("amd.com/gpu", "a.b/c_D")
        ),
    ),
    Case(
        "accelerator.count",
        "spec.resources.accelerator.count",
        bad=tuple({"resources": {"accelerator": value}} for value in ({}, {"count": 0}, {"count": "1"})),
        good=({"resources": {"accelerator": {"count": 1}}},),
    ),
    Case(
        "replicas",
        "spec.replicas",
        bad=({"replicas": -1}, {"replicas": 10_001}),
        good=({"replicas": 0}, {"replicas": 10_000}),
    ),
    Case(
        "standbyReplicas",
        "spec.standbyReplicas",
        bad=({"standbyReplicas": -1}, {"standbyReplicas": 101}),
        good=({"standbyReplicas": 0}, {"standbyReplicas": 100}),
    ),
    Case(
        "setWeight",
        "spec.strategy.canary.steps[0].setWeight",
        bad=(_weights(-1), _weights(101)),
        good=(_weights(0), _weights(100)),
    ),
    Case(
        "trafficPercent",
        "spec.strategy.canary.trafficPercent",
        bad=(_canary(trafficPercent=-1), _canary(trafficPercent=101)),
        good=(_canary(trafficPercent=0), _canary(trafficPercent=100)),
    ),
    Case(
        "hooks",
        "spec.strategy.hooks",
        bad=(_hooks(*(_hook(name=f"gate-{n}") for n in range(17))), _hooks({"name": "gate"})),
        good=(_hooks(), _hooks(_hook())),
    ),
    Case(
        "hooks.name",
        "spec.strategy.hooks[0].name",
        bad=tuple(_hooks(_hook(name=name)) for name in ("", "-a", "a-", "A", "a b", "a" * 64)),
        good=tuple(_hooks(_hook(name=name)) for name in ("a", "a-1", "a" * 63)),
    ),
    Case(
        "hooks.type",
        "spec.strategy.hooks[0].type",
        bad=(_hooks(_hook(type="confirm")), _hooks(_hook(type="Rollback")), _hooks(_hook(type=None))),
        good=tuple(
            _hooks(_hook(type=kind))
            for kind in (
                *("confirm-rollout", "pre-rollout", "rollout", "confirm-traffic-increase", "confirm-promotion"),
                *("post-rollout", "rollback", "event"),
            )
        ),
    ),
    Case(
        "hooks.format",
        "spec.strategy.hooks[0].format",
        bad=(_hooks(_hook(type="event", format="slack")), _hooks(_hook(type="event", format=""))),
        good=(_hooks(_hook(type="event")),),
    ),
    Case(
        "hooks.secretRef.name",
        "spec.strategy.hooks[0].secretRef.name",
        bad=(_hooks(_hook(type="event", format="Slack", secretRef={"name": "A b", "key": "url"})),),
        good=(_hooks(_hook(type="event", format="Slack", secretRef=_SECRET)),),
    ),
    Case(
        "hooks.secretRef.key",
        "spec.strategy.hooks[0].secretRef.key",
        bad=(_hooks(_hook(type="event", format="Slack", secretRef={"name": "chat", "key": "a b"})),),
        good=(_hooks(_hook(type="event", format="Slack", secretRef=_SECRET)),),
    ),
    Case(
        "hooks.timeoutSeconds",
        "spec.strategy.hooks[0].timeoutSeconds",
        bad=(_hooks(_hook(timeoutSeconds=0)), _hooks(_hook(timeoutSeconds=301))),
        good=(_hooks(_hook(timeoutSeconds=1)), _hooks(_hook(timeoutSeconds=300))),
    ),
    Case(
        "hooks.retries",
        "spec.strategy.hooks[0].retries",
        bad=(_hooks(_hook(retries=-1)), _hooks(_hook(retries=6))),
        good=(_hooks(_hook(retries=0)), _hooks(_hook(retries=5))),
    ),
    Case(
        "hooks.metadata",
        "spec.strategy.hooks[0].metadata",
        bad=(
            _hooks(_hook(metadata={"a": 1})),
            _hooks(_hook(metadata={"a": "x" * 1025})),
            _hooks(_hook(metadata={str(n): "" for n in range(17)})),
        ),
        good=(_hooks(_hook(metadata={"environment": "test", "cmd": "hey -z 1m"})),),
    ),
    Case(
        "analysis.templateName",
        "spec.strategy.canary.analysis.templates[0].templateName",
        bad=(_canary(**_analysis("LLM")), _canary(**_analysis("a" * 254)), _canary(**_analysis("a b"))),
        good=(_canary(**_analysis("llm-default")), _canary(**_analysis("team.chat-1"))),
    ),
    Case(
        "pre.templateName",
        "spec.strategy.blueGreen.prePromotionAnalysis.templates[0].templateName",
        bad=(_around("prePromotionAnalysis", "LLM"),),
        good=(_around("prePromotionAnalysis", "a1"),),
    ),
    Case(
        "post.templateName",
        "spec.strategy.blueGreen.postPromotionAnalysis.templates[0].templateName",
        bad=(_around("postPromotionAnalysis", "LLM"),),
        good=(_around("postPromotionAnalysis", "a1"),),
    ),
    Case(
        "steps.analysis.templateName",
        "spec.strategy.canary.steps[0].analysis.templates[0].templateName",
        bad=(_steps(_analysis("LLM")), _steps(_analysis("-a"))),
        good=(_steps(_analysis("a1")),),
    ),
    Case(
        "steps.ramp.templateName",
        "spec.strategy.canary.steps[0].ramp.templates[0].templateName",
        bad=(_steps(_ramp(templates=[{"templateName": "LLM"}])), _steps(_ramp(templates=[{"templateName": "-a"}]))),
        good=(_beside(_analysis(twinShadow={}), _ramp(templates=[{"templateName": "a1"}])),),
    ),
    Case("steps", "spec.strategy.canary.steps", bad=(_steps(), _weights(*[1] * 51)), good=(_weights(*[1] * 50),)),
    Case(
        "drain.timeoutSeconds",
        "spec.drain.timeoutSeconds",
        bad=({"drain": {"timeoutSeconds": 0}},),
        good=({"drain": {"timeoutSeconds": 1}},),
    ),
    Case(
        "progressDeadlineSeconds",
        "spec.progressDeadlineSeconds",
        bad=({"progressDeadlineSeconds": 4},),
        good=({"progressDeadlineSeconds": 5},),
    ),
)
