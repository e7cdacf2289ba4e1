"""A batch during a rollout: its process ends in the middle, each line has one result and names its revision."""

import json
from collections import Counter
from collections.abc import Callable, Iterator

import openai
import pytest

from testkit.cluster.deployment import Deployment, canary
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.until import until

pytestmark = pytest.mark.extended

LINES = 400


@pytest.fixture
def with_jobs(slipway: Installation) -> Iterator[None]:
    try:
        slipway.upgrade(jobs={"enabled": True})
        slipway.until_well()
        yield
    finally:
        slipway.upgrade()
        slipway.until_well()


def line(chat: Deployment, number: int) -> str:
    body = {"model": chat.model, "messages": [{"role": "user", "content": f"Number {number}?"}], "max_tokens": 8}
    return json.dumps({"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


@pytest.mark.timeout(600, func_only=True)
def test_a_batch_outlives_its_process_and_each_line_names_its_revision(
    slipway: Installation, with_jobs: None, deploy: Callable[..., Deployment]
) -> None:
    chat = deploy("v1", strategy=canary({"setWeight": 50}, {"pause": {}}))
    chat.until_stable("v1")
    former = chat.status["stableRevision"]
    client = openai.OpenAI(base_url=slipway.url, api_key="none")
    content = "\n".join(line(chat, number) for number in range(LINES)).encode()
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

    def completed() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts.completed if counts else 0

    until(lambda: completed() > 10, "lines have results", 60)
    [pod] = slipway.ready("jobs")
    # The process alone, since SQLite's file is in the pod; the first one of a container ignores SIGKILL from inside.
    slipway.kube.kubectl("exec", pod, "--namespace", SYSTEM, "--", "python3", "-c", "import os; os.kill(1, 15)")
    chat.release("v2")
    new = chat.until_state("Paused")["canaryRevision"]
    until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch is completed", 300)
    ended = client.batches.retrieve(batch.id)
    assert ended.request_counts and ended.request_counts.completed == LINES and ended.output_file_id
    results = [json.loads(text) for text in client.files.content(ended.output_file_id).text.splitlines()]
    assert [result["custom_id"] for result in results] == [f"n{number}" for number in range(LINES)]
    revisions = Counter(result["response"]["revision"] for result in results)
    assert set(revisions) == {former, new}, revisions
    chat.promote()
    chat.until_stable("v2")
