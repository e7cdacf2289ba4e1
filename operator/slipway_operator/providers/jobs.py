"""The Jobs of measurements: named after the measurement, polled until they end, deleted when the result is stored."""

import asyncio
from collections.abc import Awaitable, Callable

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, NotFound, Unavailable
from slipway_operator.kube.ownership import holds_own_keys
from slipway_operator.kube.resources import JOBS, SECRETS
from slipway_operator.model.analysis.closed_job import closed, secrets_of
from slipway_operator.model.analysis.measure import ProviderAnswer
from slipway_operator.providers.answers import Unanswered

POLL_S = 2.0
GRACE_S = 60.0  # waited beyond the Job's deadline, because a cluster may report its end late


class Jobs:
    """Runs the Jobs of measurements at one API server."""

    def __init__(self, client: Client, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client, self._sleep = client, sleep

    async def run(self, manifest: Object) -> ProviderAnswer:
        """Create the Job, or find the one that a former operator created, and return whether it succeeded.

        Raises:
            Unanswered: when the Job cannot be created, has another owner, was deleted, or does not end.
        """
        name = manifest["metadata"]["name"]
        try:
            # Validated again, because arguments were filled in after the template was validated.
            closed(manifest["spec"])
        except ValueError as error:
            raise Unanswered(f"Job {name} is not run: {error}") from error
        limit_s = manifest["spec"]["activeDeadlineSeconds"] + GRACE_S
        try:
            async with asyncio.timeout(limit_s):
                await self._check_secrets(manifest)
                await self._make(manifest)
                return await self._ended(manifest)
        except TimeoutError as error:
            raise Unanswered(f"Job {name} did not end within {limit_s:.0f} s") from error
        except NotFound as error:
            raise Unanswered(f"Job {name} was deleted before it ended") from error
        except ApiError as error:
            raise Unanswered(f"Job {name} cannot be run: {error}") from error

    async def delete(self, manifest: Object) -> None:
        """Delete the Job and its pods if it is ours. Errors are ignored: ttlSecondsAfterFinished deletes it later."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            found = await self._client.get(JOBS, namespace, name)
            if _is_ours(found, manifest):
                await self._client.delete(JOBS, namespace, name, found["metadata"]["uid"])
        except ApiError:
            return

    async def _check_secrets(self, manifest: Object) -> None:
        """Raise Unanswered unless the operator may get each Secret of the Job, and none has Slipway's own keys.

        The author of a template may lack the permission to read Secrets, so an admin must allow each one.
        """
        namespace = manifest["metadata"]["namespace"]
        for name in sorted(set(secrets_of(manifest["spec"]))):
            if not await self._client.may("get", SECRETS, namespace, name):
                raise Unanswered(
                    f"Secret {name!r} may not be used: allow the operator to get it by a Role in namespace {namespace} "
                    f"with resourceNames: [{name}]"
                )
            if await self._is_own(namespace, name):
                raise Unanswered(f"Secret {name!r} may not be used: it holds keys of Slipway")

    async def _is_own(self, namespace: str, name: str) -> bool:
        try:
            return holds_own_keys(await self._client.get(SECRETS, namespace, name))
        except NotFound:  # then the pod fails, and Kubernetes reports why
            return False

    async def _make(self, manifest: Object) -> None:
        try:
            await self._client.create(JOBS, manifest)
        except Exists:
            metadata = manifest["metadata"]
            if not _is_ours(await self._client.get(JOBS, metadata["namespace"], metadata["name"]), manifest):
                raise Unanswered(f"there is a Job {metadata['name']} already, and it is not ours") from None

    async def _ended(self, manifest: Object) -> ProviderAnswer:
        metadata = manifest["metadata"]
        while True:
            try:
                found = await self._client.get(JOBS, metadata["namespace"], metadata["name"])
                if answer := verdict(found):
                    return answer
            except Unavailable:
                pass  # the Job goes on; poll it again
            await self._sleep(POLL_S)


def verdict(job: Object) -> ProviderAnswer | None:
    """Return whether a Job succeeded, from its conditions; None while it runs."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") != "True" or condition.get("type") not in ("Complete", "Failed"):
            continue
        done = condition["type"] == "Complete"
        why = ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)
        return ProviderAnswer(
            done, "" if done else f"Job {job['metadata']['name']} failed" + (f": {why}" if why else "")
        )
    return None


def _is_ours(found: Object, manifest: Object) -> bool:
    owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()}
    return manifest["metadata"]["ownerReferences"][0]["uid"] in owners
