"""The progress of pods that download a model: what the status shows of it, and the sentence for messages.

Each new status wakes every client that watches it. So numbers change only when the percentage does, when a download
stalls or goes on, and when another size is known; otherwise they stay as they were written.
"""

from collections.abc import Sequence

from slipway_operator.api.v1alpha1.status import FetchingPod, NodeModel
from slipway_operator.model import labels
from slipway_operator.model.cluster import downloads
from slipway_operator.model.cluster.observed import Pod, PodDownload
from slipway_operator.model.inputs.pod_inputs import NODE_CACHE
from slipway_operator.planning.facts.situation import Situation

WORD = downloads.FETCHING
MOST_NODES = 16  # of one revision
_NOWHERE = NodeModel("", "")
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def shown(at: Situation, revision: str) -> tuple[FetchingPod, ...]:
    """The pods of a revision that download a model, as the status shows them."""
    former = {pod.pod: pod for item in at.status.revisions if item.revision == revision for pod in item.fetching}
    found = [_pod(at, pod, former.get(pod.name)) for of, pod in downloads.fetching(at.observed) if of == revision]
    return tuple(pod for pod in found if pod)


def nodes(at: Situation, revision: str) -> tuple[NodeModel, ...]:
    """Nodes whose cache has the model of a revision or downloads it, MOST_NODES at most; none without such a cache."""
    snapshot = at.observed.snapshots.get(labels.what_runs(revision))
    if snapshot is None or snapshot.inputs.model.cache != NODE_CACHE:
        return ()
    found = {
        node: NodeModel(node, state) for (of, node), state in at.observed.prefetches.items() if of == snapshot.revision
    }
    # Of the pods on a node, the one that downloads comes last, so its numbers count; the others wait for it.
    by_pod = sorted(shown(at, revision), key=lambda pod: (not pod.waiting, pod.percent or 0))
    read = {pod.node: pod for pod in by_pod if pod.node}
    workload = at.workload(revision)
    for pod in (*workload.pods, *workload.workers) if workload else ():
        if pod.node and pod.weights:
            found[pod.node] = NodeModel(pod.node, downloads.CACHED, pod.model_bytes)
        elif pod.node and pod.fetching and found.get(pod.node, _NOWHERE).state != downloads.CACHED:
            found[pod.node] = _on_its_way(pod.node, read.get(pod.node))
    missing_first = sorted(found.values(), key=lambda item: (item.state == downloads.CACHED, item.node))
    return tuple(sorted(missing_first[:MOST_NODES], key=lambda item: item.node))


def _on_its_way(node: str, pod: FetchingPod | None) -> NodeModel:
    if pod is None or pod.waiting:
        return NodeModel(node, downloads.FETCHING)
    return NodeModel(
        node, downloads.FETCHING, pod.size_bytes, pod.percent, pod.bytes_per_second, pod.seconds_left
    )  # fmt: skip


def word(at: Situation) -> str | None:
    """`Fetching`, with the percentage of the pod that has downloaded least; None where no pod is known to download."""
    pods = [pod for revision in sorted(at.observed.workloads) for pod in shown(at, revision)]
    if not pods:
        return None
    least = _least(pods).percent
    return WORD if least is None else f"{WORD} {least} %"


def sentence(at: Situation, revision: str | None) -> str:
    """The pod of a revision that has downloaded least, with its numbers; empty where none is known to download."""
    pods = shown(at, revision or "")
    if not pods:
        return ""
    least = _least(pods)
    more = f", as {len(pods) - 1} more {'does' if len(pods) == 2 else 'do'}" if len(pods) > 1 else ""
    return f"pod {least.pod} {_numbers(least)}{more}"


def _pod(at: Situation, pod: Pod, former: FetchingPod | None) -> FetchingPod | None:
    if pod.name not in at.observed.downloads:
        return former  # this process has not read it yet
    download = at.observed.downloads[pod.name]
    if download is None:
        return None
    fresh = _rounded(pod, download)
    return former if former and _key(former) == _key(fresh) else fresh


def _key(pod: FetchingPod) -> tuple[object, ...]:
    done = pod.downloaded_bytes if pod.percent is None else pod.percent
    return pod.node, done, pod.size_bytes, pod.waiting, pod.bytes_per_second > 0


def _rounded(pod: Pod, download: PodDownload) -> FetchingPod:
    size, speed = download.size_bytes, _two_digits(download.bytes_per_second)
    done = _two_digits(download.done_bytes) if size is None else download.done_bytes
    return FetchingPod(
        pod=pod.name,
        node=pod.node or None,
        percent=done * 100 // size if size else None,
        downloaded_bytes=done,
        size_bytes=size,
        bytes_per_second=speed,
        seconds_left=-(-(size - done) // speed) if size and speed else None,
        waiting=download.waiting or None,
    )


def _two_digits(number: int) -> int:
    unit = int("1".ljust(len(str(number)) - 1, "0"))
    return number // unit * unit


def _least(pods: Sequence[FetchingPod]) -> FetchingPod:
    """The pod that has downloaded least, of those with a percentage where there are any.

    Pods without one wait for these, or nothing is known of them.
    """
    counted = [pod for pod in pods if pod.percent is not None and not pod.waiting]
    return min(counted or pods, key=lambda pod: (pod.percent or 0, pod.downloaded_bytes, pod.pod))


def _numbers(pod: FetchingPod) -> str:
    if pod.waiting:
        return "waits for another pod that downloads the model into the cache"
    if pod.size_bytes is None and not pod.downloaded_bytes:
        return "begins to download the model"
    if pod.percent == 100:
        return f"has downloaded {_amount(pod.size_bytes or 0)} and checks it"
    done = f"{pod.percent} % of {_amount(pod.size_bytes)}" if pod.size_bytes else _amount(pod.downloaded_bytes)
    speed = f", {_amount(pod.bytes_per_second)}/s" if pod.bytes_per_second else ", and nothing comes"
    left = f", {_duration(pod.seconds_left)} left" if pod.seconds_left is not None else ""
    return f"downloads the model: {done}{speed}{left}"


def _amount(size: int) -> str:
    """A number of bytes as text in decimal units, as registries and hubs count."""
    unit, name = next((item for item in _UNITS if size >= item[0]), (1, "bytes"))
    amount = size / unit
    return f"{amount:.1f} {name}" if unit > 1 and amount < 100 else f"{amount:.0f} {name}"


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
