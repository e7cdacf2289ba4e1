"""Notifications in the form that a chat or paging service takes (pure); Slipway's own JSON is in hook_calls.py.

Slack: a message with blocks. Teams: a message with an Adaptive Card, for a webhook of Workflows. PagerDuty: an event of
the Events API v2, which opens an incident for a rejection or a Warning, and closes it with the next promotion.
"""

import re
from collections.abc import Mapping
from typing import Any

from slipway_operator.api.v1alpha1.hooks import HookFormat

Json = dict[str, Any]
SECRET = "$(secret)"  # in the URL of a hook
_IN_URL = re.compile(r"[A-Za-z0-9/_.~%=&+-]{1,1024}")
_MOST_TITLE, _MOST_TEXT, _MOST_SUMMARY = 150, 2900, 1024
_CLOSING = "RolloutCompleted"  # the Event of a promotion


def url_with(url: str, secret: str) -> str:
    """The URL with the secret in its place; ValueError where it holds what a path or query must not."""
    if not _IN_URL.fullmatch(secret):
        raise ValueError("the Secret holds no part of a URL: letters, digits and /_.~%=&+- are allowed")
    return url.replace(SECRET, secret)


def notice(form: HookFormat, payload: Mapping[str, Any], secret: str, moment: str) -> Json | None:
    """The body for a service; None where this notification is none for it: PagerDuty gets no news that asks nothing.

    `payload`: of Slipway's own call. `moment`: the time in ISO 8601.
    """
    match form:
        case HookFormat.SLACK:
            return _slack(payload)
        case HookFormat.TEAMS:
            return _teams(payload)
        case HookFormat.PAGERDUTY:
            return _pagerduty(payload, secret, moment)


def _slack(payload: Mapping[str, Any]) -> Json:
    title, text = _title(payload), _escaped(_text(payload))[:_MOST_TEXT]
    facts = "\n".join(f"*{_escaped(name)}* {_escaped(value)}" for name, value in _facts(payload))[:_MOST_TEXT]
    header = {"type": "header", "text": {"type": "plain_text", "text": title[:_MOST_TITLE]}}
    parts = [{"type": "section", "text": {"type": "mrkdwn", "text": part}} for part in (text, facts) if part]
    return {"text": _escaped(title), "blocks": [header, *parts]}


def _teams(payload: Mapping[str, Any]) -> Json:
    # Of text elements only a RichTextBlock shows text of others as it is: a TextBlock would make links of it.
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {
                "type": "TextBlock",
                "text": _title(payload),
                "weight": "Bolder",
                "size": "Medium",
                "wrap": True,
                "color": "Attention" if _is_bad(payload) else "Default",
            },
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": _text(payload)[:_MOST_TEXT]}]},
            {"type": "FactSet", "facts": [{"title": name, "value": value} for name, value in _facts(payload)]},
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _pagerduty(payload: Mapping[str, Any], secret: str, moment: str) -> Json | None:
    subject = f"{payload['namespace']}/{payload['name']}"
    about = {"routing_key": secret, "dedup_key": f"slipway/{subject}"}
    if not _is_bad(payload):
        reason = _event(payload, "eventReason")
        return {**about, "event_action": "resolve"} if reason in ("", _CLOSING) else None
    return {
        **about,
        "event_action": "trigger",
        "payload": {
            "summary": f"{_title(payload)}: {_text(payload)}"[:_MOST_SUMMARY],
            "source": subject,
            "severity": "error" if payload["type"] == "post-rollout" else "warning",
            "timestamp": moment,
            "component": str(payload["name"]),
            "group": str(payload["namespace"]),
            "class": _event(payload, "eventReason") or "RolloutAborted",
            "custom_details": dict(_facts(payload)),
        },
        "client": "Slipway",
    }


def _title(payload: Mapping[str, Any]) -> str:
    subject = f"{payload['namespace']}/{payload['name']}"
    if reason := _event(payload, "eventReason"):
        return f"{subject}: {reason}"
    ended = "rejected" if _is_bad(payload) else "promoted"
    return f"{subject}: revision {payload['revision']} {ended}"


def _text(payload: Mapping[str, Any]) -> str:
    return _event(payload, "eventMessage") or str(payload.get("reason") or "-")


def _facts(payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader wants to know beside the text; metadata of the hook last."""
    known = [(name.capitalize(), payload.get(name)) for name in ("phase", "stable", "canary", "weight", "attempt")]
    events = ("eventMessage", "eventType", "eventReason", "timestamp")
    others = [(name, value) for name, value in _metadata(payload).items() if name not in events]
    return [(name, str(value)) for name, value in (*known, *others) if value is not None]


def _is_bad(payload: Mapping[str, Any]) -> bool:
    if payload["type"] == "post-rollout":
        return bool(payload["phase"] == "Failed")
    return _event(payload, "eventType") == "Warning"


def _event(payload: Mapping[str, Any], name: str) -> str:
    """A field of the Event that a call is about; a hook's own metadata cannot take its place."""
    return str(_metadata(payload).get(name, "")) if payload["type"] == "event" else ""


def _metadata(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    return payload.get("metadata") or {}


def _escaped(text: str) -> str:
    """Text of others has no markup in Slack: no mention of a channel, no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
