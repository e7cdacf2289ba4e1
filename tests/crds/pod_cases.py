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


_VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
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
        "accelerator.resourceClaimName and other devices",
        "spec.resources.accelerator has either resourceClaimName, or resourceClaimTemplateName",
        bad=(
            _accelerator(resourceClaimName="gpus", resourceClaimTemplateName="gpus"),
            _accelerator(resourceClaimName="gpus", resource="amd.com/gpu"),
            _accelerator(resourceClaimName="gpus", type="h100"),
        ),
        good=(_accelerator(resourceClaimName="gpus"),),
    ),
    Case(
        "accelerator.memory and sharing of a claim",
        "spec.resources.accelerator.memory and sharing do not go with a ResourceClaim",
        bad=tuple(
            _accelerator(**claim, **field)
            for claim in ({"resourceClaimName": "gpus"}, {"resourceClaimTemplateName": "gpus"})
            for field in ({"memory": "20Gi"}, {"sharing": "TimeSlicing"})
        ),
        good=(_accelerator(memory="20Gi", sharing="TimeSlicing"),),
    ),
    Case(
        "accelerator.memory and sharing of other vendors",
        "spec.resources.accelerator.memory and sharing select nodes by labels of NVIDIA's",
        bad=(_accelerator(resource="amd.com/gpu", memory="20Gi"), _accelerator(resource="a.b/c", sharing="MPS")),
        good=(
            _accelerator(type="mi300x", memory="20Gi"),
            _accelerator(resource="nvidia.com/gpu.shared", memory="20Gi", sharing="MPS"),
        ),
    ),
    Case(
        "accelerator.resource of MIG",
        "spec.resources.accelerator.resource names no MIG profile",
        bad=tuple(
            _accelerator(resource=f"nvidia.com/mig-{name}")
            for name in ("1g", "1g10gb", "8g.80gb", "1g.0gb", "1g.10gb.", "1g.10gb.2", "10gb", "1g.10gb-me")
        ),
        good=tuple(
            _accelerator(resource=f"nvidia.com/mig-{name}")
            for name in ("1g.10gb", "1g.5gb.me", "7g.141gb", "1c.2g.20gb", "1g.24gb.gfx", "2g.48gb.me.all")
        ),
    ),
    Case(
        "accelerator.memory and a MIG profile",
        "spec.resources.accelerator.memory is more than the MIG profile in resource has",
        bad=tuple(
            _accelerator(resource=f"nvidia.com/mig-{name}", memory=memory)
            for name, memory in (
                ("1g.10gb", "10Gi"),
                ("1g.10gb.me", "11G"),
                ("1c.2g.20gb", "21G"),
                ("1g.5gb", 6 * 10**9),
            )
        ),
        good=tuple(
            _accelerator(resource=f"nvidia.com/mig-{name}", memory=memory)
            for name, memory in (("1g.10gb", "10G"), ("1g.10gb.me", "9Gi"), ("7g.80gb", "70Gi"), ("1g.5gb", 10**9))
        ),
    ),
    Case(
        "accelerator.sharing of MIG",
        "spec.resources.accelerator.sharing: MPS is not for MIG devices",
        bad=(_accelerator(resource="nvidia.com/mig-1g.10gb", sharing="MPS"),),
        good=(_accelerator(resource="nvidia.com/mig-1g.10gb", sharing="TimeSlicing"),),
    ),
    Case(
        "accelerator.sharing and count",
        "spec.resources.accelerator.count must be 1 with sharing",
        bad=({"engine": _VLLM, **_accelerator(count=2, sharing="TimeSlicing")},),
        good=({"engine": _VLLM, **_accelerator(count=2)}, _accelerator(sharing="TimeSlicing")),
    ),
    Case(
        "MIG devices of an engine",
        "spec.resources.accelerator.count must be 1 for MIG devices",
        bad=({"engine": _VLLM, **_accelerator(count=2, resource="nvidia.com/mig-1g.10gb")},),
        good=(
            {"engine": _VLLM, **_accelerator(resource="nvidia.com/mig-1g.10gb")},
            {
                "engine": {"type": "custom", "image": "registry.example.com/a:1"},
                **_accelerator(count=2, resource="nvidia.com/mig-1g.10gb"),
            },
        ),
    ),
    Case(
        "sharedMemory and MPS",
        "spec.resources.sharedMemory does not go with accelerator.sharing: MPS",
        bad=({"resources": {"sharedMemory": "1Gi", "accelerator": {"count": 1, "sharing": "MPS"}}},),
        good=({"resources": {"sharedMemory": "1Gi", "accelerator": {"count": 1, "sharing": "TimeSlicing"}}},),
    ),
    Case(
        "accelerator.memory as a quantity",
        "spec.resources.accelerator.memory must be a positive quantity of at most 2Ti",
        bad=tuple(_accelerator(memory=memory) for memory in ("0", "-1Gi", "20 GB", "3Ti", 0)),
        good=tuple(_accelerator(memory=memory) for memory in ("20Gi", "2Ti", 20 * 10**9)),
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
        "accelerator.resourceClaimName",
        "spec.resources.accelerator.resourceClaimName",
        lambda name: _accelerator(resourceClaimName=name),
    ),
    Case(
        "accelerator.memory",
        "spec.resources.accelerator.memory",
        bad=tuple(_accelerator(memory=memory) for memory in (True, [], {})),
        good=(_accelerator(memory="20Gi"),),
    ),
    Case(
        "accelerator.sharing",
        "spec.resources.accelerator.sharing",
        bad=tuple(_accelerator(sharing=name) for name in ("", "mps", "Exclusive")),
        good=tuple(_accelerator(sharing=name) for name in ("TimeSlicing", "MPS")),
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
