"""The Job of an analysis, as far as the API server looks at it; model/closed_job.py looks at all of it."""

from typing import Annotated, Any

from pydantic import Field

from slipway_operator.api.markers import SchemaOf, preserve_unknown_fields, rule
from slipway_operator.api.types import ApiType, Int32, Int64


@preserve_unknown_fields
class Volume(ApiType):
    """One volume."""

    host_path: dict[str, Any] | None = None
    """Not allowed."""
    secret: dict[str, Any] | None = None
    """Not allowed."""
    projected: dict[str, Any] | None = None
    """Not allowed."""
    csi: dict[str, Any] | None = None
    """Not allowed."""
    persistent_volume_claim: dict[str, Any] | None = None
    """Not allowed."""


@preserve_unknown_fields
class SecurityContext(ApiType):
    """Only what narrows."""

    privileged: bool | None = None
    """Must not be true."""
    allow_privilege_escalation: bool | None = None
    """Must not be true."""


@preserve_unknown_fields
class Container(ApiType):
    """One container, with the fields that docs/judge.md lists."""

    security_context: SecurityContext | None = None


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
@preserve_unknown_fields
class PodSpec(ApiType):
    """The closed part of a PodSpec."""

    host_network: bool | None = None
    """Must not be true."""
    host_pid: Annotated[bool | None, Field(alias="hostPID")] = None
    """Must not be true."""
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    """Must not be true."""
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    """Only default."""
    automount_service_account_token: bool | None = None
    """Must not be true."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16)] = ()
    """Volumes, emptyDir or configMap."""
    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=4)]
    """Its containers."""


@preserve_unknown_fields
class PodTemplate(ApiType):
    """Its pods. They carry no labels of yours."""

    spec: PodSpec


@preserve_unknown_fields
class JobSpec(ApiType):
    """The part of a batch/v1 JobSpec that docs/judge.md lists; a field beyond it makes the template invalid, by
    name. Pods run as Pod Security "restricted" wants it, without an API token, with limits."""

    template: PodTemplate
    active_deadline_seconds: Annotated[Int64, Field(ge=1, le=86400)] | None = None
    """How long it may run, 3600 without it."""
    backoff_limit: Annotated[Int32, Field(ge=0, le=6)] | None = None
    """How often a pod that failed is tried again, 6 without it."""
    ttl_seconds_after_finished: Annotated[Int32, Field(ge=0, le=86400)] | None = None
    """When it goes by itself, if nobody could delete it; 3600 without it."""


class JobProvider(ApiType):
    """A Job in the namespace of the ModelDeployment; it is good when it succeeds. It is deleted when that is noted."""

    spec: Annotated[dict[str, Any], SchemaOf(JobSpec)]
