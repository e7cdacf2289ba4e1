"""Adapters of a deployment: the file that lists them, the names that engines know them by, and what a pod reports.

The operator writes the file into a ConfigMap; `slipway-adapter-loader`, a container beside the engine, fetches what it
lists, has the engine load it, and reports on ADAPTERS_PATH of ADAPTERS_PORT. Operator and gateways read the report.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from slipway_contracts.fetch_source import FetchSource

KIND, PLURAL = "ModelAdapter", "modeladapters"
CONFIG_MAP = "slipway-adapters"  # of each namespace: under DEPLOYMENT.json the file of a deployment
ADAPTERS_PORT, ADAPTERS_PATH = 8004, "/adapters"
MAX_ADAPTERS = 512  # entries of a file: 256 ModelAdapters, and of those that roll out two versions
MAX_FILE_BYTES = MAX_REPORT_BYTES = 1 << 20
MAX_REASON = 512  # characters

_Name = Annotated[str, Meta(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$")]
_Revision = Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]


def lora_name(adapter: str, revision: str) -> str:
    """The name by which an engine knows one version of an adapter: `model` of the requests that gateways send to it."""
    return f"{adapter}@{revision}"


_SUFFIX = ".adapter"


def subject_name(adapter: str) -> str:
    """The name of a ModelAdapter among ModelDeployments, none of which has a dot in its name.

    Owners of model names, reports of gateways (`/internal/routes`), labels and names of its children have this one.
    """
    return f"{adapter}{_SUFFIX}"


def adapter_of(name: str) -> str | None:
    """The ModelAdapter that has this name among ModelDeployments; None where it is the name of a ModelDeployment."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None


class AdapterEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One revision of one adapter, which every pod of the deployment is to hold."""

    name: _Name
    """Name that clients send as "model"."""
    revision: _Revision
    source: FetchSource
    digest: Annotated[str, Meta(max_length=128)] = ""
    """What the files must be, as a pod reported it before; "": what the source has now."""


class AdapterFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file; the engine holds exactly these adapters in the end."""

    adapters: Annotated[tuple[AdapterEntry, ...], Meta(max_length=MAX_ADAPTERS)]


class AdapterState(Struct, frozen=True, omit_defaults=True):
    """One entry in one pod."""

    name: _Name
    revision: _Revision
    state: Literal["waiting", "fetching", "loading", "loaded", "failed"]
    """`loaded`: requests for it are answered, though an engine may read it again first."""
    digest: Annotated[str, Meta(max_length=128)] = ""
    """SHA-256 of the files that were loaded."""
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    """Why it failed, or waits."""


class AdapterReport(Struct, frozen=True, omit_defaults=True):
    """What a pod's loader reports. It is a workload's, and so evidence."""

    adapters: Annotated[tuple[AdapterState, ...], Meta(max_length=MAX_ADAPTERS)] = ()
