"""Reads what MLflow's REST API answers about registered models; pure. Every text of it may be a stranger's.

https://mlflow.org/docs/latest/rest-api.html
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slipway_operator.api.v1alpha1.registry_status import (
    LONGEST_DESCRIPTION,
    LONGEST_LINE,
    MOST_ALIASES,
    MOST_METRICS,
    MOST_TAGS,
)
from slipway_operator.model.inputs import registry
from slipway_operator.model.inputs.registry import RegistryFacts
from slipway_operator.model.text import printable

OWN_TAGS = "slipway."  # beginning of the names of tags that Slipway writes
MOST_READ = 10_000  # aliases, tags or metrics of one answer
LONGEST_CODE = 64  # characters of an error code


class UnreadableAnswer(Exception):
    """An answer is not what the API describes; the message is for users and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A registered model: `created` and `updated` are the registry's own times, which change with it."""

    aliases: dict[str, str]  # version by alias
    latest: str
    description: str
    created: str


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a registered model."""

    version: str
    source: str
    run: str
    ready: bool
    owner: str
    description: str
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """The run that made a version."""

    owner: str
    artifacts: str
    metrics: tuple[str, ...]
    dataset: str


NO_RUN = Run("", "", (), "")


def error_code(body: bytes) -> str:
    """The error code of an answer that is no 2xx; empty where it has none."""
    try:
        code = json.loads(body)["error_code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    is_code = isinstance(code, str) and len(code) <= LONGEST_CODE and code.isascii()
    return code if is_code and code.replace("_", "").isalpha() else ""


def registered_model(body: bytes) -> RegisteredModel:
    """Read the answer of registered-models/get.

    Raises:
        UnreadableAnswer: it is no such answer.
    """
    model = _part(body, "registered_model")
    aliases = {
        str(item["alias"]): str(item["version"])
        for item in _items(model.get("aliases"), "alias", "version")
        if registry.is_version(str(item["version"]))
    }
    numbers = [str(item["version"]) for item in _items(model.get("latest_versions"), "version")]
    known = [number for number in (*numbers, *aliases.values()) if registry.is_version(number)]
    latest = max(known, key=int, default="")
    return RegisteredModel(aliases, latest, _text(model, "description"), _text(model, "creation_timestamp"))


def model_version(body: bytes) -> ModelVersion:
    """Read the answer of model-versions/get.

    Raises:
        UnreadableAnswer: it is no such answer.
    """
    found = _part(body, "model_version")
    version = _text(found, "version")
    if not registry.is_version(version):
        raise UnreadableAnswer("it names a version that is no number")
    run = _text(found, "run_id")
    return ModelVersion(
        version=version,
        source=_text(found, "source"),
        run=run if registry.is_run(run) else "",
        ready=found.get("status", "READY") == "READY",
        owner=_text(found, "user_id"),
        description=_text(found, "description"),
        tags={str(item["key"]): str(item["value"]) for item in _items(found.get("tags"), "key", "value")},
    )


def artifact_uri(body: bytes) -> str:
    """Read the answer of model-versions/get-download-uri.

    Raises:
        UnreadableAnswer: it is no such answer.
    """
    return _text(_object(body), "artifact_uri")


def run(body: bytes) -> Run:
    """Read the answer of runs/get.

    Raises:
        UnreadableAnswer: it is no such answer.
    """
    found = _part(body, "run")
    info, data, inputs = (_mapping(found.get(name)) for name in ("info", "data", "inputs"))
    metrics = [
        f"{item['key']}={value:g}"
        for item in _items(data.get("metrics"), "key", "value")
        if (value := _number(item["value"])) is not None
    ]
    tags = {str(item["key"]): str(item["value"]) for item in _items(data.get("tags"), "key", "value")}
    sets = [_mapping(item.get("dataset")) for item in _items(inputs.get("dataset_inputs"), "dataset")]
    dataset = f"{_text(sets[0], 'name')} {_text(sets[0], 'digest')}".strip() if sets else ""
    owner = _text(info, "user_id") or tags.get("mlflow.user", "")
    return Run(owner, _text(info, "artifact_uri"), tuple(sorted(metrics)), dataset)


def facts_of(model: RegisteredModel, version: ModelVersion, made_by: Run) -> RegistryFacts:
    """What the status shows of a version: bounded, printable, and without the tags that Slipway wrote."""
    tags = sorted(f"{name}={value}" for name, value in version.tags.items() if not name.startswith(OWN_TAGS))
    return RegistryFacts(
        owner=line(version.owner or made_by.owner),
        description=line(version.description or model.description, LONGEST_DESCRIPTION),
        tags=_lines(tags, MOST_TAGS),
        run=version.run,
        metrics=_lines(made_by.metrics, MOST_METRICS),
        dataset=line(made_by.dataset),
        aliases=alias_lines(model),
        latest=model.latest,
    )


def alias_lines(model: RegisteredModel) -> tuple[str, ...]:
    """The aliases as the status has them: ALIAS=VERSION."""
    return _lines(sorted(f"{alias}={number}" for alias, number in model.aliases.items()), MOST_ALIASES)


def line(text: str, most: int = LONGEST_LINE) -> str:
    """A text on one line of at most so many characters."""
    plain = " ".join(printable(text[: 4 * most]).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _lines(texts: Iterable[str], most: int) -> tuple[str, ...]:
    return tuple(line(text) for text in list(texts)[:most])


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswer("it is no JSON") from error
    if not isinstance(found, dict):
        raise UnreadableAnswer("it is no object")
    return found


def _part(body: bytes, name: str) -> dict[str, Any]:
    found = _object(body).get(name)
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"it has no {name}")
    return found


def _items(value: object, *names: str) -> list[dict[str, Any]]:
    """The objects of a list that have these fields."""
    if not isinstance(value, list):
        return []
    return [item for item in value[:MOST_READ] if isinstance(item, dict) and all(name in item for name in names)]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """A finite number; None for others. An integer of JSON may have more digits than a float has room for."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return str(value) if isinstance(value, str | int) else ""
