"""Where the rules of ModelRoutes lead: references as `namespace/name`, chains that are too long, and circles (pure)."""

from collections.abc import Iterator, Mapping

from slipway_contracts.model_routes.spec import KIND, MOST_DEPTH, ModelRouteSpec, RouteFallback, RouteRef

Specs = Mapping[str, ModelRouteSpec]  # by `namespace/name`


def namespace_of(name: str) -> str:
    """The namespace of `namespace/name`."""
    return name.partition("/")[0]


def target_of(ref: RouteRef, namespace: str) -> str:
    """`namespace/name` of a target. `namespace`: of the ModelRoute with the rule."""
    return f"{ref.namespace or namespace}/{ref.name}"


def reference_of(ref: RouteRef, namespace: str) -> str:
    """`kind/namespace/name` of a target, as a status lists those of other namespaces that allow the ModelRoute."""
    return f"{ref.kind}/{target_of(ref, namespace)}"


def refs_of(spec: ModelRouteSpec) -> Iterator[RouteRef]:
    """All targets of all rules."""
    return (ref for rule in spec.rules for ref in rule.backend_refs)


def all_refs_of(spec: ModelRouteSpec) -> Iterator[RouteRef]:
    """Targets, fallbacks and classifiers of all rules, without external providers."""
    yield from refs_of(spec)
    for rule in spec.rules:
        yield from (fallback_ref(one) for one in rule.fallback if one.external is None)
        for match in rule.matches:
            if match.classifier is not None:
                yield RouteRef(name=match.classifier.deployment_ref.name)


def fallback_ref(fallback: RouteFallback) -> RouteRef:
    """A fallback as a target."""
    return RouteRef(name=fallback.name, namespace=fallback.namespace)


def chain_problem(name: str, specs: Specs) -> tuple[str, str]:
    """Why the rules of a ModelRoute lead nowhere, as a reason and a message; both are empty where they do not.

    A request never passes more than MOST_DEPTH ModelRoutes, whatever the rules say.
    """
    depths: dict[str, int] = {}  # of ModelRoutes that were looked at: the longest chain that begins there
    return _chain(name, specs, (), depths) or ("", "")


def _chain(name: str, specs: Specs, passed: tuple[str, ...], depths: dict[str, int]) -> tuple[str, str] | None:
    if name in passed:
        return "RouteLoop", f"rules lead in a circle: {' to '.join((*passed[passed.index(name) :], name))}"
    passed = (*passed, name)
    if len(passed) > MOST_DEPTH:
        return "RouteTooDeep", f"a request passes at most {MOST_DEPTH} ModelRoutes: {' to '.join(passed)}"
    if len(passed) + depths.get(name, MOST_DEPTH) <= MOST_DEPTH:
        return None
    depth, spec = 0, specs.get(name)
    for target in sorted(_routes_of(spec, namespace_of(name))) if spec else ():
        if problem := _chain(target, specs, passed, depths):
            return problem
        depth = max(depth, 1 + depths.get(target, 0))
    depths[name] = depth
    return None


def _routes_of(spec: ModelRouteSpec, namespace: str) -> set[str]:
    return {target_of(ref, namespace) for ref in refs_of(spec) if ref.kind == KIND}
