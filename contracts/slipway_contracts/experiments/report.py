"""What a gateway counts of Experiments: the body of `/internal/experiments`. Who reads it bounds each number."""

from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True)
class OutcomeReport:
    """Values of one outcome, from 0 to 1: of how many units, and their sum."""

    units: int = 0
    sum: float = 0.0


@dataclass(slots=True)
class ArmReport:
    """One arm, or the hold-out. `units`: each once. `requests`: all. `elsewhere`: those that another deployment or
    revision answered. `outcomes`: by name."""

    units: int = 0
    requests: int = 0
    elsewhere: int = 0
    outcomes: dict[str, OutcomeReport] = field(default_factory=dict)


@dataclass(slots=True)
class ExperimentReport:
    """Counts of one version of an Experiment. `arms`: by name. `forgotten`: units that the gateway may count again.

    `skipped`: requests that took the ordinary way, by why.
    """

    uid: str = ""
    version: int = 0
    arms: dict[str, ArmReport] = field(default_factory=dict)
    forgotten: int = 0
    skipped: dict[str, int] = field(default_factory=dict)


class ExperimentsReport(msgspec.Struct):
    """All Experiments that a gateway follows, by `namespace/name`.

    `shared`: gateways count each unit once together. `lost`: exposures since the process began that no sink has.
    """

    incarnation: str = ""
    shared: bool = False
    lost: int = 0
    experiments: dict[str, ExperimentReport] = {}


_REPORT = msgspec.json.Decoder(ExperimentsReport)


def read_report(body: bytes) -> ExperimentsReport:
    """Raises msgspec.DecodeError, ValueError: it is no report."""
    return _REPORT.decode(body)
