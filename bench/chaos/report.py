"""The figures of a chaos run: bars, a table for people, and build/reports/chaos.json."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.chaos.asking import FAILED, GOOD, SAVED, UNSAVABLE, Ending
from bench.chaos.killer import Kill
from bench.chaos.meters import Process
from bench.chaos.story import Round
from bench.chaos.traffic import LONG_S
from testkit.report import Bar, Json, quantile, report

LEAST_RATE, LEAST_STREAMS = 20.0, 30
# A gateway's death is seen by its clients at once; until its successor is in the Service, doors are shut.
EXCUSED_S = (-1.0, 15.0)
KEPT = 200  # endings that are listed one by one


@dataclass(slots=True)
class Outcome:
    """All that was seen."""

    began: float = 0.0  # of the rollouts, in seconds since the epoch: with all streams open
    ended: float = 0.0
    endings: Sequence[Ending] = ()
    unsent: int = 0
    kills: Sequence[Kill] = ()
    rounds: Sequence[Round] = ()
    planned: int = 0
    all_gateways: Process = field(default_factory=lambda: Process({}, {}, 0))
    living_gateways: Process = field(default_factory=lambda: Process({}, {}, 0))
    lives: int = 0
    left: Sequence[str] = ()
    phase: str = ""

    @property
    def seconds(self) -> float:
        return max(self.ended - self.began, 1e-9)

    def of(self, kind: str, *, stream: bool | None = None) -> list[Ending]:
        return [item for item in self.endings if item.kind == kind and stream in (None, item.stream)]


def bars(outcome: Outcome) -> list[Bar]:
    """One for each figure that a run promises."""
    during = [item for item in outcome.endings if outcome.began <= item.ended <= outcome.ended]
    answered = [item for item in during if not item.stream and item.kind in (GOOD, SAVED)]
    rate = round(len(answered) / outcome.seconds, 1)
    streams = fewest(long_streams(outcome.endings), outcome.began, outcome.ended)
    missing = sum(item.difference.missing for item in outcome.endings)
    added = sum(item.difference.added for item in outcome.endings)
    planned = sum(not item.trouble for item in outcome.rounds)
    killed = struck(outcome)
    failed, strange = len(outcome.of(FAILED)), len(unexcused(outcome))
    refused, counted = errors_of(outcome.all_gateways), outcome.all_gateways.outcomes.get("ok", 0)
    whole = len(outcome.of(GOOD)) + len(outcome.of(SAVED))
    seen = sum(not item.lost for ending in outcome.endings for item in ending.breaks)
    return [
        Bar("rollouts and rollbacks that ended as planned", planned, f"{outcome.planned}", planned == outcome.planned),
        Bar("short requests answered per second", rate, f">= {LEAST_RATE:.0f}", rate >= LEAST_RATE),
        Bar("short requests not sent", outcome.unsent, "0", outcome.unsent == 0),
        Bar(f"streams of {LONG_S:.0f} s open at any time", streams, f">= {LEAST_STREAMS}", streams >= LEAST_STREAMS),
        *(Bar(f"kills: {what}", killed.get(what, 0), ">= 1", what in killed) for what in KINDS),
        Bar("failed requests", failed, "0", failed == 0),
        Bar("characters missing", missing, "0", missing == 0),
        Bar("characters duplicated or foreign", added, "0", added == 0),
        Bar("lost connections that no killed gateway explains", strange, "0", strange == 0),
        Bar("errors that gateways counted and no client saw", max(0, refused - seen), "0", refused <= seen),
        Bar("answers that gateways counted and no client has", max(0, counted - whole), "0", counted <= whole),
        Bar("objects left over", len(outcome.left), "0", not outcome.left),
        Bar("Healthy at the end", outcome.phase == "Healthy", "yes", outcome.phase == "Healthy"),
    ]


KINDS = ("server", "engine", "pod", "operator", "gateway")


def struck(outcome: Outcome) -> dict[str, int]:
    return dict(Counter(kill.what for kill in outcome.kills))


def long_streams(endings: Iterable[Ending]) -> list[Ending]:
    return [item for item in endings if item.stream and item.seconds >= LONG_S]


def fewest(endings: Iterable[Ending], since: float, until: float) -> int:
    """The least number of them that ran at one moment; a stream that follows another at once leaves no gap."""
    changes: Counter[float] = Counter()
    running = 0
    for item in endings:
        if item.began <= since < item.ended:
            running += 1
        elif since < item.began < until:
            changes[round(item.began, 1)] += 1
        if since < item.ended < until:
            changes[round(item.ended, 1)] -= 1
    least = running
    for at in sorted(changes):
        running += changes[at]
        least = min(least, running)
    return least


def unexcused(outcome: Outcome) -> list[Ending]:
    """Requests that lost a connection when no gateway had just been killed."""
    killed = [kill.at for kill in outcome.kills if kill.what == "gateway"]

    def excused(at: float) -> bool:
        return any(EXCUSED_S[0] <= at - death <= EXCUSED_S[1] for death in killed)

    return [item for item in outcome.endings if any(lost.lost and not excused(lost.at) for lost in item.breaks)]


def errors_of(gateways: Process) -> int:
    """Responses that were not as requested; a client that went away is one whose gateway lived on."""
    return sum(count for name, count in gateways.outcomes.items() if name != "ok")


def rows(outcome: Outcome) -> list[Json]:
    """Numbers behind the bars."""
    return [
        *(_class_row(outcome, stream=stream) for stream in (False, True)),
        {
            "chaos_s": round(outcome.seconds, 1),
            "kills": struck(outcome),
            "gateway_processes": outcome.lives,
            "gateways_counted": dict(outcome.all_gateways.outcomes),
            "gateways_resumed": dict(outcome.all_gateways.resumes),
            "gateways_retried": outcome.all_gateways.retries,
            "living_gateways_counted": dict(outcome.living_gateways.outcomes),
        },
        *(
            {"rollout": item.number, "kind": item.kind, "seconds": round(item.seconds, 1), "trouble": item.trouble}
            for item in outcome.rounds
        ),
        *({"saved": reason, "requests": count} for reason, count in reasons(outcome.of(SAVED))),
        *({"could_not_be_saved": reason, "requests": count} for reason, count in reasons(outcome.of(UNSAVABLE))),
    ]


def _class_row(outcome: Outcome, *, stream: bool) -> Json:
    mine = [item for item in outcome.endings if item.stream == stream]
    whole = [item.seconds for item in mine if item.kind in (GOOD, SAVED)]
    return {
        "requests": "streams" if stream else "short",
        "sent": len(mine),
        **{kind.replace(" ", "_"): len(outcome.of(kind, stream=stream)) for kind in (GOOD, SAVED, UNSAVABLE, FAILED)},
        "tokens": sum(item.tokens for item in mine),
        **{f"p{round(share * 100)}_s": round(quantile(whole, share, 0.0), 2) for share in (0.0, 0.5, 0.95, 0.99, 1.0)},
    }


def reasons(endings: Iterable[Ending]) -> list[tuple[str, int]]:
    return Counter(item.reason for item in endings).most_common(20)


def summary(outcome: Outcome) -> str:
    """For people."""
    short, streams = (_class_row(outcome, stream=stream) for stream in (False, True))
    lines = [
        f"{name:<8} {row['sent']} sent: {row['good']} good, {row['saved']} saved, {row['could_not_be_saved']} could not"
        f" be saved, {row['failed']} failed; seconds p0 {row['p0_s']} p50 {row['p50_s']} p99 {row['p99_s']}"
        f" p100 {row['p100_s']}; {row['tokens']} tokens"
        for name, row in (("short", short), ("streams", streams))
    ]
    counted = outcome.all_gateways
    lines += [
        f"rollouts {', '.join(f'{item.kind} {item.seconds:.0f} s' for item in outcome.rounds)}",
        f"kills    {len(outcome.kills)} in {outcome.seconds:.0f} s: {struck(outcome)}",
        f"gateways {outcome.lives} processes counted {counted.outcomes}, resumed {counted.resumes},"
        f" retried {counted.retries}",
    ]
    for kind in (SAVED, UNSAVABLE, FAILED):
        lines += [f"{kind}: {count} x {reason}" for reason, count in reasons(outcome.of(kind))]
    lines += [f"left over: {name}" for name in outcome.left]
    lines += [
        f"{'ok      ' if bar.ok else 'NOT HELD'} {bar.bar}: {bar.value} (must be {bar.limit})" for bar in bars(outcome)
    ]
    return "\n".join(lines)


def as_json(outcome: Outcome, settings: Json) -> Json:
    endings = [_row_of(item) for item in outcome.endings if item.kind in (FAILED, UNSAVABLE)]
    kills = [{"at_s": round(kill.at - outcome.began, 1), "what": kill.what} for kill in outcome.kills]
    return report("chaos", rows(outcome), bars(outcome), settings=settings, kills=kills, endings=endings[:KEPT])


def _row_of(item: Ending) -> Json:
    return {
        "request": item.request_id,
        "class": item.kind,
        "reason": item.reason,
        "stream": item.stream,
        "seconds": round(item.seconds, 2),
        "tries": item.tries,
        "missing": item.difference.missing,
        "added": item.difference.added,
        "breaks": [f"+{lost.at - item.began:.1f} s {lost.why}" for lost in item.breaks],
    }
