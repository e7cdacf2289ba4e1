"""What the demo reads out of a ModelDeployment: pure, so that it is tested without a cluster."""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
WIDTH = 180  # characters of a printed line, after its time
LONG, SHORT = 60, 40  # a part of a message that is longer is printed once, and then its beginning


@dataclass(frozen=True, slots=True)
class Row:
    """One revision in the table."""

    version: str
    revision: str
    role: str
    weight: int
    ready: str
    requests: int = 0
    failures: int = 0


def status_of(deployment: Json) -> Json:
    """The status, once it answers the present spec: an older one would confirm what no longer is."""
    status = dict(deployment.get("status") or {})
    current = status.get("observedGeneration") == deployment.get("metadata", {}).get("generation")
    return status if current else {}


def rollout_of(deployment: Json) -> Json:
    return dict(status_of(deployment).get("rollout") or {})


def weights_of(deployment: Json) -> dict[str, int]:
    """Version → percent of new requests, of those that get any."""
    backends = (status_of(deployment).get("traffic") or {}).get("backends") or ()
    return {str(item.get("version")): item["weight"] for item in backends if item.get("weight")}


def is_settled(deployment: Json, version: str, replicas: int) -> bool:
    """This version serves everything with all its pods, and no rollout is left."""
    status = status_of(deployment)
    whole = status.get("phase") == "Healthy" and status.get("ready") == f"{replicas}/{replicas}"
    return whole and not status.get("rollout") and weights_of(deployment) == {version: 100}


def is_paused(deployment: Json, version: str, weight: int) -> bool:
    """A rollout waits, and every gateway gives this version this share."""
    status = status_of(deployment)
    waits = rollout_of(deployment).get("state") == "Paused" and status.get("weight") == weight
    return waits and weights_of(deployment).get(version) == weight


def is_rejected(deployment: Json, reason: str, version: str) -> bool:
    """The last rollout was rejected for this reason and `version` has all traffic."""
    rollout = rollout_of(deployment)
    rejected = rollout.get("state") == "Aborted" and rollout.get("abort", {}).get("reason") == reason
    return rejected and weights_of(deployment) == {version: 100}


def rejection(deployment: Json) -> str:
    """Why a rollout that was to succeed never will; empty while it may."""
    abort = rollout_of(deployment).get("abort") or {}
    return f"it was rejected: {abort.get('reason')}: {abort.get('message')}" if abort else ""


def rows(deployment: Json, requests: dict[str, int], failures: dict[str, int]) -> list[Row]:
    """One row for each revision that has pods, the one with the most traffic first."""
    status = deployment.get("status") or {}
    found = [
        Row(
            version=item.get("version") or "-",
            revision=item["revision"],
            role=item.get("role", ""),
            weight=item.get("weight", 0),
            ready=f"{item.get('ready', 0)}/{item.get('replicas', 0)}",
            requests=requests.get(item["revision"], 0),
            failures=failures.get(item["revision"], 0),
        )
        for item in status.get("revisions") or ()
    ]
    return sorted(found, key=lambda row: (-row.weight, row.version))


def headline(deployment: Json, former: str = "") -> str:
    """One line of where it is: for lines that are printed when it changes. `former`: the message of the last one."""
    status = deployment.get("status") or {}
    step = f" step {status['step']}" if status.get("step") else ""
    shares = ", ".join(f"{row.version} {row.weight}% {row.ready}" for row in rows(deployment, {}, {}))
    message = news(message_of(deployment), former)
    return f"{status.get('phase', 'Pending')}{step} [{shares or 'no pods'}] {message}".rstrip()


def message_of(deployment: Json) -> str:
    """What the operator says about it."""
    return str((deployment.get("status") or {}).get("message") or "")


def news(message: str, former: str) -> str:
    """The message, with the beginning alone of each long part that the former message had too."""
    before = set(former.split("; "))
    return "; ".join(
        f"{part[:SHORT]} …" if part in before and len(part) > LONG else part for part in message.split("; ")
    )


def folded(text: str) -> list[str]:
    """The text in lines of at most WIDTH characters, broken between its parts where that is possible."""
    lines = [""]
    for part in re.split(r"(?<=; )|(?= \| )", text):
        for piece in textwrap.wrap(part, WIDTH, drop_whitespace=False) or [""]:
            if len(lines[-1]) + len(piece.rstrip()) > WIDTH:
                lines.append("")
            lines[-1] += piece.lstrip() if not lines[-1] else piece
    return [line.rstrip() for line in lines]


def versions(deployments: Iterable[Json]) -> dict[str, str]:
    """Revision → version, of all that these states of a ModelDeployment mention."""
    lists = ((item.get("status") or {}).get("revisions") or () for item in deployments)
    return {row["revision"]: row.get("version") or row["revision"] for several in lists for row in several}
