"""The cases of spec.pod, of mounts, envFrom and accelerator types: what is refused, and what passes beside it."""

from typing import Any

from tests.crds.objects import Case, Change

LONG = "n" * 260


def _pod(**fields: Any) -> Change:
    return {"pod": fields}


def _volume(**source: Any) -> Change:
    return _pod(volumes=[{"name": "data", **source}])


def _mount(**fields: Any) -> Change:
    mount = {"name": "data", "mountPath": "/data", **fields}
    return {"engine": {"volumeMounts": [mount]}, **_volume(emptyDir={"sizeLimit": "1Gi"})}


def _env_from(**source: Any) -> Change:
    return {"engine": {"envFrom": [source]}}


def _accelerator(**fields: Any) -> Change:
    return {"resources": {"accelerator": {"count": 1, **fields}}}


def _names(field: str, path: str, build: Any) -> Case:
    """An object's name."""
    return Case(
        field,
        path,
        bad=tuple(build(name) for name in ("", "A", "-a", "a_b", "a/b", "n" * 254)),
        good=tuple(build(name) for name in ("a", "team-a.reader", "n" * 253)),
    )


_PATHS = ("/data", "/tmp/cache", "/var/cache/vllm", "/mnt/modelstore", "/etc/ssl/extra", "/" + "d" * 511)

CEL_CASES = (
    Case(
        "accelerator.type and resource",
        "spec.resources.accelerator has either type or resource",
        bad=(_accelerator(type="h100", resource="amd.com/gpu"),),
        good=(_accelerator(type="h100"), _accelerator(resource="amd.com/gpu"), _accelerator(type="mi300x")),
    ),
    Case(
        "accelerator.resourceClaimTemplateName and resource",
        "spec.resources.accelerator has either resourceClaimTemplateName, or type or resource",
        bad=(
            _accelerator(resourceClaimTemplateName="gpus", resource="amd.com/gpu"),
            _accelerator(resourceClaimTemplateName="gpus", type="h100"),
        ),
        good=(_accelerator(resourceClaimTemplateName="gpus"),),
    ),
    Case(
        "volumeMounts name volumes",
        "spec.engine.volumeMounts names a volume that spec.pod.volumes does not have",
        bad=(
            {"engine": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}},
            _mount(name="other"),
        ),
        good=(_mount(), _mount(subPath="a/b", readOnly=True)),
    ),
    Case(
        "mountPath is plain",
        "mountPath in spec.engine.volumeMounts must be a plain path",
        bad=tuple(_mount(mountPath=path) for path in ("/data/../etc", "/data/", "//data", "/a//b")),
        good=tuple(_mount(mountPath=path) for path in _PATHS),
    ),
    Case(
        "mountPath of the operator or the system",
        "mountPath in spec.engine.volumeMounts is a directory of the operator or the system",
        bad=tuple(
            _mount(mountPath=path)
            for path in (
                *("/tmp", "/dev", "/dev/shm", "/proc/self", "/sys", "/usr", "/etc", "/mnt", "/mnt/models"),
                *("/mnt/models/current", "/mnt/pvc", "/etc/slipway/tenant", "/var/run/secrets/eks", "/run/secrets"),
            )
        ),
        good=tuple(_mount(mountPath=path) for path in _PATHS),
    ),
    Case(
        "subPath",
        "subPath in spec.engine.volumeMounts must not contain '..'",
        bad=tuple(_mount(subPath=path) for path in ("..", "a/../..", "../a")),
        good=tuple(_mount(subPath=path) for path in ("a", "a.b/c-d")),
    ),
    Case(
        "a volume has one source",
        "a volume in spec.pod.volumes has one source",
        bad=(_volume(), _volume(secret={"secretName": "a"}, configMap={"name": "a"})),
        good=(
            _volume(secret={"secretName": "a"}),
            _volume(configMap={"name": "a"}),
            _volume(persistentVolumeClaim={"claimName": "a", "readOnly": True}),
            _volume(emptyDir={"sizeLimit": "1Gi", "medium": "Memory"}),
        ),
    ),
    Case(
        "envFrom has one source",
        "a source in spec.engine.envFrom has either secretRef or configMapRef",
        bad=(_env_from(), _env_from(secretRef={"name": "a"}, configMapRef={"name": "a"})),
        good=(_env_from(secretRef={"name": "a"}), _env_from(prefix="VLLM_", configMapRef={"name": "a"})),
    ),
    Case(
        "labels of pods",
        "a key of spec.pod.labels is no label, or one of the operator",
        bad=tuple(
            _pod(labels={key: "x"})
            for key in ("-a", "a b", "slipway.dev/revision", "x.slipway.dev/a", "app.kubernetes.io/component", LONG)
        ),
        good=(_pod(labels={"team": "a", "kueue.x-k8s.io/queue-name": "gpus", "notslipway.dev/a": ""}),),
    ),
    Case(
        "annotations of pods",
        "a key of spec.pod.annotations is no annotation, or one of the operator",
        bad=tuple(
            _pod(annotations={key: "x"}) for key in ("-a", "a b", "slipway.dev/a", "app.kubernetes.io/name", LONG)
        ),
        good=(_pod(annotations={"prometheus.io/scrape": "true", "cost": "team a, 100 %"}),),
    ),
)

SCHEMA_CASES = (
    Case(
        "accelerator.type",
        "spec.resources.accelerator.type",
        bad=tuple(_accelerator(type=kind) for kind in ("", "H100", "h 100", "h" * 64, "-h")),
        good=tuple(_accelerator(type=kind) for kind in ("h100", "a100-80gb", "gb200.nvl72")),
    ),
    _names(
        "accelerator.resourceClaimTemplateName",
        "spec.resources.accelerator.resourceClaimTemplateName",
        lambda name: _accelerator(resourceClaimTemplateName=name),
    ),
    *(
        _names(f"pod.{field}", f"spec.pod.{field}", lambda name, field=field: _pod(**{field: name}))
        for field in ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName")
    ),
    Case(
        "pod.volumes[0].name",
        "spec.pod.volumes[0].name",
        bad=tuple(_volume(name=name, emptyDir={"sizeLimit": "1Gi"}) for name in ("", "A", "a.b", "v" * 51)),
        good=(_volume(name="models", emptyDir={"sizeLimit": "1Gi"}),),
    ),
    _names(
        "pod.volumes[0].secret.secretName",
        "spec.pod.volumes[0].secret.secretName",
        lambda name: _volume(secret={"secretName": name}),
    ),
    _names(
        "pod.volumes[0].configMap.name",
        "spec.pod.volumes[0].configMap.name",
        lambda name: _volume(configMap={"name": name}),
    ),
    _names(
        "pod.volumes[0].persistentVolumeClaim.claimName",
        "spec.pod.volumes[0].persistentVolumeClaim.claimName",
        lambda name: _volume(persistentVolumeClaim={"claimName": name}),
    ),
    Case(
        "pod.volumes[0].emptyDir.medium",
        "spec.pod.volumes[0].emptyDir.medium",
        bad=(_volume(emptyDir={"medium": "HugePages", "sizeLimit": "1Gi"}),),
        good=(_volume(emptyDir={"medium": "Memory", "sizeLimit": "1Gi"}),),
    ),
    Case(
        "pod.volumes[0].emptyDir.sizeLimit",
        "spec.pod.volumes[0].emptyDir.sizeLimit",
        bad=tuple(_volume(emptyDir={"sizeLimit": size}) for size in ("0", "-1Gi", "much", "1.5Gi", "1" * 21)),
        good=tuple(_volume(emptyDir={"sizeLimit": size}) for size in ("10Gi", "1")),
    ),
    Case(
        "engine.volumeMounts[0].name",
        "spec.engine.volumeMounts[0].name",
        bad=tuple(_mount(name=name) for name in ("", "A", "a.b")),
        good=(_mount(),),
    ),
    Case(
        "engine.volumeMounts[0].mountPath",
        "spec.engine.volumeMounts[0].mountPath",
        bad=tuple(_mount(mountPath=path) for path in ("", "/", "data", "/da ta", "/a:b", "/" + "d" * 512)),
        good=tuple(_mount(mountPath=path) for path in _PATHS),
    ),
    Case(
        "engine.volumeMounts[0].subPath",
        "spec.engine.volumeMounts[0].subPath",
        bad=tuple(_mount(subPath=path) for path in ("", "/a", "a b", "a" * 513)),
        good=(_mount(subPath="a/b"),),
    ),
    Case(
        "engine.envFrom[0].prefix",
        "spec.engine.envFrom[0].prefix",
        bad=tuple(_env_from(prefix=prefix, secretRef={"name": "a"}) for prefix in ("", "1A", "A-B", "A" * 65)),
        good=(_env_from(prefix="VLLM_", secretRef={"name": "a"}),),
    ),
    _names(
        "engine.envFrom[0].secretRef.name",
        "spec.engine.envFrom[0].secretRef.name",
        lambda name: _env_from(secretRef={"name": name}),
    ),
    _names(
        "engine.envFrom[0].configMapRef.name",
        "spec.engine.envFrom[0].configMapRef.name",
        lambda name: _env_from(configMapRef={"name": name}),
    ),
)
