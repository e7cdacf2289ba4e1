"""The JobSpec of an analysis: every field that its author may write; any other one is refused by its path.

Authors of templates get no pod that only an operator could create. The CRD lists the fields of which a rule or a bound
is checked when a template is applied; `model/analysis/closed_job.py` bounds amounts, and fills in what is left out.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from slipway_contracts.api.markers import lists_only, rule
from slipway_contracts.api.reading import NOT_ALLOWED
from slipway_contracts.api.types import ApiType, Int32, Int64

_TOLERATION_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_OF_KUBERNETES = ("node-role.kubernetes.io/", "node.kubernetes.io/")


def _refused(_: Any) -> Any:
    raise ValueError(NOT_ALLOWED)


def _only(allowed: Any) -> BeforeValidator:
    """The type must match too: in Python 0 == False."""

    def check(value: Any) -> Any:
        if type(value) is not type(allowed) or value != allowed:
            raise ValueError(f"must be {str(allowed).lower()}, or left out")
        return value

    return BeforeValidator(check)


def _amount(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity, for example 2Gi")
    return str(value)


def _own_taint(key: str) -> str:
    if not _TOLERATION_KEY.fullmatch(key) or key.startswith(_OF_KUBERNETES):
        raise ValueError("must name a taint of your own, for example nvidia.com/gpu")
    return key


Name = Annotated[str, Field(max_length=253)]
ShortName = Annotated[str, Field(max_length=63)]
FilePath = Annotated[str, Field(max_length=512)]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
FileMode = Annotated[int, Field(ge=0, le=0o777)]
Amount = Annotated[str, BeforeValidator(_amount)]
OnlyFalse = Annotated[bool, _only(False)]
OnlyTrue = Annotated[bool, _only(True)]
Injection = Literal["true", "false", "enabled", "disabled"]
RefusedObject = Annotated[dict[str, Any], BeforeValidator(_refused)]
RefusedFlag = Annotated[bool, BeforeValidator(_refused)]


class JobPart(ApiType):
    """A part of the Job."""

    model_config = ConfigDict(extra="forbid")


class KeyOfObject(JobPart):
    """Key of a Secret or of a ConfigMap."""

    name: Name
    key: Name
    optional: bool | None = None


class PodField(JobPart):
    """Field of the pod."""

    field_path: Literal[
        "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP", "status.hostIP"
    ]
    api_version: Literal["v1"] | None = None


class ContainerResource(JobPart):
    """Resource of a container."""

    resource: Annotated[str, Field(max_length=64)] | None = None
    container_name: ShortName | None = None
    divisor: Annotated[str, Field(max_length=16)] | None = None


class VariableSource(JobPart):
    """Source of a variable."""

    secret_key_ref: KeyOfObject | None = None
    config_map_key_ref: KeyOfObject | None = None
    field_ref: PodField | None = None
    resource_field_ref: ContainerResource | None = None


class JobVariable(JobPart):
    """Variable of a container."""

    name: Name
    value: Annotated[str, Field(max_length=32_768)] | None = None
    value_from: VariableSource | None = None


class ConfigMapReference(JobPart):
    """A ConfigMap, whose keys become variables."""

    name: Name
    optional: bool | None = None


class VariablesSource(JobPart):
    """Source of several variables."""

    prefix: Annotated[str, Field(max_length=64)] | None = None
    config_map_ref: ConfigMapReference | None = None


class JobMount(JobPart):
    """Mount of a volume."""

    name: ShortName
    mount_path: FilePath
    read_only: bool | None = None
    sub_path: FilePath | None = None


class Amounts(JobPart):
    """Amounts of resources by name."""

    requests: dict[str, Amount] | None = None
    limits: dict[str, Amount] | None = None


class SeccompProfile(JobPart):
    """Profile of system calls."""

    type: Literal["RuntimeDefault"]


class Capabilities(JobPart):
    """Capabilities; none is kept, whichever are dropped here."""

    drop: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=64)] | None = None


@lists_only("privileged", "allowPrivilegeEscalation")
class SecurityContext(JobPart):
    """Security context of the container. It can only reduce privileges."""

    privileged: OnlyFalse | None = None
    """Must not be true."""
    allow_privilege_escalation: OnlyFalse | None = None
    """Must not be true."""
    read_only_root_filesystem: bool | None = None
    run_as_non_root: OnlyTrue | None = None
    run_as_user: UserId | None = None
    run_as_group: UserId | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None


Words = Annotated[tuple[Annotated[str, Field(max_length=65_536)], ...], Field(max_length=256)]


@lists_only("securityContext")
class JobContainer(JobPart):
    """Container, with the fields that docs/judge.md lists."""

    security_context: SecurityContext | None = None
    name: ShortName
    image: Annotated[str, Field(max_length=1024)]
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    command: Words | None = None
    args: Words | None = None
    working_dir: FilePath | None = None
    env: Annotated[tuple[JobVariable, ...], Field(max_length=256)] | None = None
    env_from: Annotated[tuple[VariablesSource, ...], Field(max_length=16)] | None = None
    resources: Amounts | None = None
    volume_mounts: Annotated[tuple[JobMount, ...], Field(max_length=32)] | None = None
    termination_message_policy: Literal["File", "FallbackToLogsOnError"] | None = None


class EmptyFolder(JobPart):
    """Folder that is empty at first."""

    medium: Literal["", "Memory"] | None = None
    size_limit: Amount | None = None


class KeyToPath(JobPart):
    """Key of a ConfigMap as a file."""

    key: Name
    path: FilePath
    mode: FileMode | None = None


class ConfigMapFiles(JobPart):
    """Files of a ConfigMap."""

    name: Name
    optional: bool | None = None
    default_mode: FileMode | None = None
    items: Annotated[tuple[KeyToPath, ...], Field(max_length=64)] | None = None


@lists_only("hostPath", "secret", "projected", "csi", "persistentVolumeClaim")
class JobVolume(JobPart):
    """Volume of the pod: emptyDir or configMap."""

    host_path: RefusedObject | None = None
    """Not allowed."""
    secret: RefusedObject | None = None
    """Not allowed."""
    projected: RefusedObject | None = None
    """Not allowed."""
    csi: RefusedObject | None = None
    """Not allowed."""
    persistent_volume_claim: RefusedObject | None = None
    """Not allowed."""
    name: ShortName
    empty_dir: EmptyFolder | None = None
    config_map: ConfigMapFiles | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> "JobVolume":
        # Kubernetes reads a volume without a source as an emptyDir without a limit.
        if (self.empty_dir is None) == (self.config_map is None):
            raise ValueError("must have one of emptyDir and configMap")
        return self


class PodSecurityContext(JobPart):
    """Security context of the pods."""

    run_as_non_root: OnlyTrue | None = None
    run_as_user: UserId | None = None
    run_as_group: UserId | None = None
    fs_group: UserId | None = None
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    seccomp_profile: SeccompProfile | None = None


class SecretReference(JobPart):
    """A Secret with credentials of a registry."""

    name: Name


class JobToleration(JobPart):
    """Taint that the pods tolerate."""

    key: Annotated[Name, AfterValidator(_own_taint)]
    operator: Literal["Exists", "Equal"] | None = None
    value: ShortName | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None


@rule(
    (
        "!(has(self.hostNetwork) && self.hostNetwork) && !(has(self.hostPID) && self.hostPID) && "
        "!(has(self.hostIPC) && self.hostIPC)"
    ),
    "an analysis Job shares nothing with its node: remove hostNetwork, hostPID and hostIPC",
)
@rule(
    "!has(self.serviceAccountName) || self.serviceAccountName == 'default'",
    "an analysis Job runs under the service account default, without its token: remove serviceAccountName",
)
@rule(
    "!has(self.automountServiceAccountToken) || !self.automountServiceAccountToken",
    "an analysis Job gets no API token: remove automountServiceAccountToken",
)
@rule(
    (
        "!has(self.volumes) || self.volumes.all(v, !has(v.hostPath) && !has(v.secret) && !has(v.projected) && "
        "!has(v.csi) && !has(v.persistentVolumeClaim))"
    ),
    ("volumes of an analysis Job are emptyDir and configMap: take a Secret by env, and write other data with the Job"),
)
@rule(
    (
        "self.containers.all(c, !has(c.securityContext) || (!(has(c.securityContext.privileged) && "
        "c.securityContext.privileged) && !(has(c.securityContext.allowPrivilegeEscalation) && "
        "c.securityContext.allowPrivilegeEscalation)))"
    ),
    "containers of an analysis Job have no privileges: remove privileged and allowPrivilegeEscalation",
)
@lists_only(
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "serviceAccountName",
    "automountServiceAccountToken",
    "volumes",
    "containers",
)
class JobPodSpec(JobPart):
    """Specification of the pods, with the fields that docs/judge.md lists."""

    host_network: RefusedFlag | None = None
    """Must not be true."""
    host_pid: Annotated[RefusedFlag | None, Field(alias="hostPID")] = None
    """Must not be true."""
    host_ipc: Annotated[RefusedFlag | None, Field(alias="hostIPC")] = None
    """Must not be true."""
    service_account_name: Annotated[str, Field(max_length=253), _only("default")] | None = None
    """Must be default."""
    automount_service_account_token: OnlyFalse | None = None
    """Must not be true."""
    volumes: Annotated[tuple[JobVolume, ...], Field(max_length=16)] = ()
    """Volumes of type emptyDir or configMap."""
    containers: Annotated[tuple[JobContainer, ...], Field(min_length=1, max_length=4)]
    """Containers of the pods."""
    init_containers: Annotated[tuple[JobContainer, ...], Field(max_length=4)] | None = None
    restart_policy: Literal["Never", "OnFailure"] | None = None
    security_context: PodSecurityContext | None = None
    enable_service_links: OnlyFalse | None = None
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=300)] | None = None
    image_pull_secrets: Annotated[tuple[SecretReference, ...], Field(max_length=8)] | None = None
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=256)]], Field(max_length=32)] | None = None
    tolerations: Annotated[tuple[JobToleration, ...], Field(max_length=16)] | None = None


class MeshKeys(JobPart):
    """What keeps the sidecar of a service mesh out, which would prevent the end of the Job."""

    istio: Annotated[Injection | None, Field(alias="sidecar.istio.io/inject")] = None
    linkerd: Annotated[Injection | None, Field(alias="linkerd.io/inject")] = None


class PodMetadata(JobPart):
    """With other labels, Services and NetworkPolicies of other users' pods could select these pods."""

    labels: MeshKeys | None = None
    annotations: MeshKeys | None = None


@lists_only("spec")
class PodTemplate(JobPart):
    """Template of the pods. It must not set labels or annotations, except those that keep the sidecar of a service mesh
    out."""

    spec: JobPodSpec
    metadata: PodMetadata | None = None


@lists_only("template", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
class JobSpec(JobPart):
    """Specification of the Job, with the fields of a batch/v1 JobSpec that docs/judge.md lists. Any other field makes
    the template invalid, and the message names it. Pods meet the Pod Security level "restricted", have no API token,
    and have resource limits."""

    template: PodTemplate
    active_deadline_seconds: Annotated[Int64, Field(ge=1, le=86400)] | None = None
    """Maximum duration of the Job in seconds. Default is 3600."""
    backoff_limit: Annotated[Int32, Field(ge=0, le=6)] | None = None
    """Number of retries of a failed pod. Default is 6."""
    # A Job that is deleted as soon as it ends leaves no result for the operator.
    ttl_seconds_after_finished: Annotated[Int32, Field(ge=60, le=86400)] | None = None
    """Time in seconds after which a finished Job is deleted if the operator has not deleted it. Until then its result
    can be read. Default is 3600."""
    completions: Annotated[int, Field(ge=1, le=4)] | None = None
    parallelism: Annotated[int, Field(ge=1, le=4)] | None = None
