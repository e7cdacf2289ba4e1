"""A rollout of a classifier in the model of a cluster, whose analysis counts what a test makes of the responses."""

import copy
from dataclasses import replace
from random import Random
from typing import Any

from tests.support.model_cluster import ModelCluster, healthy, model

STEPS = [{"setWeight": 25}, {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "20m"}}]
CANARY = "file:///models/v2"


class ClassifierRollout:
    """A cluster in which v1 serves and v2 is its canary. Subclasses say what samples have beside the units."""

    def __init__(self, template: dict[str, Any], rate: int, *, duration: str = "20m") -> None:
        """`rate`: requests in a second. `duration`: of the analysis."""
        steps = copy.deepcopy(STEPS)
        steps[1]["analysis"]["maxDuration"] = duration  # type: ignore[index]
        self.world: ModelCluster = healthy(replicas=4, steps=steps)
        self.world.templates = {"labels": copy.deepcopy(template)}
        self.world.rate = rate
        self.chance = Random(3)
        self.world.run(30)
        self.world.edit(model=model("v2"))

    def run_until(self, *states: str | None) -> ModelCluster:
        for _ in range(900):
            self.world.reconcile()
            if self.world.state() in states:
                return self.world
            self.world.pass_time(2)
            self._count()
        raise AssertionError(self.world.parsed().message)

    def counted(self, key: tuple[str, int, str], uri: str, units: int) -> dict[str, Any]:
        """Fields of a sample's side that has this many units; `key` names it, `uri` is of its model."""
        raise NotImplementedError

    def _count(self) -> None:
        for gateway in self.world.gateways:
            for sample in gateway.samples.values():
                for name, side in sample.revisions.items():
                    key = (gateway.name, sample.generation, name)
                    more = self.counted(key, self.world.uri(name), side.units)
                    sample.revisions[name] = replace(side, **more)
