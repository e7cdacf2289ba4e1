"""Whether requests for the model name of a ModelDeployment reach it, and the name that clients send."""

from slipway_operator.planning.facts.situation import Situation

NAME_CONFLICT = "NameConflict"  # the condition that keeps the answer while nobody knows it


def model(at: Situation) -> str:
    """The "model" of requests that reach this deployment: its name, or namespace/name while another owns the name."""
    standing = at.observed.standing
    if standing is None:
        return at.status.model or at.spec.inputs.model.name
    return standing.owner if standing.yields or (standing.lost and standing.known) else standing.name


def is_elsewhere(at: Situation) -> bool:
    """Whether it is certain that requests for the deployment's model name do not reach it."""
    conflict = _conflict(at)
    return conflict is not None and conflict[0]


def sentence(at: Situation) -> str:
    """Why requests for the deployment's model name do not, or may not, reach it; empty when they do."""
    conflict = _conflict(at)
    return f"; {conflict[1]}" if conflict else ""


def _conflict(at: Situation) -> tuple[bool, str] | None:
    """Whether another owner is certain, and the message; None without a conflict."""
    standing = at.observed.standing
    if standing is None:
        former = next((item for item in at.status.conditions if item.type == NAME_CONFLICT), None)
        return (former.status == "True", former.message) if former else None
    return (standing.known, standing.message) if standing.lost else None
