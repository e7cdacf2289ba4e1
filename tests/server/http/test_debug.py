"""Profiles of a running engine: bounded, one at a time, and only where they were switched on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipway_server.engine.messages import Profile
from slipway_server.http.debug import parse_query
from testkit.until import until
from tests.server.process import ServerProcess, get, post


def test_a_query_is_bounded() -> None:
    assert parse_query("") == Profile(20, 10.0, False)
    assert parse_query("steps=200&seconds=60&kind=torch") == Profile(200, 60.0, True)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("steps=0", "steps"),
        ("steps=201", "steps"),
        ("steps=x", "steps"),
        ("seconds=61", "seconds"),
        ("seconds=", "seconds"),
        ("kind=perf", "kind"),
        ("step=1", "step"),
    ],
)
def test_a_malformed_query_is_refused(query: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_query(query)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_without_the_flag_there_is_nothing(server: ServerProcess) -> None:
    assert get(server.probe_url + "/debug/profile")[0] == 404


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_profiles_of_a_running_engine(tiny_v1: Path) -> None:
    long = {"model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 450, "ignore_eos": True}
    with ServerProcess(tiny_v1, "--enable-debug") as server, ThreadPoolExecutor(3) as pool:
        url = server.wait_ready().probe_url + "/debug/profile"
        for kind, word in (("python", b"in_torch.py"), ("torch", b"aten::")):
            work = pool.submit(post, server.url + "/v1/completions", long)
            until(lambda: server.running() == 1, "a running request")
            status, table = get(f"{url}?steps=5&seconds=25&kind={kind}")
            assert status == 200 and table.startswith(b"5 steps\n") and word in table
            assert work.result()[0] == 200
        assert get(f"{url}?steps=0")[0] == 400
        # Nothing runs: the profile ends by its time. There is one at a time, and probes do not wait for it.
        both = [pool.submit(get, f"{url}?seconds=2") for _ in range(2)]
        assert get(server.probe_url + "/readyz")[0] == 200
        assert {one.result() for one in both} == {
            (200, b"No step ran.\n"),
            (409, b"Another profile is being taken.\n"),
        }
        crashing = pool.submit(get, f"{url}?seconds=60")
        server.engine.kill()
        assert crashing.result()[0] == 503
