"""A view as a tree on a terminal, or as the same lines without colour."""

from datetime import datetime

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from slipway_cli.objects.pods import PodRow
from slipway_cli.objects.pool import Pool
from slipway_cli.objects.times import format_age
from slipway_cli.views.status import ConditionView, EventView, RevisionView, View
from slipway_cli.views.steps import AHEAD, DONE, NOW, REJECTED, SKIPPED, StepLine

PLAIN_WIDTH = 100_000  # characters: lines that a program reads are not broken

_PHASES = {"Healthy": "green", "Progressing": "cyan", "Paused": "yellow", "Degraded": "red", "Asleep": "blue"}
_ROLES = {"stable": "green", "canary": "yellow", "baseline": "yellow", "old": "dim"}
_MARKS = {DONE: ("[x]", "green"), NOW: ("[>]", "bold"), AHEAD: ("[ ]", "dim")}
_MARKS |= {REJECTED: ("[!]", "red"), SKIPPED: ("[-]", "dim")}


def build_tree(view: View, now: datetime) -> Tree:
    """A view as a tree. `now`: for the ages of pods, conditions and Events."""
    outdated = [Text(view.outdated, style="bold red")] if view.outdated else []
    clocks = [Text(line, style="dim") for line in view.clocks]
    rollback = [Text(view.rollback, style="yellow")] if view.rollback else []
    head = Text("\n").join([_head(view), *outdated, Text(view.message), *rollback, *clocks])
    root = Tree(head, guide_style="dim")
    for revision in view.revisions:
        branch = root.add(_revision(revision))
        for pod in revision.pods:
            branch.add(_pod(pod, now))
    _branch(root, "registered model", [Text(line) for line in view.registry])
    if view.pool:
        _pool(root, view.pool, now)
    _branch(root, "steps", [_step(number, step) for number, step in enumerate(view.steps, 1)])
    for item in view.analyses:
        _branch(root, item.title, [Text(line) for line in item.lines])
    _branch(root, "not as it should be", [_condition(item, now) for item in view.conditions])
    _branch(root, "last events", [_event(item, now) for item in view.events])
    _branch(root, "not shown", [Text(note) for note in view.notes])
    return root


def open_console(is_terminal: bool) -> Console:
    """A console with colours and the terminal's width, or a plain one whose lines are not broken."""
    return Console(highlight=False) if is_terminal else Console(width=PLAIN_WIDTH, no_color=True, highlight=False)


def _pool(root: Tree, pool: Pool, now: datetime) -> None:
    branch = root.add(Text.assemble("pool ", (pool.name, "bold"), f"  {pool.describe()}"))
    for row in pool.pods:
        branch.add(_pod(row, now))
    for problem in pool.problems:
        branch.add(Text(problem, style="yellow"))


def _branch(root: Tree, title: str, lines: list[Text]) -> None:
    if lines:
        branch = root.add(Text(title, style="bold"))
        for line in lines:
            branch.add(line)


def _head(view: View) -> Text:
    parts = [f"step {view.step}" if view.step else "", "" if view.weight is None else f"weight {view.weight}%"]
    parts += [f"ready {view.ready}" if view.ready else "", f"model {view.model}" if view.model else ""]
    head = Text.assemble((f"{view.namespace}/{view.name}", "bold"), "  ", (view.phase, _PHASES.get(view.phase, "")))
    return head.append("".join(f"  {part}" for part in parts if part))


def _revision(item: RevisionView) -> Text:
    line = Text.assemble((item.role or "revision", _ROLES.get(item.role, "")), " ", (item.revision, "bold"))
    line.append(f"  {item.version}" if item.version else "")
    line.append(f"  weight {item.weight}%  ready {item.ready}/{item.replicas}")
    line.append(f"  {item.entry}" if item.entry else "")
    line.append(f"  {item.standby}" if item.standby else "")
    line.append("" if item.inflight is None else f"  in flight {item.inflight}")
    return line.append(f"  may leave at {item.leaves_at}" if item.leaves_at else "")


def _pod(pod: PodRow, now: datetime) -> Text:
    style = "green" if pod.is_ready else "dim" if pod.phase in ("Terminating", "Pending", "Running") else "red"
    line = Text.assemble(f"{pod.name}  ", (pod.phase, style), f"  {pod.containers}  restarts {pod.restarts}")
    line.append(f"  {format_age(pod.created_at, now)}")
    line.append(f"  {pod.standby}" if pod.standby else "")
    return line.append(f"  {pod.why}" if pod.why else "")


def _step(number: int, step: StepLine) -> Text:
    mark, style = _MARKS[step.mark]
    return Text(f"{mark} {number} {step.text}", style=style)


def _condition(item: ConditionView, now: datetime) -> Text:
    line = Text.assemble((f"{item.type} is {item.status}", "yellow"), f" ({item.reason})")
    return line.append(f" for {format_age(item.since, now)}: {item.message}")


def _event(item: EventView, now: datetime) -> Text:
    times = f" (x{item.count})" if item.count > 1 else ""
    style = "red" if item.type == "Warning" else ""
    return Text.assemble(f"{format_age(item.at, now)} ago  ", (item.reason, style), f"{times}  {item.message}")
