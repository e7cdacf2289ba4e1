"""Looks up registered models at a bounded rate, and writes verdicts to versions: each in the background.

One look reads one registered model with all its aliases, for all ModelDeployments of a namespace that name it with the
same Secret. A look that fails changes nothing: the last version stays.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from slipway_contracts.api.times import format_time
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, NotYet, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.writing import events
from slipway_operator.model.cluster.observed import Observed, RegistryAnswer
from slipway_operator.model.cluster.plan import Event, Plan
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.inputs.registry import RegistryReference, RegistrySource, RegistryVersion
from slipway_operator.planning.facts import registry
from slipway_operator.planning.facts.registry import VersionVerdict
from slipway_operator.registry import answers, credentials
from slipway_operator.registry.answers import RegisteredModel
from slipway_operator.registry.client import LONGEST_TAG, Credentials, MlflowClient, RegistryError
from slipway_operator.turns import Turns
from slipway_process.backoff import Backoff
from slipway_process.supervisor import OnFailure

AUTO, ALWAYS, NEVER = WRITES = ("auto", "always", "never")
MOST_LOOKUPS, OF_A_NAMESPACE = 1000, 100  # registered models that are followed
AT_A_TIME, TURNS_OF_A_NAMESPACE = 8, 2
FIRST_RETRY_S = 2.0  # after a failed look; later ones wait as long as the poll
WRITE_AGAIN_S = 600.0  # after a verdict that was refused; one that failed otherwise waits for the backoff
JITTER = 0.2  # part of the pause between two looks that is left to chance
IDLE_S = 1.0
REFRESH_LOOKS = 10  # in so many looks at a model, owner, tags and the like of its versions are read once
WRITE_EACH_S = 5.0  # between two writes for a ModelDeployment
UNKNOWN_S = 0.5  # until a reconcile that waits for the first look is repeated
LONGEST_KEY = 250  # characters of the name of a tag, by MLflow
LONGEST_REASON = 500

log = logging.getLogger(__name__)

LookupKey = tuple[str, str, str]  # namespace, name of the Secret, name of the registered model


@dataclass(slots=True)
class _Lookup:
    """A registered model that is followed, and what is known of it."""

    followers: dict[ObjectKey, RegistryReference] = field(default_factory=dict)
    due_at: float = 0.0
    failures: int = 0
    looks: int = 0
    created: str | None = None  # by the registry, of the model that the last look found
    versions: dict[str, RegistryVersion] = field(default_factory=dict)  # by number
    known: dict[RegistryReference, RegistryAnswer] = field(default_factory=dict)


@dataclass(slots=True)
class _Written:
    """The verdicts of one ModelDeployment: what its status has, and what the versions have."""

    obj: Object
    wanted: dict[RegistrySource, VersionVerdict] = field(default_factory=dict)
    confirmed: dict[RegistrySource, VersionVerdict] = field(default_factory=dict)
    due_at: float = 0.0
    failures: int = 0
    reported: str = ""  # the last failure that became an Event


class RegistryRunner(Component):
    """Follows all models:/ URIs. `wake`: has a ModelDeployment reconciled. `may_write`: whether it has the lease."""

    task, on_failure = "registry", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        mlflow: MlflowClient | None,
        wake: Callable[[ObjectKey], None],
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        *,
        poll_s: float = 60.0,
        writes: str = AUTO,
    ) -> None:
        """`mlflow`: None where the installation has no tracking server. `writes`: one of WRITES."""
        self._client, self._mlflow, self._wake, self._may_write, self._now = client, mlflow, wake, may_write, now
        self._poll_s, self._writes = poll_s, writes
        self._retry = Backoff(min(FIRST_RETRY_S, poll_s), poll_s, jitter=JITTER)
        self._lookups: dict[LookupKey, _Lookup] = {}
        self._followed: dict[ObjectKey, LookupKey] = {}
        self._verdicts: dict[ObjectKey, _Written] = {}
        self._turns = Turns(AT_A_TIME, TURNS_OF_A_NAMESPACE)
        self._tasks: dict[LookupKey | ObjectKey, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the last answer about the URI.

        Raises:
            NotYet: nothing is known of the URI yet, neither here nor in the status.
        """
        spec = deployment.spec
        reference = spec.registry if isinstance(spec, Spec) else None
        if reference is None or not isinstance(spec, Spec):
            self._unfollow(deployment.key)
            return observed
        if self._mlflow is None:
            problem = "this installation has no tracking server: an administrator sets registry.mlflow.url of the chart"
            return replace(observed, registry=RegistryAnswer(None, problem, registry.NOT_CONFIGURED))
        lookup = self._follow(
            deployment.key, reference, spec.inputs.model.secret.name if spec.inputs.model.secret else ""
        )
        if lookup is None:
            problem = (
                f"at most {OF_A_NAMESPACE} registered models of a namespace are followed, and {MOST_LOOKUPS} of all"
            )
            return replace(observed, registry=RegistryAnswer(None, problem, registry.TOO_MANY))
        answer = lookup.known.get(reference)
        if answer is None and _kept_uri(deployment.obj) != reference.uri:
            raise NotYet(UNKNOWN_S, f"the operator has not looked up {reference.uri} yet")
        return replace(observed, registry=answer)

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Note which verdicts versions should have; `run` writes them."""
        if self._mlflow is None or self._writes == NEVER or deployment.key not in self._followed:
            self._verdicts.pop(deployment.key, None)
            return None
        wanted = {one.source: one for one in registry.verdicts(planned.status, observed)}
        known = self._verdicts.get(deployment.key)
        if known is None and not wanted:
            return None
        written = self._verdicts.setdefault(deployment.key, _Written(deployment.obj))
        if written.wanted != wanted:
            written.due_at, written.failures = 0.0 if written.failures else written.due_at, 0
            self._news.set()
        written.obj, written.wanted = deployment.obj, wanted
        written.confirmed = {source: one for source, one in written.confirmed.items() if source in wanted}
        return None

    def forget(self, key: ObjectKey) -> None:
        """Follow it no longer."""
        self._unfollow(key)

    def leave(self, key: ObjectKey) -> None:
        """Follow it no longer: it is being deleted."""
        self._unfollow(key)

    async def run(self) -> None:
        """Look up what is due, and write verdicts, until cancelled."""
        while True:
            self._news.clear()
            self._begin()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Cancel all calls: the next process makes them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        """Start what is due and does not go on already: one task for each model, and for each ModelDeployment."""
        mlflow = self._mlflow
        if mlflow is None or not self._may_write():
            return
        now = time.monotonic()
        for lookup, item in self._lookups.items():
            if item.due_at <= now and lookup not in self._tasks:
                self._start(lookup, self._look_up(mlflow, lookup, item))
        for key, written in self._verdicts.items():
            if written.due_at <= now and written.wanted != written.confirmed and key not in self._tasks:
                self._start(key, self._write(mlflow, key, written))

    def _start(self, key: LookupKey | ObjectKey, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"registry {'/'.join(key)}")
        self._tasks[key] = task
        # A callback, because a task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _follow(self, key: ObjectKey, reference: RegistryReference, secret: str) -> _Lookup | None:
        """The look-up of a ModelDeployment's URI; None where there are too many."""
        wanted = (key[0], secret, reference.name)
        if self._followed.get(key) != wanted:
            self._unfollow(key)
            if wanted not in self._lookups:
                of_namespace = sum(known[0] == key[0] for known in self._lookups)
                if of_namespace >= OF_A_NAMESPACE or len(self._lookups) >= MOST_LOOKUPS:
                    return None
                self._lookups[wanted] = _Lookup()
            self._followed[key] = wanted
        lookup = self._lookups[wanted]
        if lookup.followers.get(key) != reference:
            lookup.followers[key] = reference
            lookup.due_at = 0.0
            self._news.set()
        return lookup

    def _unfollow(self, key: ObjectKey) -> None:
        self._verdicts.pop(key, None)
        followed = self._followed.pop(key, None)
        if followed is None:
            return
        lookup = self._lookups[followed]
        lookup.followers.pop(key, None)
        if not lookup.followers:
            del self._lookups[followed]

    async def _look_up(self, mlflow: MlflowClient, key: LookupKey, item: _Lookup) -> None:
        async with self._turns.turn(key[0]):
            before = dict(item.known)
            references = set(item.followers.values())
            try:
                await self._read(mlflow, key, item, references)
            except RegistryError as error:
                _note_failure(item, references, error)
            except Exception:
                log.exception("a bug: the look-up of the registered model %r raised", key[2])
                bug = RegistryError(registry.UNAVAILABLE, "the operator failed to look it up; see its log")
                _note_failure(item, references, bug)
            failed = any(item.known[reference].problem for reference in references)
            item.failures = item.failures + 1 if failed else 0
            pause_s = self._poll_s * (1 + JITTER * (2 * random.random() - 1))
            again_s = self._retry.delay_s(item.failures, random.random()) if failed else pause_s
            is_whole = references == set(item.followers.values())
            item.due_at = time.monotonic() + again_s if is_whole else 0.0
        item.known = {one: answer for one, answer in item.known.items() if one in set(item.followers.values())}
        used = {answer.version.version for answer in item.known.values() if answer.version}
        item.versions = {number: one for number, one in item.versions.items() if number in used}
        for follower, reference in list(item.followers.items()):
            if item.known.get(reference) != before.get(reference):
                self._wake(follower)

    async def _read(
        self, mlflow: MlflowClient, key: LookupKey, item: _Lookup, references: set[RegistryReference]
    ) -> None:
        """Read the model once, and what is not known of the versions that are named. Raises RegistryError."""
        access = await credentials.read(self._client, key[0], key[1])
        model = await mlflow.model(key[2], access)
        created = answers.line(model.created)
        if item.created != created or not item.looks % REFRESH_LOOKS:
            item.versions = {}  # a model that was deleted and made again has other versions of the same number
        # No more of the answer is kept: it may have megabytes.
        item.created, item.looks = created, item.looks + 1
        for reference in references:
            item.known[reference] = await _answer(mlflow, item, model, reference, access)

    async def _write(self, mlflow: MlflowClient, key: ObjectKey, item: _Written) -> None:
        async with self._turns.turn(key[0]):
            # What is wanted now: the turn may have come late.
            followed, wanted = self._followed.get(key), dict(item.wanted)
            if followed is None or not self._writes_still(key, item):
                return
            try:
                access = await credentials.read(self._client, key[0], followed[1])
                may = self._writes == ALWAYS or access.given
                if may and not await self._write_all(mlflow, key, item, wanted, access):
                    return
                item.confirmed, item.failures, item.reported = wanted, 0, ""
                item.due_at = time.monotonic() + WRITE_EACH_S
            except RegistryError as error:
                item.failures += 1
                transient = error.reason == registry.UNAVAILABLE
                pause_s = self._retry.delay_s(item.failures, random.random()) if transient else WRITE_AGAIN_S
                item.due_at = time.monotonic() + pause_s
                await self._report(item, str(error))
            except Exception:
                log.exception("a bug: a verdict of %s was not written", "/".join(key))
                item.due_at = time.monotonic() + WRITE_AGAIN_S

    async def _write_all(
        self,
        mlflow: MlflowClient,
        key: ObjectKey,
        item: _Written,
        wanted: Mapping[RegistrySource, VersionVerdict],
        access: Credentials,
    ) -> bool:
        """Write what the versions do not have; False where that is no longer for this process to do.

        Raises:
            RegistryError: the first one, after all were tried: a version that was deleted holds up no other.
        """
        failure: RegistryError | None = None
        for source, verdict in wanted.items():
            if not self._writes_still(key, item):
                return False
            if item.confirmed.get(source) == verdict:
                continue
            try:
                await _write_one(mlflow, key, verdict, access)
                item.confirmed[source] = verdict
            except RegistryError as error:
                failure = failure or error
        if failure:
            raise failure
        return True

    def _writes_still(self, key: ObjectKey, item: _Written) -> bool:
        """Whether the verdicts are still for this process to write: another one that has the lease may know better."""
        return self._may_write() and self._verdicts.get(key) is item

    async def _report(self, item: _Written, why: str) -> None:
        """Post an Event for each new failure: the rollout does not depend on it."""
        if item.reported == why:
            return
        item.reported = why
        text = f"the verdict was not written to the model registry: {why}"
        await events.post(self._client, item.obj, Event("Warning", "VerdictNotWritten", text), self._now())


async def _answer(
    mlflow: MlflowClient, item: _Lookup, model: RegisteredModel, reference: RegistryReference, access: Credentials
) -> RegistryAnswer:
    """What the registry says about one URI; another one of the same model may have another answer."""
    number = reference.version or model.aliases.get(reference.alias, "")
    try:
        if not number:
            raise RegistryError(registry.NOT_FOUND, f"the registered model has no alias {reference.alias!r}")
        known = item.versions.get(number)
        if known is None:
            known = item.versions[number] = await mlflow.version(reference, model, number, access)
        facts = replace(known.facts, aliases=answers.alias_lines(model), latest=model.latest)
        return RegistryAnswer(replace(known, uri=reference.uri, facts=facts))
    except RegistryError as error:
        return _failed(item.known.get(reference), error)


def _note_failure(item: _Lookup, references: set[RegistryReference], error: RegistryError) -> None:
    for reference in references:
        item.known[reference] = _failed(item.known.get(reference), error)


def _failed(former: RegistryAnswer | None, error: RegistryError) -> RegistryAnswer:
    return RegistryAnswer(former.version if former else None, str(error), error.reason)


async def _write_one(mlflow: MlflowClient, key: ObjectKey, verdict: VersionVerdict, access: Credentials) -> None:
    """Set the tags of one verdict, where the version has others."""
    wanted = tags_of(key, verdict)
    present = await mlflow.tags(verdict.source, access)
    changed = {name: value for name, value in wanted.items() if present.get(name) != value}
    await mlflow.set_tags(verdict.source, changed, access)


def tags_of(key: ObjectKey, verdict: VersionVerdict) -> Mapping[str, str]:
    """The tags of a verdict in the order in which they are written: slipway.NAMESPACE.NAME.reason, .at, .statement once
    it is signed, and .verdict last: who waits for it finds the others.

    Raises:
        RegistryError: the names are longer than MLflow takes.
    """
    begin = f"{answers.OWN_TAGS}{key[0]}.{key[1]}"
    tags = {
        f"{begin}.reason": answers.line(verdict.reason, LONGEST_REASON),
        f"{begin}.at": format_time(verdict.at),
    }
    # Whoever may change the record may have written it: it is no larger than the operator's own, and on one line.
    if 0 < len(verdict.statement) <= LONGEST_TAG and verdict.statement.isascii() and verdict.statement.isprintable():
        tags[f"{begin}.statement"] = verdict.statement
    tags[f"{begin}.verdict"] = verdict.verdict
    if max(map(len, tags)) > LONGEST_KEY:
        raise RegistryError(registry.NOT_SUPPORTED, f"the name {begin!r} is longer than that of a tag may be")
    return tags


def _kept_uri(obj: Object) -> str:
    """The URI whose version the status has; empty without one."""
    kept = (obj.get("status") or {}).get("registry")
    return str(kept.get("uri") or "") if isinstance(kept, dict) else ""
