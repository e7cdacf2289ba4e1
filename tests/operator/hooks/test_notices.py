"""Bodies of notifications for chat and paging services, against what these services document of their webhooks."""

import json
from datetime import UTC, datetime
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.api.v1alpha1.hooks import HookFormat
from slipway_operator.hooks.notices import notice, url_with
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.spec import Spec, parse
from slipway_operator.planning.rollout.hook_calls import notices
from tests.operator.planning.test_rollout import attempt, canary_at_first_pause
from tests.support.model_cluster import ModelCluster, hook, model

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MOMENT = "2026-11-21T12:00:00Z"
KEY = "0123456789abcdef0123456789abcdef"
TEXT = {"type": "object", "required": ["type", "text"], "additionalProperties": False}
# Slack: incoming webhooks take `text` and at most 50 blocks; a header has plain text of at most 150 characters, the
# text of a section has 1 to 3000.
SLACK = {
    "type": "object",
    "required": ["text", "blocks"],
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 40000},
        "blocks": {
            "type": "array",
            "minItems": 1,
            "maxItems": 50,
            "items": {
                "oneOf": [
                    {
                        "required": ["type", "text"],
                        "additionalProperties": False,
                        "properties": {
                            "type": {"const": "header"},
                            "text": {
                                **TEXT,
                                "properties": {
                                    "type": {"const": "plain_text"},
                                    "text": {"type": "string", "minLength": 1, "maxLength": 150},
                                },
                            },
                        },
                    },
                    {
                        "required": ["type", "text"],
                        "additionalProperties": False,
                        "properties": {
                            "type": {"const": "section"},
                            "text": {
                                **TEXT,
                                "properties": {
                                    "type": {"const": "mrkdwn"},
                                    "text": {"type": "string", "minLength": 1, "maxLength": 3000},
                                },
                            },
                        },
                    },
                ]
            },
        },
    },
}
# Teams: a webhook of Workflows takes a message with Adaptive Cards, whose elements have a type and their own fields.
TEAMS = {
    "type": "object",
    "required": ["type", "attachments"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "message"},
        "attachments": {
            "type": "array",
            "minItems": 1,
            "items": {
                "required": ["contentType", "content"],
                "properties": {
                    "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                    "contentUrl": {"type": "null"},
                    "content": {
                        "required": ["type", "version", "body"],
                        "properties": {
                            "type": {"const": "AdaptiveCard"},
                            "version": {"enum": ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]},
                            "body": {
                                "type": "array",
                                "items": {
                                    "oneOf": [
                                        {
                                            "required": ["type", "text"],
                                            "properties": {
                                                "type": {"const": "TextBlock"},
                                                "text": {"type": "string", "minLength": 1},
                                                "wrap": {"type": "boolean"},
                                                "weight": {"enum": ["Lighter", "Default", "Bolder"]},
                                                "size": {"enum": ["Small", "Default", "Medium", "Large", "ExtraLarge"]},
                                                "color": {
                                                    "enum": [
                                                        "Default",
                                                        "Dark",
                                                        "Light",
                                                        "Accent",
                                                        "Good",
                                                        "Warning",
                                                        "Attention",
                                                    ]
                                                },
                                            },
                                            "additionalProperties": False,
                                        },
                                        {
                                            "required": ["type", "inlines"],
                                            "properties": {
                                                "type": {"const": "RichTextBlock"},
                                                "inlines": {
                                                    "type": "array",
                                                    "items": {
                                                        "required": ["type", "text"],
                                                        "additionalProperties": False,
                                                        "properties": {
                                                            "type": {"const": "TextRun"},
                                                            "text": {"type": "string", "minLength": 1},
                                                        },
                                                    },
                                                },
                                            },
                                            "additionalProperties": False,
                                        },
                                        {
                                            "required": ["type", "facts"],
                                            "properties": {
                                                "type": {"const": "FactSet"},
                                                "facts": {
                                                    "type": "array",
                                                    "items": {
                                                        "required": ["title", "value"],
                                                        "additionalProperties": False,
                                                        "properties": {
                                                            "title": {"type": "string"},
                                                            "value": {"type": "string"},
                                                        },
                                                    },
                                                },
                                            },
                                            "additionalProperties": False,
                                        },
                                    ]
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
# PagerDuty: the Events API v2 takes a routing key of 32 characters, a key of at most 255, a summary of at most 1024.
PAGERDUTY = {
    "type": "object",
    "required": ["routing_key", "event_action"],
    "additionalProperties": False,
    "properties": {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": {"type": "string", "minLength": 1, "maxLength": 255},
        "client": {"type": "string"},
        "payload": {
            "type": "object",
            "required": ["summary", "source", "severity"],
            "additionalProperties": False,
            "properties": {
                "summary": {"type": "string", "minLength": 1, "maxLength": 1024},
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "error", "warning", "info"]},
                "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
                "component": {"type": "string"},
                "group": {"type": "string"},
                "class": {"type": "string"},
                "custom_details": {"type": "object"},
            },
        },
    },
    "if": {"properties": {"event_action": {"const": "trigger"}}},
    "then": {"required": ["payload"]},
    "else": {"required": ["dedup_key"]},
}
SCHEMAS = {HookFormat.SLACK: SLACK, HookFormat.TEAMS: TEAMS, HookFormat.PAGERDUTY: PAGERDUTY}


def valid(form: HookFormat, payload: dict[str, Any]) -> dict[str, Any] | None:
    body = notice(form, payload, KEY, MOMENT)
    if body is not None:
        body = json.loads(json.dumps(body))
        jsonschema.validate(body, SCHEMAS[form])
    return body


def end_of(world: ModelCluster) -> dict[str, Any]:
    """The payload of the post-rollout hook at the end of the rollout that is in flight."""
    for _ in range(200):
        world.run(1)
        if found := [call for call in world.hook_calls if call.hook.name == "end"]:
            return {**found[-1].payload, "idempotencyKey": "k", "timestamp": MOMENT}
    raise AssertionError("no end")


def rollout() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(strategy__hooks=[hook("post-rollout", "end", metadata={"team": "search"})])
    return world


def rejected() -> dict[str, Any]:
    world = rollout()
    world.edit(rollout__abort=attempt(world))
    return end_of(world)


def promoted() -> dict[str, Any]:
    world = rollout()
    world.edit(rollout__promoteFull=attempt(world))
    return end_of(world)


def event(kind: str, reason: str, message: str = "why", **metadata: str) -> dict[str, Any]:
    world = canary_at_first_pause()
    world.edit(strategy__hooks=[hook("event", metadata=metadata)])
    spec = parse(world.obj())
    assert isinstance(spec, Spec)
    [call] = notices(world.obj(), spec.hooks, world.parsed(), [Event(kind, reason, message)], NOW)
    return {**call.payload, "idempotencyKey": call.key, "timestamp": MOMENT}


@pytest.mark.parametrize("form", HookFormat)
def test_each_service_gets_what_it_documents(form: HookFormat) -> None:
    bodies = [valid(form, payload) for payload in (rejected(), promoted(), event("Warning", "RolloutAborted"))]
    assert None not in bodies
    shown = json.dumps(bodies[0])
    assert "default/chat" in shown and "rejected" in shown.lower()


def test_pagerduty_opens_with_a_rejection_and_closes_with_a_promotion() -> None:
    opened, closed = valid(HookFormat.PAGERDUTY, rejected()), valid(HookFormat.PAGERDUTY, promoted())
    assert opened and closed and opened["dedup_key"] == closed["dedup_key"] == "slipway/default/chat"
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["payload"]["severity"] == "error" and opened["payload"]["custom_details"]["team"] == "search"
    warning = valid(HookFormat.PAGERDUTY, event("Warning", "CapacityUnavailable"))
    assert warning and (warning["event_action"], warning["payload"]["severity"]) == ("trigger", "warning")
    ended = valid(HookFormat.PAGERDUTY, event("Normal", "RolloutCompleted"))
    assert ended and ended["event_action"] == "resolve"
    assert valid(HookFormat.PAGERDUTY, event("Normal", "RolloutStepCompleted")) is None


def test_metadata_of_a_hook_is_no_event() -> None:
    payload = rejected()
    payload["metadata"] = {"eventReason": "RolloutCompleted", "eventMessage": "all is well", "eventType": "Normal"}
    shown = json.dumps(valid(HookFormat.SLACK, payload))
    assert "all is well" not in shown and "rejected" in shown
    assert valid(HookFormat.PAGERDUTY, payload)["event_action"] == "trigger"  # type: ignore[index]


def test_text_of_others_is_no_mention_in_slack() -> None:
    body = valid(
        HookFormat.SLACK, event("Warning", "PodsFailing", "<!channel> & <https://x|y>", **{"<!here>": "<!here>"})
    )
    shown = json.dumps(body)
    assert "<!" not in shown and "<http" not in shown and "&lt;!channel&gt; &amp;" in shown


def test_text_of_others_is_no_link_in_teams() -> None:
    """Elements with Markdown, all but a TextRun, do not get the message of an Event, which a workload may write."""
    body = valid(HookFormat.TEAMS, event("Warning", "PodsFailing", "[log in](https://x.example) **now**"))
    assert body
    shown = body["attachments"][0]["content"]["body"]
    holders = [element["type"] for element in shown if "https://x.example" in json.dumps(element)]
    assert holders == ["RichTextBlock"]


@given(
    form=st.sampled_from(HookFormat),
    kind=st.sampled_from(["Warning", "Normal"]),
    message=st.text(max_size=9000),
    value=st.text(max_size=1024),
)
def test_any_text_is_within_the_bounds_of_each_service(form: HookFormat, kind: str, message: str, value: str) -> None:
    payload = {**EVENT, "metadata": {**EVENT["metadata"], "eventType": kind, "eventMessage": message, "x": value}}
    valid(form, payload)


EVENT = event("Warning", "PodsFailing")


@pytest.mark.parametrize("secret", ["T0/B0/x-_.~%20", "a=b&c"])
def test_a_secret_takes_its_place_in_the_path(secret: str) -> None:
    assert (
        url_with("https://hooks.example.com/services/$(secret)", secret)
        == f"https://hooks.example.com/services/{secret}"
    )


@pytest.mark.parametrize("secret", ["", "a b", "a\nb", "@evil.example.com", "a#b", "ä", "x" * 1025])
def test_a_secret_that_is_no_part_of_a_url_is_refused_without_its_value(secret: str) -> None:
    with pytest.raises(ValueError, match="no part of a URL") as refused:
        url_with("https://hooks.example.com/$(secret)", secret)
    assert not secret or secret not in str(refused.value)


def test_the_first_rollout_has_no_end_to_report() -> None:
    world = ModelCluster({"model": model("v1"), "strategy": {"hooks": [hook("post-rollout", "end", format="Slack")]}})
    world.run_until(None)
    assert not world.hook_calls
