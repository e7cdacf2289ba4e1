"""Calls of an MLflow tracking server: bounded in size and time, and to no host but the administrator's."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from yarl import URL

from slipway_operator.model.inputs.registry import RegistryReference, RegistrySource, RegistryVersion, source_of
from slipway_operator.outbound.dialer import Dialer, NoAnswer, OutboundRequest
from slipway_operator.planning.facts import registry
from slipway_operator.registry import answers
from slipway_operator.registry.answers import NO_RUN, ModelVersion, RegisteredModel, Run, UnreadableAnswer

Answer = TypeVar("Answer")

API = "/api/2.0/mlflow/"
TIMEOUT_S = 10.0
KEEP_BYTES = 4 << 20
LONGEST_TAG = 5000  # bytes of a value: each storage backend of MLflow has room for that
_NOT_FOUND = frozenset({"RESOURCE_DOES_NOT_EXIST", "RESOURCE_NOT_FOUND"})


class RegistryError(Exception):
    """A call failed. `reason`: of the condition RegistryResolved. The message is for users."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves a namespace to the tracking server; empty: nothing does."""

    token: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def given(self) -> bool:
        return bool(self.token or (self.user and self.password))

    def headers(self) -> dict[str, str]:
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if not self.given:
            return {}
        return {"Authorization": f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"}


class MlflowClient:
    """One tracking server. Nothing is kept between calls."""

    def __init__(self, dialer: Dialer, url: str) -> None:
        self._dialer, self._url = dialer, url.rstrip("/")
        parsed = URL(self._url)
        self._host = f"{parsed.host}:{parsed.port}" if parsed.explicit_port else str(parsed.host)

    async def model(self, name: str, credentials: Credentials) -> RegisteredModel:
        """A registered model with its aliases. Raises RegistryError."""
        body = await self._get("registered-models/get", {"name": name}, credentials, f"registered model {name!r}")
        return _read(answers.registered_model, body)

    async def tags(self, source: RegistrySource, credentials: Credentials) -> dict[str, str]:
        """The tags of a version. Raises RegistryError."""
        return (await self._version(source.name, source.version, credentials)).tags

    async def version(
        self, reference: RegistryReference, model: RegisteredModel, number: str, credentials: Credentials
    ) -> RegistryVersion:
        """A version with the location of its files and what is known of the run that made it.

        Raises:
            RegistryError: it is not there, not ready, or its files are where pods cannot fetch them.
        """
        found = await self._version(reference.name, number, credentials)
        if not found.ready:
            raise RegistryError(registry.NOT_RESOLVED, f"version {number} is not ready in the registry")
        query = {"name": reference.name, "version": number}
        body = await self._get("model-versions/get-download-uri", query, credentials, f"version {number}")
        artifacts = _read(answers.artifact_uri, body) or found.source
        made_by = await self._run(found, credentials)
        if artifacts.startswith("runs:/"):
            artifacts = _below_run(artifacts, found.run, made_by)
        try:
            source = source_of(artifacts, self._host)
        except ValueError as error:
            raise RegistryError(registry.NOT_SUPPORTED, f"version {number}: {error}") from error
        return RegistryVersion(reference.uri, number, source, answers.facts_of(model, found, made_by))

    async def set_tags(self, source: RegistrySource, tags: Mapping[str, str], credentials: Credentials) -> None:
        """Set tags of a version, one call each. Raises RegistryError."""
        for key, value in tags.items():
            content = {"name": source.name, "version": source.version, "key": key, "value": value}
            request = OutboundRequest(
                "POST",
                f"{self._url}{API}model-versions/set-tag",
                headers={**credentials.headers(), "Content-Type": "application/json"},
                body=json.dumps(content).encode(),
                timeout_s=TIMEOUT_S,
                keep_bytes=KEEP_BYTES,
            )
            await self._send(request, f"tags of version {source.version}")

    async def _version(self, name: str, number: str, credentials: Credentials) -> ModelVersion:
        query = {"name": name, "version": number}
        body = await self._get("model-versions/get", query, credentials, f"version {number} of {name!r}")
        found = _read(answers.model_version, body)
        if found.version != number:
            raise RegistryError(registry.UNAVAILABLE, f"the tracking server answers with another version than {number}")
        return found

    async def _run(self, version: ModelVersion, credentials: Credentials) -> Run:
        """The run that made a version: facts for the status alone, so a run that cannot be read is none."""
        if not version.run:
            return NO_RUN
        try:
            body = await self._get("runs/get", {"run_id": version.run}, credentials, "the run")
            return _read(answers.run, body)
        except RegistryError as error:
            if error.reason == registry.UNAVAILABLE:
                raise
            return NO_RUN

    async def _get(self, path: str, query: Mapping[str, str], credentials: Credentials, what: str) -> bytes:
        url, headers = f"{self._url}{API}{path}", credentials.headers()
        return await self._send(OutboundRequest("GET", url, query, headers, b"", TIMEOUT_S, KEEP_BYTES), what)

    async def _send(self, request: OutboundRequest, what: str) -> bytes:
        try:
            response = await self._dialer.send(request)
        except NoAnswer as error:
            raise RegistryError(registry.UNAVAILABLE, f"the tracking server: {error}") from error
        if response.cut:
            raise RegistryError(registry.UNAVAILABLE, f"{what}: the answer is longer than {KEEP_BYTES} bytes")
        if 200 <= response.status < 300:
            return response.body
        code = answers.error_code(response.body)
        shown = f"{response.phrase}{f', {code}' if code else ''}"
        if response.status in (401, 403) or code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            raise RegistryError(registry.DENIED, f"{what}: the tracking server refuses it ({shown})")
        if code in _NOT_FOUND:
            raise RegistryError(registry.NOT_FOUND, f"{what} is not in the registry ({shown})")
        raise RegistryError(registry.UNAVAILABLE, f"{what}: the tracking server answered {shown}")


def _read(read: Callable[[bytes], Answer], body: bytes) -> Answer:
    try:
        return read(body)
    except UnreadableAnswer as error:
        raise RegistryError(
            registry.UNAVAILABLE, f"an answer of the tracking server cannot be read: {error}"
        ) from error


def _below_run(artifacts: str, run: str, made_by: Run) -> str:
    """The location that a runs:/ID/path has: below the artifacts of the run, which must be the version's own."""
    named, _, path = artifacts.removeprefix("runs:/").partition("/")
    if named != run or not made_by.artifacts:
        raise RegistryError(registry.NOT_SUPPORTED, "its files belong to a run that cannot be read")
    return f"{made_by.artifacts.rstrip('/')}/{path}"
