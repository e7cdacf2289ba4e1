"""Forwards requests: attempts until the first byte, then the response; the time of all of it is limited."""

import time
from dataclasses import dataclass

from aiohttp import web

from slipway_contracts.route_table import InferenceLogSample

from ..balancing.load_balancer import LoadBalancer
from ..experiments.exposures import Experiments
from ..external.client import ExternalClient
from ..feedback.tokens import IN_NONE, Exposed, FeedbackTokens
from ..guards.checks import GuardChecks
from ..judging.outcome import AnswerOrigin
from ..limits.budget import MemoryBudget
from ..limits.time_limits import TimeBound, TimeLimits
from ..mirror.queue import MirrorQueue
from ..mirror.twins import TwinShadows
from ..settings import GatewaySettings
from ..telemetry.inference_log import Exchanged, InferenceLog, may_capture
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..upstream.tenant_proof import TenantSigner
from ..wire import errors, request_fields
from ..wire.inference import infers
from ..wire.predictions import only_label
from .classifiers import Classifiers
from .crashes import CrashTracker
from .event_relays import EventRelays
from .fallback import Answered, Fallbacks
from .held_request import HeldRequest
from .relay import Relay, RelayContext
from .resume_memory import ResumeMemory
from .resumption import Resumption
from .retry_state import RetryState


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What forwards requests, and what the API shares with it."""

    proxy: "Proxy"
    budget: MemoryBudget
    feedback: FeedbackTokens
    resumption: Resumption
    mirror_queue: MirrorQueue
    twins: TwinShadows
    inference_log: InferenceLog
    crashes: CrashTracker
    signer: TenantSigner
    events: EventRelays
    external: ExternalClient
    classifiers: Classifiers
    streams: ResumeMemory  # of requests whose clients may come back by their ids
    guards: GuardChecks


class Proxy:
    """Runs requests: it bounds their time and joins attempts, responses and mirrored copies."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        fallbacks: Fallbacks,
        crashes: CrashTracker,
        *,
        limits: TimeLimits,
        relays: RelayContext,
        twins: TwinShadows,
        feedback: FeedbackTokens,
        inference_log: InferenceLog,
        experiments: Experiments,
    ) -> None:
        self._settings, self._balancer = settings, balancer
        self._fallbacks, self._crashes, self._relays = fallbacks, crashes, relays
        self._limits, self._twins = limits, twins
        self._feedback, self._inference_log, self.experiments = feedback, inference_log, experiments
        self._clock = time.monotonic  # the event loop's

    def forwards_beyond_limits(self, outgoing: UpstreamRequest, record: RequestRecord) -> bool:
        """Whether a provider may answer a request that limits of its tenant refuse."""
        return self._fallbacks.answers_beyond_limits(outgoing, record)

    async def forward(
        self,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        refusal: errors.RequestError | None = None,
    ) -> web.StreamResponse:
        """The response to a request. `refusal`: limits of its tenant refuse it, so that only a provider may answer."""
        began_s = self._clock()
        state = RetryState(began_s, self._settings.max_attempts)
        activity, every_s = self._balancer.enter(outgoing.whose), self._settings.wake_comment_s
        held_request = HeldRequest(request, outgoing, record, activity, began_s=began_s, every_s=every_s)
        relay: Relay | None = None
        answered: Answered | None = None
        try:
            with TimeBound(self._limits):
                self._crashes.check(outgoing, record, state)
                answered = await self._fallbacks.first_response(outgoing, record, state, held_request, refusal)
                response = answered.response
                if (ended := await held_request.refuse_response(response)) is not None:
                    return ended
                sent = answered.outgoing
                record.answered_by = sent.route
                token = self._feedback_token(sent, response, answered.state or state, record)
                opened = held_request.out
                relay = Relay(self._relays, request, sent, response, record, opened=opened, feedback=token)
                out = await relay.run()
                self._log_inference(sent, response, record, token)
                return out
        except TimeoutError:
            if relay is None:
                if state.recorder and not self._limits.cut:
                    state.recorder.fail(self._clock())
                return await held_request.refuse(errors.draining() if self._limits.cut else errors.timed_out())
            return await relay.end("drained" if self._limits.cut else "timeout")
        except errors.RequestError as refusal:
            return await held_request.refuse(refusal)
        finally:
            if relay:
                relay.close()
            recorder = state.recorder
            for one in (recorder, answered.state.recorder if answered and answered.state else None):
                if one and not one.ended:
                    one.abandon(self._clock())
            self._balancer.activity.leave(activity)
            if answered and answered.activity:
                self._balancer.activity.leave(answered.activity)
            own = recorder.outcome if recorder and outgoing.is_sample else None
            self._twins.offer(outgoing, record.request_id, own)

    def _feedback_token(
        self, outgoing: UpstreamRequest, response: UpstreamResponse, state: RetryState, record: RequestRecord
    ) -> str:
        """The token with which the client can send feedback on this response; empty where feedback has no use."""
        origin, exposed = state.recorder.origin if state.recorder else None, self._exposed(outgoing)
        if origin is None and exposed is not IN_NONE:
            origin = self._origin(outgoing)
        if origin is None or response.status != 200 or not outgoing.computes:
            return ""
        is_logged = self._log_rule(outgoing, record) and may_capture(record.identity)
        if not origin.compared and exposed is IN_NONE and not is_logged:
            return ""
        whole = response.rest is None
        label = only_label(outgoing.path, response.headers, response.start) if whole else None
        tenant = record.identity.name if record.identity else ""
        session = "" if outgoing.key.startswith(request_fields.ALONE) else outgoing.key
        return self._feedback.make(origin, response.endpoint.revision, tenant, session, label, exposed)

    def _exposed(self, outgoing: UpstreamRequest) -> Exposed:
        """The arm for which feedback on a response counts; IN_NONE where the request has none, or nothing counts."""
        chosen = outgoing.chosen
        if chosen is None or not chosen.experiment.assignment.outcomes:
            return IN_NONE
        experiment, unit = chosen.experiment, self.experiments.unit_digest(chosen)
        return Exposed(experiment.name, experiment.assignment.version, chosen.arm, unit, experiment.uid)

    def _origin(self, outgoing: UpstreamRequest) -> AnswerOrigin | None:
        """The version of a route whose own labels no one counts."""
        route = self._balancer.published.find(outgoing.whose)
        return AnswerOrigin(route.name, route.generation, route.digest, compared=False) if route else None

    def _log_inference(
        self, outgoing: UpstreamRequest, response: UpstreamResponse, record: RequestRecord, token: str
    ) -> None:
        """Adds a request of a classic model, whose client has the whole response, to the inference log."""
        rule = self._log_rule(outgoing, record) if record.code == 200 else None
        if rule is None:
            return
        output = response.start if response.rest is None else None
        id_ = self._feedback.id_of(token)
        found = Exchanged(outgoing.route, outgoing.path, response.headers, outgoing.body, output, id_)
        self._inference_log.inferred(found, rule, record, self._clock() - record.started)

    def _log_rule(self, outgoing: UpstreamRequest, record: RequestRecord) -> InferenceLogSample | None:
        """The rule by which the inference log takes this request of a classic model; None where it does not."""
        if not (self._inference_log.is_on and infers(outgoing.path)):
            return None
        table = self._balancer.published.current
        route = table.routes.get(outgoing.route) if table else None
        rule = route.inference_log if route else None
        return rule if rule is not None and self._inference_log.takes(rule, record) else None

    def cut(self) -> None:
        """Ends running requests: a stream with an error event, any other one with an error response."""
        self._limits.end_all()
