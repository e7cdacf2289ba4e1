"""No body that the jobs process takes stops its neighbours or takes much memory, whatever is in it."""

import base64
import json
import sys
from collections.abc import Iterator, Mapping

import pytest

from devcluster.ports import reserve_port
from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import TO_JOBS, PassKeys
from testkit.load.watch import Watch
from testkit.load.watcher import Observed
from testkit.world.program import Launch, running

from ..support.largest import GZIP, PLAIN, LargeBody, Target
from .largest_bodies import LARGEST, LIMIT_BYTES, SHORT_LINES
from .world import settings

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.finding("F12"),
    pytest.mark.attack_class(15, 18),
]

SAMPLE = 4  # bodies of an ordinary run
START_S = 120.0
TENANT_NAME = "team-a"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder, keys_file = tmp_path_factory.mktemp("jobs"), tmp_path_factory.mktemp("keys") / "tenant.json"
    key = base64.urlsafe_b64encode(b"k" * 32).decode()
    keys_file.write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    keys = PassKeys(str(keys_file))

    def passed(path: str) -> Mapping[str, str]:
        return {JOBS_TENANT: TENANT_NAME, JOBS_PASS: keys.make(TO_JOBS, TENANT_NAME, "POST", path)}

    no_gateway = f"http://127.0.0.1:{reserve_port()}"
    given = settings(f"sqlite:///{folder}/jobs.db", str(keys_file), no_gateway, max_tenant_webhooks=1)
    command = (sys.executable, "-m", "slipway_jobs", *(f"--{name}={value}" for name, value in given.items()))
    url, admin_url = (f"http://127.0.0.1:{given[name]}" for name in ("port", "admin-port"))
    launch = Launch(command, {}, url, f"{admin_url}/readyz")
    with (
        running(launch, folder / "jobs.log", START_S) as server,
        Watch(Observed(f"{admin_url}/healthz", [server.pid], f"{admin_url}/metrics")) as watch,
    ):
        yield Target(url, LIMIT_BYTES, watch, passed)


def test_some_of_the_largest_bodies_disturb_no_neighbour_of_jobs(jobs: Target, request: pytest.FixtureRequest) -> None:
    jobs.check_some(LARGEST, SAMPLE, request.config.getoption("randomly_seed", 1), [PLAIN, PLAIN, GZIP])


@pytest.mark.extended
@pytest.mark.parametrize("encoding", [PLAIN, GZIP])
@pytest.mark.parametrize("body", LARGEST, ids=[body.name for body in LARGEST])
def test_the_largest_bodies_disturb_no_neighbour_of_jobs(jobs: Target, body: LargeBody, encoding: str) -> None:
    jobs.check(body, encoding)


@pytest.mark.extended
def test_a_file_of_short_lines_disturbs_no_neighbour_of_jobs(jobs: Target) -> None:
    jobs.check(SHORT_LINES, PLAIN)
