"""What an administrator decides for all ModelDeployments: pod fields allowed by namespace, types of accelerators.

Both come from the chart's values as JSON. An existing revision keeps what it was created with.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from slipway_contracts.api.types import CONFIG, ApiType
from slipway_operator.api.inputs.pod_spec import LabelKey, LabelValue, NodeSelectorTerm, Toleration
from slipway_operator.api.objects import Json
from slipway_operator.model import quantity
from slipway_operator.model.deployment.spec import Invalid
from slipway_operator.model.inputs.accelerator_types import BUILT_IN, MEMORY, NVIDIA
from slipway_operator.model.inputs.pod_inputs import NODE_CACHE, PodInputs, Resources

ANY = "*"
DEFAULT_RULES = '[{"namespaces": ["*"], "images": ["*"]}]'  # as values.yaml of the chart has them
DEVICE_CONFLICT = "AcceleratorConflict"
NOT_ALLOWED, UNKNOWN_TYPE, NO_NODE_CACHE = "NotAllowed", "UnknownAcceleratorType", "ModelCacheNotConfigured"
_CLOSED = ConfigDict(**{**CONFIG, "extra": "forbid", "strict": False})
Pattern = Annotated[str, Field(min_length=1, max_length=512)]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=256)]
Parsed = TypeVar("Parsed")


def _quantity(text: str) -> str:
    quantity.parse(text)
    return text


class PodPolicyRule(ApiType):
    """Values that ModelDeployments of some namespaces may have. Each is a whole value, or a beginning with `*`."""

    model_config = _CLOSED

    namespaces: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=1024)]
    images: Patterns = ()
    service_account_names: Patterns = ()
    priority_class_names: Patterns = ()
    runtime_class_names: Patterns = ()
    scheduler_names: Patterns = ()
    labels: Patterns = ()
    annotations: Patterns = ()


class AcceleratorType(ApiType):
    """What spec.resources.accelerator.type stands for. `node_selector_terms` are alternatives, as in a PodSpec.

    `memory`: of one device; without it no need is refused.
    """

    model_config = _CLOSED

    memory: Annotated[str, AfterValidator(_quantity)] | None = None
    resource: Annotated[str, Field(min_length=3, max_length=253, pattern="^[a-z0-9.-]+/[A-Za-z0-9_.-]+$")]
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(max_length=8)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    runtime_class_name: str | None = None
    shared_memory: str | None = None
    env: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)


@dataclass(frozen=True)
class AdminPolicy:
    """Rules and types of the installation. By default any image is allowed, and no other field that needs a rule."""

    rules: tuple[PodPolicyRule, ...] = field(default_factory=lambda: pod_policy(DEFAULT_RULES))
    accelerator_types: Mapping[str, Json] = field(default_factory=lambda: BUILT_IN)
    cache_namespaces: frozenset[str] = frozenset()  # namespaces that may use the model cache on the nodes
    memory: Mapping[str, str] = field(default_factory=lambda: MEMORY)  # of a device, by type

    @classmethod
    def of(
        cls,
        rules: tuple[PodPolicyRule, ...],
        types: Mapping[str, AcceleratorType],
        cache_namespaces: Iterable[str] = (),
    ) -> "AdminPolicy":
        """Return the policy with these rules; `types` add to the built-in ones, or replace them by name."""
        dumped = {
            name: kind.model_dump(
                mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"memory"}
            )
            for name, kind in types.items()
        }
        own = {name: kind.memory for name, kind in types.items() if kind.memory}
        memory = {name: size for name, size in MEMORY.items() if name not in types} | own
        return cls(rules, {**BUILT_IN, **dumped}, frozenset(cache_namespaces), memory)

    def problem(self, inputs: PodInputs, namespace: str) -> Invalid | None:
        """Return why the inputs may not become a revision in this namespace; None when they may."""
        rules = [rule for rule in self.rules if _matches(namespace, rule.namespaces)]
        for named, value, allowed in _powers(inputs, rules):
            if not _matches(value, allowed):
                return Invalid(
                    f"{named} {value!r} is not allowed in namespace {namespace}: remove it, or have an administrator "
                    "allow it in podPolicy of the chart's values",
                    NOT_ALLOWED,
                )
        kind = inputs.resources.accelerator_type
        if kind and kind not in self.accelerator_types:
            known = ", ".join(sorted(self.accelerator_types))
            return Invalid(
                f"spec.resources.accelerator.type {kind!r} is not known: write one of {known}, or have an "
                "administrator add it to acceleratorTypes of the chart's values",
                UNKNOWN_TYPE,
            )
        if conflict := self._conflict(inputs.resources):
            return Invalid(conflict, DEVICE_CONFLICT)
        if inputs.model.cache == NODE_CACHE and namespace not in self.cache_namespaces:
            return Invalid(
                f"spec.model.cache is node, and namespace {namespace} has no cache on the nodes: have an administrator "
                "add it to modelCache.namespaces of the chart's values, or write cache: none",
                NO_NODE_CACHE,
            )
        return None

    def _conflict(self, resources: Resources) -> str:
        """Return why devices of the type cannot have what the spec needs of them; empty when they can, or may."""
        kind, memory = resources.accelerator_type or "", resources.device_memory
        size = self.memory.get(kind)
        if memory and size and quantity.parse(memory) > quantity.parse(size):
            return (
                f"spec.resources.accelerator.memory is {memory}, and devices of type {kind!r} have {size}: write "
                "another type, or less memory"
            )
        name = self.accelerator_types.get(kind, {}).get("resource", NVIDIA)
        if resources.sharing and not name.startswith("nvidia.com/"):
            return (
                f"spec.resources.accelerator.sharing selects nodes by labels of NVIDIA's, and type {kind!r} stands for "
                f"{name}: remove it"
            )
        return ""

    def accelerator(self, inputs: PodInputs) -> Json:
        """Return what the accelerator type in the inputs stands for; empty without a type."""
        return self.accelerator_types.get(inputs.resources.accelerator_type or "", {})


def pod_policy(text: str) -> tuple[PodPolicyRule, ...]:
    """Parse podPolicy of the chart's values.

    Raises:
        ValueError: with the path of what is wrong.
    """
    return _parsed(TypeAdapter(tuple[PodPolicyRule, ...]), text, '[{"namespaces": ["team-a"], "images": ["*"]}]')


def accelerator_types(text: str) -> dict[str, AcceleratorType]:
    """Parse acceleratorTypes of the chart's values.

    Raises:
        ValueError: with the path of what is wrong.
    """
    return _parsed(TypeAdapter(dict[str, AcceleratorType]), text, '{"h100": {"resource": "nvidia.com/gpu"}}')


def _powers(inputs: PodInputs, rules: Iterable[PodPolicyRule]) -> list[tuple[str, str, list[str]]]:
    """Return the given fields that need a rule: path, value, and the patterns that the rules allow."""
    pod, rules = inputs.pod, list(rules)

    def allowed(name: str) -> list[str]:
        return [pattern for rule in rules for pattern in getattr(rule, name)]

    named = [
        ("spec.engine.image", inputs.engine.image, "images"),
        ("spec.pod.serviceAccountName", pod.get("serviceAccountName"), "service_account_names"),
        ("spec.pod.priorityClassName", pod.get("priorityClassName"), "priority_class_names"),
        ("spec.pod.runtimeClassName", pod.get("runtimeClassName"), "runtime_class_names"),
        ("spec.pod.schedulerName", pod.get("schedulerName"), "scheduler_names"),
        *(("spec.pod.labels", f"{key}={value}", "labels") for key, value in pod.get("labels", {}).items()),
        *(("spec.pod.annotations", f"{key}={value}", "annotations") for key, value in _annotations(pod)),
    ]
    return [(path, str(value), allowed(name)) for path, value, name in named if value is not None]


def _annotations(pod: Json) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in pod.get("annotations", {}).items()]


def _matches(value: str, patterns: Iterable[str]) -> bool:
    return any(value.startswith(pattern[:-1]) if pattern.endswith(ANY) else value == pattern for pattern in patterns)


def _parsed(adapter: TypeAdapter[Parsed], text: str, example: str) -> Parsed:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path + ': ' if path else ''}{first['msg']}; write for example {example}") from None
