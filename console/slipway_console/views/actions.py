"""What a viewer may do to a rollout now, and whether a form is still about the step that its page showed; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway_cli.objects import history
from slipway_cli.objects.deployment import Deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.rollouts import intents
from slipway_cli.rollouts.intents import Change, Decision, Nothing

# Name in the path → word on the button. Those that undo something take a second look.
LABELS = {
    "promote": "Promote",
    "promote-full": "Promote fully",
    "abort": "Abort",
    "retry": "Retry",
    "undo": "Undo",
    "pause": "Pause",
    "resume": "Resume",
}
CONFIRMED = frozenset({"promote-full", "abort", "undo"})
NO_ROLLOUT = "none"


@dataclass(frozen=True, slots=True)
class Target:
    """A former revision that undo may go to."""

    revision: str
    label: str


@dataclass(frozen=True, slots=True)
class Action:
    """A button: what it does, in one sentence, or why there is nothing to do."""

    name: str
    label: str
    text: str
    warning: str
    is_possible: bool
    is_confirmed: bool
    targets: tuple[Target, ...] = ()


def token_of(of: Deployment) -> str:
    """The step that a page shows, which its forms carry: REVISION/ATTEMPT/STEP, or the stable revision without one."""
    if of.rollout is not None and of.rollout.token:
        return of.rollout.token
    return f"{NO_ROLLOUT}/{of.stable or ''}"


def decide(name: str, of: Deployment, records: Sequence[RevisionRecord] = (), to: str = "") -> Decision:
    """The patch of an action. `to`: the revision that undo goes to; empty: the one before.

    Raises:
        KeyError: there is no action of this name.
    """
    if name == "undo":
        return intents.undo(of, records, to or None)
    simple = {
        "promote": intents.promote,
        "promote-full": intents.promote_full,
        "abort": intents.abort,
        "retry": intents.retry,
        "pause": intents.pause,
        "resume": intents.resume,
    }
    return simple[name](of)


def explain_stale(form: str, of: Deployment) -> str:
    """Why a form does not count any more; empty when it is about the present step."""
    present = token_of(of)
    if form == present:
        return ""
    return f"The form is about {_describe(form)}, and the rollout is now at {_describe(present)}: nothing was changed."


def list_actions(of: Deployment, records: Sequence[RevisionRecord]) -> tuple[Action, ...]:
    """All actions, those that are possible first."""
    found = [_action(name, of, records) for name in LABELS]
    return tuple(sorted(found, key=lambda item: not item.is_possible))


def _action(name: str, of: Deployment, records: Sequence[RevisionRecord]) -> Action:
    decision = decide(name, of, records)
    targets = _targets(of, records) if name == "undo" else ()
    text = decision.text if isinstance(decision, Change) else decision.why
    return Action(
        name=name,
        label=LABELS[name],
        text=text,
        warning=(decision.warning or "") if isinstance(decision, Change) else "",
        is_possible=isinstance(decision, Change) or bool(targets),
        is_confirmed=name in CONFIRMED,
        targets=targets,
    )


def _targets(of: Deployment, records: Sequence[RevisionRecord]) -> tuple[Target, ...]:
    """Former revisions that undo would go to, the latest first."""
    return tuple(
        Target(
            item.revision, " ".join(filter(None, (item.version, item.revision, history.find_role(of, item.revision))))
        )
        for item in reversed(records)
        if isinstance(intents.undo(of, records, item.revision), Change)
    )


def _describe(token: str) -> str:
    if token.startswith(f"{NO_ROLLOUT}/"):
        revision = token.partition("/")[2]
        return f"revision {revision} without a rollout" if revision else "a deployment without a rollout"
    revision, _, rest = token.partition("/")
    attempt, _, step = rest.partition("/")
    return f"step {int(step) + 1} of revision {revision}, attempt {attempt}" if step.isdecimal() else "an unknown step"


__all__ = ["Change", "Nothing"]
