"""ModelRoutes: which rule a request fits, why it does not fit the others, and where its rules lead; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slipway_cli.api import Json
from slipway_cli.errors import CommandError
from slipway_contracts.api.reading import UnreadableObject, encoded, read, read_text
from slipway_contracts.model_routes.references import namespace_of, reference_of, target_of
from slipway_contracts.model_routes.rules import explain
from slipway_contracts.model_routes.spec import KIND, MOST_DEPTH, ModelRouteSpec, RouteRule, names_of, refusal

FILE_NAMESPACE = "file"


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request as rules look at it. `headers`: by their names in lower case."""

    arrived: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
    prompt_bytes: int = 0
    has_tools: bool = False
    has_images: bool = False
    has_code: bool = False


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A ModelRoute. `granted`: targets in other namespaces that allow it. `problems`: conditions that are false."""

    name: str  # `namespace/name`
    spec: ModelRouteSpec
    granted: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The public names that it wants."""
        return names_of(self.name.partition("/")[2], self.spec)


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the rule that decides. `note`: why it gets nothing; `way`: of a ModelRoute, how it goes on there."""

    kind: str
    name: str
    weight: int
    note: str = ""
    way: "Way | None" = None


@dataclass(frozen=True, slots=True)
class Way:
    """How the rules of one ModelRoute treat a request. `reasons`: of each rule up to the one that decides."""

    route: str
    rules: tuple[tuple[str, tuple[str, ...]], ...]
    decides: str  # name of the rule; empty: the request fits none
    targets: tuple[Target, ...] = ()
    problems: tuple[str, ...] = ()


class _Headers(dict[str, str]):
    """Headers whose names are found in any case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def read_route(obj: Json) -> ModelRoute:
    """
    Raises:
        CommandError: its spec cannot be read by this release.
    """
    meta, status = obj["metadata"], obj.get("status") or {}
    name = f"{meta['namespace']}/{meta['name']}"
    try:
        spec = read(ModelRouteSpec, encoded(obj.get("spec") or {}), "spec")
    except UnreadableObject as error:
        raise CommandError(f"ModelRoute {name} cannot be read: {error}") from None
    problems = tuple(
        f"{one.get('type')} is {one.get('status')} ({one.get('reason')}): {one.get('message')}"
        for one in status.get("conditions") or ()
        if one.get("status") != "True"
    )
    return ModelRoute(name, spec, frozenset(status.get("granted") or ()), problems)


def read_file(content: Any) -> dict[str, ModelRoute]:
    """The ModelRoutes of a routes file, whose scalars are texts.

    Raises:
        CommandError: naming what is wrong.
    """
    listed = content.get("modelRoutes") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise CommandError("the file has no modelRoutes")
    routes: dict[str, ModelRoute] = {}
    for name, value in listed.items():
        try:
            spec = read_text(ModelRouteSpec, value)
        except UnreadableObject as error:
            raise CommandError(f"modelRoutes.{name}: {error}") from None
        if problem := refusal(spec):
            raise CommandError(f"modelRoutes.{name}: {problem}")
        routes[f"{FILE_NAMESPACE}/{name}"] = ModelRoute(f"{FILE_NAMESPACE}/{name}", spec)
    return routes


def find(routes: Mapping[str, ModelRoute], name: str) -> ModelRoute:
    """The ModelRoute with a name, else the one with a public name.

    Raises:
        CommandError: there is none.
    """
    named = [route for route in routes.values() if route.name.partition("/")[2] == name]
    found = named or [route for route in routes.values() if name in route.names]
    if not found:
        known = ", ".join(sorted(route.name.partition("/")[2] for route in routes.values())) or "none"
        raise CommandError(f"there is no ModelRoute {name}; there is {known}")
    return found[0]


def follow(routes: Mapping[str, ModelRoute], first: ModelRoute, request: RequestShape, depth: int = 1) -> Way:
    """How rules treat a request, through at most MOST_DEPTH ModelRoutes. `routes`: those that are known, by name."""
    headers = _Headers({name.lower(): value for name, value in request.headers.items()})
    seen = RequestShape(
        request.arrived,
        headers,
        request.tenant,
        request.prompt_bytes,
        request.has_tools,
        request.has_images,
        request.has_code,
    )
    explained = list(explain(first.spec.rules, seen))
    rules = tuple((one.rule.name, one.reasons) for one in explained)
    deciding = next((one.rule for one in explained if not one.reasons), None)
    if deciding is None:
        return Way(first.name, rules, "", (), first.problems)
    targets = tuple(_targets(routes, first, deciding, request, depth))
    return Way(first.name, rules, deciding.name, targets, first.problems)


def _targets(
    routes: Mapping[str, ModelRoute], route: ModelRoute, rule: RouteRule, request: RequestShape, depth: int
) -> Iterator[Target]:
    namespace = namespace_of(route.name)
    for ref in rule.backend_refs:
        name = target_of(ref, namespace)
        if namespace_of(name) != namespace and reference_of(ref, namespace) not in route.granted:
            yield Target(ref.kind, name, ref.weight, "its namespace does not allow it: refused with 503")
        elif ref.kind != KIND:
            yield Target(ref.kind, name, ref.weight)
        elif depth >= MOST_DEPTH:
            yield Target(ref.kind, name, ref.weight, f"a request passes at most {MOST_DEPTH}: refused with 503")
        elif name not in routes:
            yield Target(ref.kind, name, ref.weight, "it is not there, or you may not read it")
        else:
            yield Target(ref.kind, name, ref.weight, way=follow(routes, routes[name], request, depth + 1))


def lines(way: Way, indent: str = "") -> list[str]:
    """The way as text: each rule with its reasons, then the targets of the one that decides."""
    shown = [f"{indent}ModelRoute {way.route}", *(f"{indent}! {problem}" for problem in way.problems)]
    width = max((len(name) for name, _ in way.rules), default=0)
    for name, reasons in way.rules:
        mark, why = ("->", "the request fits it") if name == way.decides else ("  ", "; or ".join(reasons))
        shown.append(f"{indent}{mark} {name:<{width}}  {why}")
    if not way.decides:
        shown.append(f"{indent}   the request fits no rule: it is refused with 404")
    for target in way.targets:
        note = f"  ({target.note})" if target.note else ""
        shown.append(f"{indent}   {target.weight:>3} %  {target.kind} {target.name}{note}")
        if target.way is not None:
            shown += lines(target.way, f"{indent}     ")
    return shown


def to_data(way: Way) -> dict[str, Any]:
    """The way as JSON."""
    targets: Sequence[Target] = way.targets
    return {
        "modelRoute": way.route,
        "problems": list(way.problems),
        "rules": [{"name": name, "fits": not reasons, "reasons": list(reasons)} for name, reasons in way.rules],
        "decides": way.decides,
        "targets": [
            {"kind": one.kind, "name": one.name, "weight": one.weight, "note": one.note}
            | ({"way": to_data(one.way)} if one.way else {})
            for one in targets
        ],
    }
