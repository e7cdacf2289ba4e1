"""Why the scheduler finds no node, from its own message; pure.

Its counts are by node: `1 node(s) had untolerated taint(s)` excludes that node, `2 Insufficient nvidia.com/gpu` means
that too little is free on two, and the part about preemption separates nodes where that could ever be enough from the
others. So the operator reads no nodes and needs no permission for them.
"""

import re
from dataclasses import dataclass, field

from slipway_operator.model.inputs.pod_inputs import Resources

_NODES = re.compile(r"\d+/(\d+) nodes")
_SHORT = re.compile(r"(\d+) (?:Insufficient|Too many) ([\w./-]*\w)")
_LEFT_OUT = re.compile(r"(\d+) node\(s\) (.+?)(?=, \d+ |\.(?: |$)|$)")
_PLAIN = re.compile(r"nodes are available: (.+?)\.(?: |$)")  # a reason that applies to all nodes
_HOPELESS = re.compile(r"(\d+) Preemption is not helpful")

TOO_LITTLE_FREE = "InsufficientCapacity"
ON_NO_NODE = "NoNodeOffersResource"
NO_MATCH = "NoMatchingNode"
UNKNOWN = "Unschedulable"


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """The scheduler's counts. `hopeless`: nodes that would not fit the pod even if others left; None: unknown."""

    nodes: int = 0
    short: dict[str, int] = field(default_factory=dict)  # nodes where too little is free, by resource
    left_out: dict[str, int] = field(default_factory=dict)  # excluded nodes, by reason
    hopeless: int | None = None

    @property
    def reason(self) -> str:
        """The reason, for a condition."""
        if not self.short and not self.left_out:
            return UNKNOWN
        if self.hopeless is None:
            return TOO_LITTLE_FREE if self.short else NO_MATCH
        if self.hopeless < self.nodes:
            return TOO_LITTLE_FREE
        return ON_NO_NODE if self.short else NO_MATCH


def read(message: str) -> NodeCounts:
    """Parse the message of a pod's condition PodScheduled."""
    nodes = _NODES.search(message)
    filters, _, preemption = message.partition("preemption:")
    hopeless = _HOPELESS.search(preemption)
    return NodeCounts(
        nodes=int(nodes[1]) if nodes else 0,
        short={resource: int(count) for count, resource in _SHORT.findall(filters)},
        left_out={why: int(count) for count, why in _LEFT_OUT.findall(filters)},
        hopeless=int(hopeless[1]) if hopeless else 0 if preemption else None,
    )


def sentence(message: str, pods: int, resources: Resources) -> str:
    """A message with the missing amounts and the number of nodes."""
    counted = "1 pod finds no node" if pods == 1 else f"{pods} pods find no node"
    found = read(message)
    left_out = [f"{count} of {found.nodes} nodes {why}" for why, count in found.left_out.items()]
    parts = [*_short(found, pods, resources), *left_out]
    plain = _PLAIN.search(message)
    return f"{counted}: {'; '.join(parts) or (plain[1] if plain else message) or 'the scheduler gives no reason'}"


def _short(found: NodeCounts, pods: int, resources: Resources) -> list[str]:
    amounts = {"cpu": resources.cpu, "memory": resources.memory}
    if resources.accelerator:
        amounts[resources.accelerator[0]] = str(resources.accelerator[1])
    return [_missing(found, pods, resource, amounts.get(resource)) for resource in found.short]


def _missing(found: NodeCounts, pods: int, resource: str, amount: str | None) -> str:
    needed = f"{amount} {resource}" if amount else resource
    if found.reason == ON_NO_NODE:
        return f"0 of {found.nodes} nodes have {needed}, even when empty"
    each = f"{pods} x {needed}" if amount else needed
    short = found.short[resource]
    return f"{each} missing, too little is free on {short} of {found.nodes or short} nodes"
