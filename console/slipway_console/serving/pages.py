"""The pages: what each reads, and the parts of it that a stream keeps up to date."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from slipway_cli.objects.pool import format_bytes, read_pool
from slipway_console.access.api_server import ApiServer
from slipway_console.access.batches import Batches
from slipway_console.access.refusal import ApiRefusal, Call
from slipway_console.serving.guard import SESSION
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import Session
from slipway_console.serving.subject import DEPLOYMENTS, SubjectReader
from slipway_console.views.actions import list_actions, token_of
from slipway_console.views.batches import read_batch
from slipway_console.views.evidence import METRIC_COLUMNS
from slipway_console.views.table import Listing, read_table
from slipway_contracts.batch_list import BatchList

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TENANT, _BATCH = re.compile(r"[!-~]{0,253}"), re.compile(r"[\w-]{0,64}", re.ASCII)
LONGEST_CONTINUE = 2048
DEPLOYMENT_COLUMNS = ("Phase", "Reason", "Step", "Weight", "Ready", "Stable", "Canary", "Model", "Age", "Message")
USES = ("Requests", "Input", "Output", "Running", "Today", "Month")  # of a Tenant, each with its limit
TENANT_COLUMNS = ("Ready", "Reason", "Exhausted", *USES, "Age")
POOL_COLUMNS = ("Ready", "Models", "Loaded", "Bytes", "Limit", "Reason", "Age")
DEPLOYMENT_SECTIONS = ("state", "actions", "evidence", "record")
EVERY_LOOK_S = 15.0  # Events change without the object


def name_of(request: web.Request, part: str) -> str:
    """A name in the path. Raises web.HTTPNotFound for what no object is called."""
    found = request.match_info[part]
    if not _NAME.fullmatch(found):
        raise web.HTTPNotFound
    return found


def namespace_of(request: web.Request) -> str:
    """The namespace of a list; empty for all. Raises ApiRefusal for what none is called."""
    found = request.query.get("namespace", "").strip()
    if found and not _NAME.fullmatch(found):
        raise ApiRefusal(400, "A namespace has small letters, digits and '-': write for example demo.")
    return found


class Pages:
    """Each method is the answer to one path."""

    def __init__(self, api: ApiServer, rendering: Rendering, batches: Batches | None = None) -> None:
        """`batches`: None where there is no jobs process."""
        self._api, self._rendering, self._batches = api, rendering, batches

    async def deployments(self, request: web.Request) -> web.StreamResponse:
        namespace, session = namespace_of(request), request[SESSION]
        stream = "/deployments/stream?" + urlencode(_list_query(request))
        listing, problem = await self._list_or_problem(request, DEPLOYMENTS, DEPLOYMENT_COLUMNS)
        return self._rendering.page(
            "deployments.html",
            session,
            status=problem.status if problem else 200,
            here="deployments",
            namespace=namespace,
            listing=listing,
            problem=problem,
            stream="" if problem else stream,
        )

    async def deployments_sections(self, request: web.Request) -> Mapping[str, str]:
        """The parts of the list that a stream sends."""
        listing = await self._list(request, DEPLOYMENTS, DEPLOYMENT_COLUMNS)
        values = {"namespace": namespace_of(request), "listing": listing, "problem": None}
        return {"list": self._rendering.section("deployments_list.html", request[SESSION], **values)}

    async def tenants(self, request: web.Request) -> web.StreamResponse:
        listing, problem = await self._list_or_problem(request, "tenants.slipway.dev", TENANT_COLUMNS)
        status = problem.status if problem else 200
        return self._rendering.page(
            "tenants.html", request[SESSION], status=status, here="tenants", listing=listing, problem=problem
        )

    async def batches(self, request: web.Request) -> web.StreamResponse:
        """Batches and jobs of a tenant, or of all."""
        tenant, after = request.query.get("tenant", "").strip(), request.query.get("after", "")
        if not _TENANT.fullmatch(tenant) or not _BATCH.fullmatch(after):
            raise ApiRefusal(400, "There is no tenant of this name, or this address is not one that the console made.")
        found, problem = BatchList([]), None
        if self._batches is None:
            problem = ApiRefusal(
                404, "This console knows no jobs process: jobs.enabled and console.enabled bring both."
            )
        else:
            try:
                found = await self._batches.read(request[SESSION].viewer, tenant, after)
            except ApiRefusal as refusal:
                if refusal.status != 403:
                    raise
                problem = refusal
        return self._rendering.page(
            "batches.html",
            request[SESSION],
            status=problem.status if problem else 200,
            here="batches",
            tenant=tenant,
            rows=[read_batch(row) for row in found.batches],
            more=found.batches[-1].id if found.more and found.batches else "",
            problem=problem,
        )

    async def pools(self, request: web.Request) -> web.StreamResponse:
        listing, problem = await self._list_or_problem(request, "modelpools.slipway.dev", POOL_COLUMNS)
        return self._rendering.page(
            "pools.html",
            request[SESSION],
            status=problem.status if problem else 200,
            here="pools",
            namespace=namespace_of(request),
            listing=listing,
            problem=problem,
        )

    async def pool(self, request: web.Request) -> web.StreamResponse:
        namespace, name = name_of(request, "namespace"), name_of(request, "name")
        session = request[SESSION]
        found = await self._api.get(session.viewer, Call("get", "modelpools.slipway.dev", namespace, name))
        pool = read_pool(found)
        memory = f"{format_bytes(pool.memory_bytes)} of {format_bytes(pool.memory_limit_bytes)}"
        return self._rendering.page("pool.html", session, here="pools", namespace=namespace, pool=pool, memory=memory)

    async def deployment(self, request: web.Request) -> web.StreamResponse:
        values = await self._subject(request)
        where = f"/deployments/{values['namespace']}/{values['name']}/stream"
        return self._rendering.page("deployment.html", request[SESSION], here="deployments", stream=where, **values)

    async def evidence(self, request: web.Request) -> web.StreamResponse:
        namespace, name = name_of(request, "namespace"), name_of(request, "name")
        session = request[SESSION]
        found = await self._reader(request, session).run(name_of(request, "run"))
        return self._rendering.page(
            "evidence.html",
            session,
            here="deployments",
            namespace=namespace,
            name=name,
            found=found,
            metric_columns=METRIC_COLUMNS,
        )

    async def deployment_version(self, request: web.Request) -> str:
        """Changes when the object does."""
        return await self._reader(request, request[SESSION]).version()

    async def deployment_sections(self, request: web.Request) -> Mapping[str, str]:
        """The parts of a deployment's page that a stream sends."""
        values = await self._subject(request)
        session = request[SESSION]
        return {
            name: self._rendering.section(f"deployment_{name}.html", session, **values) for name in DEPLOYMENT_SECTIONS
        }

    async def _subject(self, request: web.Request) -> dict[str, Any]:
        reader = self._reader(request, request[SESSION])
        obj = await reader.deployment()
        subject = await reader.read(obj, self._rendering.now())
        return {
            "namespace": subject.of.namespace,
            "name": subject.of.name,
            "subject": subject,
            "view": subject.view,
            "actions": list_actions(subject.of, subject.records),
            "token": token_of(subject.of),
            "metric_columns": METRIC_COLUMNS,
        }

    def _reader(self, request: web.Request, session: Session) -> SubjectReader:
        return SubjectReader(self._api, session.viewer, name_of(request, "namespace"), name_of(request, "name"))

    async def _list(self, request: web.Request, resource: str, columns: tuple[str, ...]) -> Listing:
        query = _list_query(request)
        namespace = "" if resource.startswith("tenants.") else query.get("namespace", "")
        call, more = Call("list", resource, namespace), query.get("continue", "")
        return read_table(await self._api.table(request[SESSION].viewer, call, **{"continue": more}), columns, USES)

    async def _list_or_problem(
        self, request: web.Request, resource: str, columns: tuple[str, ...]
    ) -> tuple[Listing, ApiRefusal | None]:
        """A viewer who may not list all namespaces names one on the same page."""
        try:
            return await self._list(request, resource, columns), None
        except ApiRefusal as refusal:
            if refusal.status != 403:
                raise
            return Listing((), (), "", None), refusal


def _list_query(request: web.Request) -> dict[str, str]:
    more = request.query.get("continue", "")
    if len(more) > LONGEST_CONTINUE:
        raise ApiRefusal(400, "This address is not one that the console made: start at the first page of the list.")
    return {name: value for name, value in (("namespace", namespace_of(request)), ("continue", more)) if value}
