"""Passes between gateway and jobs process are valid for one tenant, path and minute."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import LIFETIME_S, TO_GATEWAY, TO_JOBS, PassKeys
from slipway_gateway.upstream.jobs_process import MAX_FORWARDED
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import gateway, upstream
from tests.jobs.world import KEY_A, KEY_B, TENANTS, Model, chat

PATH = "/v1/chat/completions"


def write(path: Path, *keys: bytes) -> str:
    listed = [{"id": f"k{n}", "key": base64.urlsafe_b64encode(key).decode()} for n, key in enumerate(keys)]
    path.write_text(json.dumps({"keys": listed}))
    return str(path)


def test_a_pass_is_valid_for_exactly_what_it_was_made_for(keys_file: str) -> None:
    keys = PassKeys(keys_file)
    right = (TO_GATEWAY, "team-a", "POST", PATH)
    made = keys.make(*right)
    assert keys.is_valid(made, *right)
    for place, other in enumerate((TO_JOBS, "team-b", "GET", "/v1/completions")):
        assert not keys.is_valid(made, *(other if n == place else one for n, one in enumerate(right)))
    for broken in ("", made[:-1], made + "0", made.upper(), made.replace("v1", "v2"), "v1.k1..", "v1.k1.9" * 100, "é"):
        assert not keys.is_valid(broken, *right), broken


def test_a_pass_ends_after_a_minute(keys_file: str) -> None:
    now_s = 1000.0
    keys = PassKeys(keys_file, lambda: now_s)
    made = keys.make(TO_JOBS, "", "GET", "/v1/files")
    valid = []
    for later_s in (0, LIFETIME_S, LIFETIME_S + 11, -100):
        now_s = 1000.0 + later_s
        valid.append(keys.is_valid(made, TO_JOBS, "", "GET", "/v1/files"))
    assert valid == [True, True, False, False]


def test_a_key_that_was_rotated_still_verifies_and_another_release_does_not(tmp_path: Path) -> None:
    old = PassKeys(write(tmp_path / "old", b"a" * 32))
    rotated = PassKeys(write(tmp_path / "new", b"b" * 32, b"a" * 32))
    other = PassKeys(write(tmp_path / "other", b"c" * 32))
    made = old.make(TO_JOBS, "t", "GET", "/")
    assert not rotated.is_valid(made, TO_JOBS, "t", "GET", "/")  # the id is that of another key there
    made = rotated.make(TO_JOBS, "t", "GET", "/")
    assert rotated.is_valid(made, TO_JOBS, "t", "GET", "/") and not other.is_valid(made, TO_JOBS, "t", "GET", "/")


@pytest.mark.parametrize("text", ["", "{", '{"keys": []}', '{"keys": [{"id": "k", "key": "c2hvcnQ="}]}', "[1]"])
def test_without_a_usable_file_no_pass_is_made_or_valid(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    keys = PassKeys(str(path))
    assert not keys.known and not keys.is_valid("v1.k.1.a", TO_JOBS, "", "GET", "/")
    with pytest.raises(LookupError):
        keys.make(TO_JOBS, "", "GET", "/")


async def test_a_client_cannot_call_as_another_tenant(keys_file: str, tmp_path: Path) -> None:
    model, keys = Model(), PassKeys(keys_file)
    forged = PassKeys(write(tmp_path / "own", b"x" * 32)).make(TO_GATEWAY, "team-b", "POST", PATH)
    options = {"auth_mode": "required", "jobs_url": "http://127.0.0.1:1", "tenant_keys_file": keys_file}
    async with upstream(model.answer) as served, gateway(TENANTS, tenants.PEPPER, **options) as edge:  # type: ignore[arg-type]
        edge.route(("r1", 100, [served.url]))
        bearer, statuses = tenants.bearer(KEY_A), []
        for head in (
            {JOBS_TENANT: "team-b"},
            {JOBS_TENANT: "team-b", JOBS_PASS: forged},
            {JOBS_TENANT: "team-b", JOBS_PASS: keys.make(TO_GATEWAY, "team-a", "POST", PATH)},
            {JOBS_TENANT: "team-b", JOBS_PASS: keys.make(TO_JOBS, "team-b", "POST", PATH)},
            {JOBS_TENANT: "team-z", JOBS_PASS: keys.make(TO_GATEWAY, "team-z", "POST", PATH)},
            {JOBS_TENANT: "", JOBS_PASS: keys.make(TO_GATEWAY, "", "POST", PATH)},
        ):
            for credentials in (bearer, {}):
                answer = await edge.post(chat(1)["body"], headers=credentials | head)
                statuses.append(answer.status)
        # The last pass names no tenant: then the request's own credentials count.
        assert statuses == [401] * 10 + [200, 401]
        assert not [head for head in model.headers if JOBS_TENANT in head or JOBS_PASS in head]
        answer = await edge.post(
            chat(1)["body"], headers={JOBS_TENANT: "team-b", JOBS_PASS: keys.make(TO_GATEWAY, "team-b", "POST", PATH)}
        )
        assert answer.status == 200


async def test_without_a_jobs_process_such_headers_count_for_nothing(keys_file: str) -> None:
    model = Model()
    async with upstream(model.answer) as served, gateway(TENANTS, tenants.PEPPER, auth_mode="required") as edge:
        edge.route(("r1", 100, [served.url]))
        head = {JOBS_TENANT: "team-b", JOBS_PASS: PassKeys(keys_file).make(TO_GATEWAY, "team-b", "POST", PATH)}
        assert (await edge.post(chat(1)["body"], headers=head)).status == 401
        assert (await edge.post(chat(1)["body"], headers=head | tenants.bearer(KEY_A))).status == 200
        assert not [seen for seen in model.headers if JOBS_TENANT in seen or JOBS_PASS in seen]
        assert (await edge.client.get(f"{edge.url}/v1/files", headers=tenants.bearer(KEY_A))).status == 404


async def test_a_batch_is_no_evidence_for_the_judge_and_follows_the_weights_line_by_line(keys_file: str) -> None:
    one, two, keys = Model(), Model(), PassKeys(keys_file)
    options = {"auth_mode": "required", "jobs_url": "http://127.0.0.1:1", "tenant_keys_file": keys_file}
    async with (
        upstream(one.answer) as first,
        upstream(two.answer) as second,
        gateway(TENANTS, tenants.PEPPER, **options) as edge,  # type: ignore[arg-type]
    ):
        edge.route(("r1", 50, [first.url]), ("r2", 50, [second.url]))
        head = {JOBS_TENANT: "team-a", JOBS_PASS: keys.make(TO_GATEWAY, "team-a", "POST", PATH)}
        for n in range(40):
            assert (await edge.post(chat(n)["body"], headers=head)).status == 200
        assert min(one.answers.total(), two.answers.total()) > 5
        route = edge.balancer.published.find("chat")
        assert route
        generation = edge.balancer.first_attempts.generation(route)
        before = generation.report(0.0).revisions if generation else {}
        assert not [counts for counts in before.values() if counts.requests]
        assert (await edge.post(chat(1)["body"], headers=tenants.bearer(KEY_A))).status == 200
        generation = edge.balancer.first_attempts.generation(route)
        assert generation
        assert sum(counts.requests for counts in generation.report(0.0).revisions.values()) == 1


async def test_a_batch_waits_while_the_model_is_busy_and_holds_up_no_other_request(keys_file: str) -> None:
    model, keys = Model(), PassKeys(keys_file)
    options = {"auth_mode": "required", "jobs_url": "http://127.0.0.1:1", "tenant_keys_file": keys_file}
    async with (
        upstream(model.answer) as served,
        gateway(TENANTS, tenants.PEPPER, batch_slots=3, **options) as edge,  # type: ignore[arg-type]
    ):
        edge.route(("r1", 100, [served.url]))
        head = {JOBS_TENANT: "team-a", JOBS_PASS: keys.make(TO_GATEWAY, "team-a", "POST", PATH)}

        def send(headers: dict[str, str], count: int) -> list[asyncio.Task[Any]]:
            return [asyncio.create_task(edge.post(chat(n)["body"], headers=headers)) for n in range(count)]

        model.open.clear()
        lines = send(head, 5)
        # Three have the room; the others do not get any for as long as a request is held.
        done, _ = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED)
        others = send(tenants.bearer(KEY_B), 4)
        await until_async(lambda: model.waiting == 7, "all other requests are at the model")
        refused = [task.result() for task in done]
        assert {answer.status for answer in refused} == {429} and refused[0].headers["Retry-After"] == "1"
        assert (await edge.post(chat(1)["body"], headers=head)).status == 429
        model.open.set()
        statuses = [answer.status for answer in await asyncio.gather(*lines, *others)]
        assert sorted(statuses) == [200] * 7 + [429] * 2
        assert (await edge.post(chat(1)["body"], headers=head)).status == 200


async def test_a_line_that_waits_goes_when_there_is_room(keys_file: str) -> None:
    model, keys = Model(), PassKeys(keys_file)
    options = {"jobs_url": "http://127.0.0.1:1", "tenant_keys_file": keys_file, "hold_timeout_s": 60}
    async with upstream(model.answer) as served, gateway((), batch_slots=1, **options) as edge:  # type: ignore[arg-type]
        edge.route(("r1", 100, [served.url]))
        head = {JOBS_TENANT: "", JOBS_PASS: keys.make(TO_GATEWAY, "", "POST", PATH)}
        model.open.clear()
        other = asyncio.create_task(edge.post(chat(1)["body"]))
        await until_async(lambda: model.waiting == 1, "it is at the model")
        lines = [asyncio.create_task(edge.post(chat(n)["body"], headers=head)) for n in range(3)]
        await asyncio.sleep(0.1)
        assert model.waiting == 1
        model.open.set()
        assert [answer.status for answer in await asyncio.gather(other, *lines)] == [200] * 4


async def test_requests_of_one_tenant_that_hang_leave_room_for_files_of_others(keys_file: str) -> None:
    going_on = asyncio.Event()

    async def list_files(request: web.Request) -> web.Response:
        if request.headers[JOBS_TENANT] == "team-a":
            await going_on.wait()
        return web.json_response({"data": []})

    async with upstream(list_files) as process:
        options = {"auth_mode": "required", "jobs_url": process.url, "tenant_keys_file": keys_file}
        async with gateway(TENANTS, tenants.PEPPER, **options) as edge:  # type: ignore[arg-type]

            async def files(key: str) -> int:
                async with edge.client.get(f"{edge.url}/v1/files", headers=tenants.bearer(key)) as answer:
                    return answer.status

            held = [asyncio.create_task(files(KEY_A)) for _ in range(MAX_FORWARDED // 2)]
            await until_async(lambda: len(process.seen) == MAX_FORWARDED // 2)
            assert [await files(KEY_A), await files(KEY_B)] == [429, 200]
            going_on.set()
            assert set(await asyncio.gather(*held)) == {200}
            assert await files(KEY_A) == 200
