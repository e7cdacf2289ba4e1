"""Counts of experiments at one gateway, as the operator reads them (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from slipway_contracts.experiments.report import ArmReport, ExperimentReport, OutcomeReport

from ..routing.experiments import PublishedExperiment

_MOST_SKIPPED = 8  # reasons of one experiment


class ExperimentCounts:
    """Counts since the process began, of the present version of each experiment. Another version begins at zero."""

    def __init__(self) -> None:
        self._reports: dict[str, ExperimentReport] = {}

    def requested(self, experiment: PublishedExperiment, arm: str, *, elsewhere: bool) -> None:
        """A request of an arm ended. `elsewhere`: another deployment or revision answered it."""
        counts = self._arm(experiment, arm)
        counts.requests += 1
        counts.elsewhere += elsewhere

    def exposed(self, experiment: PublishedExperiment, arm: str) -> None:
        """A unit was exposed to an arm for the first time."""
        self._arm(experiment, arm).units += 1

    def rated(self, experiment: PublishedExperiment, arm: str, outcome: str, value: float) -> None:
        """The first value of an outcome for a unit, from 0 to 1."""
        outcomes = self._arm(experiment, arm).outcomes
        counts = outcomes.setdefault(outcome, OutcomeReport())
        counts.units += 1
        counts.sum += value

    def skipped(self, experiment: PublishedExperiment, reason: str) -> None:
        """A request took the ordinary way."""
        skipped = self._of(experiment).skipped
        if reason in skipped or len(skipped) < _MOST_SKIPPED:
            skipped[reason] = skipped.get(reason, 0) + 1

    def forgot(self, name: str) -> None:
        """A unit of an experiment, by its name, may be counted again."""
        if name in self._reports:
            self._reports[name].forgotten += 1

    def report(self, experiments: Mapping[str, PublishedExperiment]) -> dict[str, ExperimentReport]:
        """The counts of these experiments; those of others are dropped."""
        self._keep(experiments)
        return {name: replace(self._of(experiment)) for name, experiment in experiments.items()}

    def _keep(self, names: Collection[str]) -> None:
        self._reports = {name: counts for name, counts in self._reports.items() if name in names}

    def _arm(self, experiment: PublishedExperiment, arm: str) -> ArmReport:
        return self._of(experiment).arms.setdefault(arm, ArmReport())

    def _of(self, experiment: PublishedExperiment) -> ExperimentReport:
        version = (experiment.uid, experiment.assignment.version)
        counts = self._reports.get(experiment.name)
        if counts is None or (counts.uid, counts.version) != version:
            counts = self._reports[experiment.name] = ExperimentReport(*version)
        return counts
