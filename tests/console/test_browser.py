"""The console in Chromium, by keyboard, at a real API server: list, live rollout, actions, refusals, hostile texts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from testkit.cluster.api import Api
from tests.console import chromium
from tests.console.world import (
    CANARY,
    RUN,
    STABLE,
    Console,
    analysis_reference,
    condition,
    create_deployment,
    create_run,
    in_flight,
    path,
    set_status,
)

pytestmark = pytest.mark.integration

PHONE = {"width": 375, "height": 740}
DESK = {"width": 1280, "height": 900}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium.browser() as made:
        yield made


async def opened(browser: Browser, console: Console, token: str, **options: Any) -> tuple[BrowserContext, Page]:
    """A page of a viewer who has signed in, by keyboard. Whatever a page logs, the test can read."""
    context = await browser.new_context(base_url=console.url, **{"viewport": DESK, **options})
    page = await context.new_page()
    await page.goto("/")
    await page.get_by_label("Token").focus()
    await page.keyboard.insert_text(token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return context, page


def with_evidence(api: Api, namespace: str) -> dict[str, Any]:
    run = create_run(api, namespace)
    return create_deployment(
        api, namespace, status=in_flight(rollout=in_flight()["rollout"] | {"analysis": analysis_reference(run)})
    )


def spec_of(api: Api, namespace: str) -> dict[str, Any]:
    return dict(api.get(path(namespace, name="chat")).body["spec"])


async def test_a_viewer_signs_in_lists_looks_and_promotes_by_keyboard(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser
) -> None:
    with_evidence(api, namespace)
    context, page = await opened(browser, console, editor)
    assert await page.evaluate("document.cookie") == ""
    [cookie] = await context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", True)
    await expect(page.get_by_role("alert")).to_contain_text(
        "may not list modeldeployments.slipway.dev in all namespaces"
    )
    await page.get_by_label("Namespace").fill(namespace)
    await page.keyboard.press("Enter")
    link = page.get_by_role("link", name="chat", exact=True)
    await link.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("chat")
    await expect(page.get_by_role("img", name="live-bad: at most 6.31")).to_be_visible()
    await page.get_by_role("button", name="Promote", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").first).to_contain_text(f"Requested: revision {CANARY} (v2) goes on")
    assert spec_of(api, namespace)["rollout"] == {"promote": f"{CANARY}/1/1"}


async def test_a_rollout_is_live_and_takes_neither_focus_nor_what_is_open(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser
) -> None:
    with_evidence(api, namespace)
    _, page = await opened(browser, console, editor)
    await page.goto(f"/deployments/{namespace}/chat")
    await expect(page.locator("#live")).to_have_text("Live.")
    await page.locator("#confirm-abort summary").focus()
    await page.keyboard.press("Enter")
    await page.locator("#do-abort").focus()
    set_status(api, namespace, "chat", in_flight(2, "Shifting", "gateways apply weight 50", weight=50))
    await expect(page.locator("#state")).to_contain_text("gateways apply weight 50")
    await expect(page.locator("#state li[aria-current=step]")).to_contain_text("setWeight 50")
    await expect(page.locator("#actions code")).to_have_text(f"{CANARY}/1/2")
    await expect(page.locator("#confirm-abort")).to_have_attribute("open", "")
    await expect(page.locator("#do-abort")).to_be_focused()


async def test_abort_takes_a_second_look(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser
) -> None:
    create_deployment(api, namespace)
    _, page = await opened(browser, console, editor)
    await page.goto(f"/deployments/{namespace}/chat")
    await expect(page.locator("#do-abort")).not_to_be_visible()
    await page.locator("#confirm-abort summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#confirm-abort")).to_contain_text(f"stable {STABLE} takes its traffic")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").first).to_contain_text("Requested: ")
    assert spec_of(api, namespace)["rollout"] == {"abort": f"{CANARY}/1"}


async def test_who_may_not_patch_sees_why_and_a_page_without_scripts_is_refused_when_late(
    api: Api, console: Console, namespace: str, viewer: str, editor: str, browser: Browser
) -> None:
    create_deployment(api, namespace)
    _, page = await opened(browser, console, viewer)
    await page.goto(f"/deployments/{namespace}/chat")
    await expect(page.locator("#actions")).to_contain_text("Your token may not patch modeldeployments.slipway.dev")
    await expect(page.locator("#actions button")).to_have_count(0)
    _, late = await opened(browser, console, editor, java_script_enabled=False)
    await late.goto(f"/deployments/{namespace}/chat")
    set_status(api, namespace, "chat", in_flight(3))
    await late.locator("#do-promote").click()
    await expect(late.get_by_role("alert")).to_contain_text("the rollout is now at step 4")
    assert "rollout" not in spec_of(api, namespace)


HOSTILE = """"><img src=x onerror="window.hit=1"><script>window.hit=1</script>'-alert(1)-'</title></svg>{{7*7}}"""


def hostile_status(run: dict[str, Any], extra: str = "") -> dict[str, Any]:
    """HOSTILE in each text of a status that the API server takes."""
    text = HOSTILE + extra
    found = in_flight(message=text)
    revisions = [one | {"version": text, "role": text} for one in found["revisions"]]
    return found | {
        "reason": text[:64],
        "model": text,
        "endpoint": text,
        "ready": text,
        "step": text,
        "revisions": revisions,
        "rollout": found["rollout"]
        | {"analysis": analysis_reference(run) | {"template": text}, "withoutBaseline": text},
        "conditions": [condition("Accepted", "False", text, text)],
        "decisions": [f"2026-01-01T11:55:00Z row: {text}", text],
        "lease": text,
    }


def hostile_run(api: Api, namespace: str) -> dict[str, Any]:
    verdict = {
        "outcome": "Fail",
        "reason": HOSTILE,
        "message": HOSTILE,
        "since": "2026-01-01T11:57:00Z",
        "evidence": HOSTILE,
        "threshold": HOSTILE,
        "metrics": [
            {
                "name": HOSTILE,
                "finding": HOSTILE,
                "canarySamples": 1,
                "stableSamples": 1,
                "canaryBad": 1,
                "stableBad": 1,
            }
            | dict.fromkeys(("evidence", "threshold", "canaryRate", "stableRate"), HOSTILE)
        ],
    }
    points = [{"seconds": 1, "low": 0, "high": 5, "samples": 1}]
    series = [{"metric": HOSTILE, "unit": HOSTILE, "limit": 10, "points": points}]
    decisions = [{"at": "2026-01-01T11:57:10Z", "outcome": HOSTILE, "reason": HOSTILE, "message": HOSTILE}]
    return create_run(api, namespace, template=HOSTILE, id=HOSTILE, verdict=verdict, series=series, decisions=decisions)


async def test_no_text_of_an_object_becomes_a_script(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser
) -> None:
    run = hostile_run(api, namespace)
    route = {"setHeaderRoute": {"name": "a", "match": [{"headerName": "X-A", "headerValue": {"exact": HOSTILE}}]}}
    steps = [{"setWeight": 10}, {"pause": {}}, route, {"pause": {}}]
    model = {"uri": "hf://org/m", "version": "2"}
    made = create_deployment(
        api, namespace, status=hostile_status(run), model=model, strategy={"canary": {"steps": steps}}
    )
    event = {
        "metadata": {"generateName": "chat-"},
        "involvedObject": {"uid": made["metadata"]["uid"], "namespace": namespace},
        "reason": HOSTILE,
        "message": HOSTILE,
        "type": "Warning",
        "lastTimestamp": "2026-01-01T11:58:00Z",
    }
    assert api.post(f"/api/v1/namespaces/{namespace}/events", event).ok
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert api.merge(path(namespace, name="chat"), labelled, fieldManager=HOSTILE[:128]).ok

    _, page = await opened(browser, console, editor)
    problems: list[str] = []
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    await page.goto(f"/deployments?namespace={namespace}")
    await _is_harmless(page, 1)
    await page.goto(f"/deployments/{namespace}/chat/analyses/{RUN}")
    await _is_harmless(page, 10)
    await page.goto(f"/deployments/{namespace}/chat")
    await _is_harmless(page, 20)
    # The same by the stream, whose parts a script puts into the page.
    await expect(page.locator("#live")).to_have_text("Live.")
    set_status(api, namespace, "chat", hostile_status(run, " by the stream"))
    await expect(page.locator("#state")).to_contain_text("by the stream")
    await _is_harmless(page, 20)
    assert problems == []
    await page.goto(f"/deployments?namespace={HOSTILE}")
    await expect(page.get_by_role("alert")).to_contain_text("A namespace has small letters")
    await _is_harmless(page, 0)


async def _is_harmless(page: Page, times: int) -> None:
    """The text is there as text, so often at least, and made no element."""
    assert await page.evaluate("window.hit") is None
    assert await page.locator("img, script:not([src]), [onerror], [onload], [style]").count() == 0
    text = await page.locator("main").evaluate("main => main.textContent")
    assert text.count("<script>window.hit=1</script>") >= times


@pytest.mark.attack_class(2)
async def test_a_page_of_another_site_can_neither_frame_it_nor_send_its_forms(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser
) -> None:
    create_deployment(api, namespace)
    context, _ = await opened(browser, console, editor)
    action = f"{console.url}/deployments/{namespace}/chat/abort"
    body = f"<iframe src='{console.url}/'></iframe><form method=post action='{action}'><button>go</button></form>"
    other = await context.new_page()
    await other.route("http://127.0.0.1:9/", lambda route: route.fulfill(body=body, content_type="text/html"))
    await other.goto("http://127.0.0.1:9/")
    await other.get_by_role("button", name="go").click()
    await expect(other.get_by_role("alert")).to_contain_text("not sent from a page of this console")
    assert "rollout" not in spec_of(api, namespace)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    api: Api, console: Console, namespace: str, editor: str, browser: Browser, tmp_path: Path, scheme: str, size: str
) -> None:
    with_evidence(api, namespace)
    folder = chromium.pictures(tmp_path)
    viewport = PHONE if size == "phone" else DESK
    _, page = await opened(browser, console, editor, viewport=viewport, color_scheme=scheme)
    where = {
        "list": f"/deployments?namespace={namespace}",
        "deployment": f"/deployments/{namespace}/chat",
        "evidence": f"/deployments/{namespace}/chat/analyses/{RUN}",
        "refused": "/tenants",
        "sign-in": "/sign-in",
    }
    for name, address in where.items():
        if name == "sign-in":
            await page.get_by_role("button", name="Sign out").click()
        else:
            await page.goto(address)
        assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name
        await page.evaluate(chromium.axe())
        found = await page.evaluate("axe.run()")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, f"{name}: {json.dumps(serious, indent=1)[:3000]}"
        await page.screenshot(path=folder / f"{name}-{size}-{scheme}.png", full_page=True)
