"""Actions of a viewer: the patch of the spec that the CLI would send, with the viewer's token and about one step."""

import asyncio
import logging
from urllib.parse import parse_qsl

from aiohttp import web

from slipway_cli.objects.deployment import read_deployment
from slipway_cli.rollouts.intents import Nothing
from slipway_console.access.api_server import ApiServer
from slipway_console.access.refusal import ApiRefusal, Call, Conflict
from slipway_console.serving.guard import SESSION, has_token
from slipway_console.serving.pages import name_of
from slipway_console.serving.sessions import Session
from slipway_console.serving.subject import DEPLOYMENTS, SubjectReader, resource_version
from slipway_console.views.actions import LABELS, decide, explain_stale

log = logging.getLogger(__name__)

LONGEST_FIELD = 256
MOST_FIELDS = 16
FORM_TYPE = "application/x-www-form-urlencoded"
NO_FORM = "This form is not one of the console's: nothing was done."
FORM_S = 10.0
_TRIES = 3  # each time that the operator writes its status between our read and our patch


async def form_of(request: web.Request, *names: str, longest: int = LONGEST_FIELD) -> dict[str, str]:
    """Texts of a form as browsers encode it; empty where a field is missing. Raises ApiRefusal: it is no such form."""
    try:
        async with asyncio.timeout(FORM_S):
            body = await request.read()
        form = dict(
            parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
        )
    except TimeoutError:
        raise ApiRefusal(408, "The form did not arrive in time: nothing was done.") from None
    except (ValueError, web.RequestPayloadError):
        raise ApiRefusal(400, NO_FORM) from None
    found = {name: form.get(name, "") for name in names}
    if request.content_type != FORM_TYPE or any(len(value) > longest for value in found.values()):
        raise ApiRefusal(400, NO_FORM)
    return found


async def checked_form(request: web.Request, *names: str) -> dict[str, str]:
    """The same, with the session's own token. Raises ApiRefusal."""
    form = await form_of(request, "csrf", *names)
    if not has_token(request[SESSION], form["csrf"]):
        raise ApiRefusal(403, "This form is not from this session: nothing was done. Reload the page, and try again.")
    return form


class Actions:
    """The answer to a form of a deployment's page."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Patch the deployment, and lead back to its page. Raises ApiRefusal: nothing was changed."""
        namespace, name, action = name_of(request, "namespace"), name_of(request, "name"), request.match_info["action"]
        if action not in LABELS:
            raise web.HTTPNotFound
        form = await checked_form(request, "token", "to")
        session = request[SESSION]
        reader = SubjectReader(self._api, session.viewer, namespace, name)
        done = await self._patch(reader, session, Call("patch", DEPLOYMENTS, namespace, name), action, form)
        session.news = f"Requested: {done}."
        return web.Response(status=303, headers={"Location": f"/deployments/{namespace}/{name}"})

    async def _patch(
        self, reader: SubjectReader, session: Session, call: Call, action: str, form: dict[str, str]
    ) -> str:
        for _ in range(_TRIES):
            obj = await reader.deployment()
            of = read_deployment(obj)
            if stale := explain_stale(form["token"], of):
                raise ApiRefusal(409, stale)
            records = await reader.records(obj) if action == "undo" else ()
            decision = decide(action, of, records, form["to"])
            if isinstance(decision, Nothing):
                raise ApiRefusal(409, f"There is nothing to do: {decision.why}.")
            # Of another version of the object the decision would not hold.
            body = {"metadata": {"resourceVersion": resource_version(obj)}, "spec": decision.spec}
            try:
                await self._api.patch(session.viewer, call, body)
            except Conflict:
                continue
            fields = {"user": session.viewer.user, "action": action, "key": f"{call.namespace}/{call.name}"}
            log.info("a viewer changed a rollout", extra={**fields, "step": form["token"]})
            return decision.text
        raise ApiRefusal(409, "Others change the object all the time, so that nothing was changed: try again.")
