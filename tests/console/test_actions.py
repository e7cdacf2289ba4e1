"""Promote, abort, undo, pause: the viewer's own rights, about one step, at a real API server."""

import asyncio
from typing import Any

import aiohttp
import pytest

from testkit.cluster.api import Api
from tests.console.conftest import SignIn
from tests.console.test_pages import text_of, visible
from tests.console.world import CANARY, STABLE, Console, create_deployment, csrf_of, in_flight, path, set_status

pytestmark = pytest.mark.integration

TOKEN = f"{CANARY}/1/1"
HEALTHY = {
    "phase": "Healthy",
    "message": "serving",
    "currentRevision": STABLE,
    "stableRevision": STABLE,
    "previousRevision": "cccccccccc",
}


async def act(client: aiohttp.ClientSession, namespace: str, action: str, **form: str) -> tuple[int, str]:
    """Status of the answer, and what the viewer then reads."""
    where = f"/deployments/{namespace}/chat"
    form = {"csrf": csrf_of(await text_of(client, where)), "token": TOKEN, **form}
    async with client.post(f"{where}/{action}", data=form, allow_redirects=False) as answer:
        if answer.status == 303:
            assert answer.headers["Location"] == where
            return 303, visible(await text_of(client, where))
        return answer.status, visible(await answer.text())


def spec_of(api: Api, namespace: str) -> dict[str, Any]:
    return dict(api.get(path(namespace, name="chat")).body["spec"])


@pytest.mark.parametrize(
    ("action", "status", "changed"),
    [
        ("promote", in_flight(), {"rollout": {"promote": TOKEN}}),
        ("promote-full", in_flight(), {"rollout": {"promoteFull": f"{CANARY}/1"}}),
        ("abort", in_flight(), {"rollout": {"abort": f"{CANARY}/1"}}),
        ("pause", in_flight(), {"paused": True}),
        ("retry", in_flight(state="Aborted"), {"rollout": {"retry": f"{CANARY}/2"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_action_patches_the_spec(
    api: Api,
    namespace: str,
    editor: str,
    sign_in: SignIn,
    action: str,
    status: dict[str, Any],
    changed: dict[str, Any],
) -> None:
    create_deployment(api, namespace, status=status)
    code, seen = await act(await sign_in(editor), namespace, action)
    assert code == 303 and "Requested: " in seen
    spec = spec_of(api, namespace)
    assert {name: spec.get(name) for name in changed} == changed
    managers = api.get(path(namespace, name="chat")).body["metadata"]["managedFields"]
    assert "slipway-console" in {item["manager"] for item in managers}


async def test_resume_ends_a_pause(api: Api, namespace: str, editor: str, sign_in: SignIn) -> None:
    create_deployment(api, namespace, paused=True)
    client = await sign_in(editor)
    code, seen = await act(client, namespace, "promote")
    assert code == 409 and "is held by spec.paused" in seen
    code, _ = await act(client, namespace, "resume")
    assert code == 303 and not spec_of(api, namespace)["paused"]


async def test_undo_goes_to_a_former_revision(api: Api, namespace: str, editor: str, sign_in: SignIn) -> None:
    made = create_deployment(api, namespace, status=HEALTHY)
    for number, revision in enumerate(("cccccccccc", STABLE), 1):
        record = {
            "metadata": {
                "name": f"chat-{revision}",
                "labels": {"slipway.dev/revision": revision, "slipway.dev/modeldeployment": "chat"},
                "ownerReferences": [
                    {
                        "apiVersion": "slipway.dev/v1alpha1",
                        "kind": "ModelDeployment",
                        "name": "chat",
                        "uid": made["metadata"]["uid"],
                    }
                ],
            },
            "revision": number,
            "data": {"inputs": {"model": {"version": f"v{number}"}}, "image": "server:1"},
        }
        done = api.post(f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions", record)
        assert done.ok, done.message
    client = await sign_in(editor)
    page = await text_of(client, f"/deployments/{namespace}/chat")
    assert (
        '<option value="cccccccccc">v1 cccccccccc previous</option>' in page
        and "Promote" not in page.partition("Why not")[0]
    )
    code, seen = await act(client, namespace, "undo", token=f"none/{STABLE}", to="cccccccccc")
    assert code == 303, seen
    assert spec_of(api, namespace)["rollout"] == {"rollbackTo": f"{STABLE}/cccccccccc"}
    code, seen = await act(client, namespace, "undo", token=f"none/{STABLE}", to="dddddddddd")
    assert code == 409 and "is not in its history" in seen


@pytest.mark.parametrize(
    ("token", "about"),
    [
        (f"{CANARY}/1/0", f"step 1 of revision {CANARY}, attempt 1"),
        ("dddddddddd/1/1", "step 2 of revision dddddddddd, attempt 1"),
        (f"none/{STABLE}", f"revision {STABLE} without a rollout"),
        ("<b>", "an unknown step"),
        ("", "an unknown step"),
    ],
)
@pytest.mark.parametrize("action", ["promote", "abort", "pause"])
async def test_an_action_about_another_step_is_refused(
    api: Api, namespace: str, editor: str, sign_in: SignIn, action: str, token: str, about: str
) -> None:
    create_deployment(api, namespace)
    before = spec_of(api, namespace)
    code, seen = await act(await sign_in(editor), namespace, action, token=token)
    assert code == 409
    present = f"the rollout is now at step 2 of revision {CANARY}, attempt 1: nothing was changed"
    assert f"The form is about {about}, and {present}" in seen
    assert spec_of(api, namespace) == before


async def test_who_may_only_view_gets_no_buttons_and_is_refused_by_the_api_server(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    client = await sign_in(viewer)
    page = await text_of(client, f"/deployments/{namespace}/chat")
    assert "Your token may not patch modeldeployments.slipway.dev" in page and "/promote" not in page
    code, seen = await act(client, namespace, "promote")
    assert code == 403
    assert f"Your token may not patch modeldeployments.slipway.dev in the namespace {namespace}." in seen
    assert "a Role with the verb patch" in seen and "cannot patch resource" in seen
    assert "rollout" not in spec_of(api, namespace)


async def test_actions_while_the_operator_writes_the_status(
    api: Api, namespace: str, editor: str, sign_in: SignIn
) -> None:
    """Each write changes the version on which an action was decided: it is decided again, about the same step."""
    create_deployment(api, namespace)
    client = await sign_in(editor)
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await asyncio.to_thread(set_status, api, namespace, "chat", {"message": f"reading {number}"})
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    codes = [(await act(client, namespace, action))[0] for action in ("pause", "resume") * 5]
    stop.set()
    await writing
    assert codes == [303] * 10
    assert not spec_of(api, namespace)["paused"]


async def test_an_action_is_logged_with_its_user(
    api: Api, console: Console, namespace: str, editor: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    assert (await act(await sign_in(editor), namespace, "abort"))[0] == 303
    [line] = [one for one in console.log.read_text().splitlines() if f'"{namespace}/chat"' in one]
    assert f'"system:serviceaccount:{namespace}:editor"' in line and '"abort"' in line
