"""Finds fallbacks that are no ModelDeployment, and wakes those that name them when one comes or goes."""

from collections.abc import Callable
from dataclasses import replace

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.spec import Invalid


class FallbackTargets(Component):
    """`find`: a ModelDeployment by its key, None where there is none. `wake`: has one reconciled."""

    def __init__(self, find: Callable[[ObjectKey], Object | None], wake: Callable[[ObjectKey], None]) -> None:
        self._find, self._wake = find, wake
        self._named: dict[ObjectKey, frozenset[ObjectKey]] = {}  # by the ModelDeployment whose spec names them
        self._naming: dict[ObjectKey, set[ObjectKey]] = {}  # the other way round
        self._reconciled: set[ObjectKey] = set()

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the fallbacks that are not there."""
        key, spec = deployment.key, deployment.spec
        if key not in self._reconciled:
            self._reconciled.add(key)
            self._changed(key)
        if isinstance(spec, Invalid):
            return observed
        named = {name: (key[0], name) for name in spec.fallback_deployments}
        self._follow(key, frozenset(named.values()))
        missing = tuple(name for name, target in named.items() if self._find(target) is None)
        return replace(observed, missing_fallbacks=missing)

    def forget(self, key: ObjectKey) -> None:
        """It is gone: those that name it say so."""
        self._reconciled.discard(key)
        self._follow(key, frozenset())
        self._changed(key)

    def _follow(self, key: ObjectKey, named: frozenset[ObjectKey]) -> None:
        before = self._named.pop(key, frozenset())
        if named:
            self._named[key] = named
        for target in before - named:
            self._naming[target].discard(key)
            if not self._naming[target]:
                del self._naming[target]
        for target in named - before:
            self._naming.setdefault(target, set()).add(key)

    def _changed(self, key: ObjectKey) -> None:
        for naming in tuple(self._naming.get(key, ())):
            self._wake(naming)
