"""Types of the Rust library (plane/src/bindings)."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Protocol, final

twins: ModuleType
"""The pure functions, as tests/plane calls them beside those of Python (plane/src/bindings/twins.rs). An input that a
function leaves to Python raises `NotSure`."""

def version() -> str:
    """The version of the crate."""

def address_owner(host: str) -> str:
    """What stands for the owner of an address: twin of the gateway's `limits.connections.address_owner`.

    Raises ValueError: `host` is no address of IPv4 or IPv6, or has a scope.
    """

@final
class Listener:
    """A port, and the thread that accepts on it. Its methods may be called by any thread."""

    def __init__(
        self,
        sockets: Sequence[int],
        *,
        max_connections: int,
        percentage: int,
        max_per_address: int,
        longest_silence_s: float,
        refusal_total: bytes,
        refusal_share: bytes,
        lane: Lane | None = None,
        longest_handshake_s: float | None = None,
    ) -> None:
        """`sockets`: descriptors of bound TCP sockets, which are the listener's from here on.

        `percentage`, `max_per_address`: as for `Places`; 0: no bound in any case. `longest_silence_s`: time that a
        connection may stay open without its first byte. `refusal_total`, `refusal_share`: whole responses on
        connections for which there is no place. `lane`: serves plain requests; None: all are Python's.
        `longest_handshake_s`: time for a TLS handshake; None: the port has no TLS.

        Raises ValueError: a negative descriptor or time; OSError.
        """

    def start(self) -> None:
        """Listens and starts the thread; without effect while it runs and after `drain`. Raises OSError."""

    def secure(
        self, certificate: bytes, private_key: bytes, client_ca: bytes, *, requires_client: bool, is_newest: bool
    ) -> None:
        """TLS of the handshakes that begin from now on: files in PEM, `client_ca` empty where clients need no
        certificate. `is_newest`: TLS 1.3 alone. Until the first call, handshakes are Python's.

        Raises ValueError: the library cannot use them; RuntimeError: the port has no TLS.
        """

    def leave_handshakes(self) -> None:
        """Python does the handshakes that begin from now on."""

    def fileno(self) -> int:
        """Readable when there is news to take."""

    def take(self) -> News:
        """What happened since the last call. Connections that are not detached from it are closed with it."""

    @property
    def connections(self) -> int:
        """Connections with a place: here, and handed over and not left."""

    @property
    def silent(self) -> int:
        """Connections of which no byte has come."""

    def close_silent(self, idle_s: float) -> None:
        """Closes those that are silent for `idle_s` now. Raises ValueError."""

    def drain(self, longest_silence_s: float) -> None:
        """Closes the port after it took what the kernel has completed. Raises ValueError.

        A connection that is silent for `longest_silence_s` is closed from here on.
        """

    def stop(self) -> None:
        """Ends the thread and waits for it. Silent connections are closed; those handed over are not."""

@final
class News:
    """What happened since the news was taken last; counts are of that time."""

    @property
    def handed(self) -> list[Handed]: ...
    @property
    def refused_total(self) -> int: ...
    @property
    def refused_share(self) -> int: ...
    @property
    def closed_idle(self) -> int:
        """Closed to make room."""

    @property
    def failed_handshakes(self) -> int:
        """Of TLS, that ended without a connection."""

    @property
    def panics(self) -> int:
        """Connections that ended by a bug."""

    @property
    def accept_failures(self) -> int:
        """Times that there was no descriptor, or no memory, for a connection."""

    @property
    def ended(self) -> str | None:
        """Why the thread ended; None: it runs."""

    @property
    def logged(self) -> list[LogEntry]: ...
    @property
    def unlogged(self) -> int:
        """Requests for which there was no room in `logged`."""

    @property
    def recounts(self) -> list[Recount]: ...
    @property
    def calls(self) -> list[Call]: ...
    @property
    def settlements(self) -> list[Settlement]: ...
    @property
    def paused_relays(self) -> list[int]:
        """Ids of `EventRelay` that wait for Python."""

Call = tuple[int, str, str, list[int]]
"""A request that is to be counted with other gateways: ticket, tenant, id, and amounts."""
Settlement = tuple[str, str, list[int | None]]
"""The end of a request that was counted so: tenant, id, and what it used of each limit, where that is known."""

@final
class Handed:
    """A connection with its first bytes."""

    @property
    def owner(self) -> str:
        """Of its address, as of `address_owner`."""

    def detach(self) -> int:
        """The descriptor, which is the caller's from here on. Raises RuntimeError: it was detached before."""

    def take_first_bytes(self) -> bytes:
        """What was read, at least one byte where it needs no handshake; the second call returns none."""

    @property
    def needs_handshake(self) -> bool:
        """Whether the port has TLS, and nothing of this connection was read."""

    @property
    def secured(self) -> Secured | None:
        """TLS of a connection whose session the thread has; None: it has none."""

    @property
    def returns(self) -> tuple[bool, bool]:
        """Whether the connection may be given back to the lane: at once, or when there is another table."""

    def give_back(self, lane: Lane, descriptor: int) -> None:
        """The lane serves the connection again, by a descriptor that is the lane's from here on. Raises ValueError."""

    def take_begun(self) -> Begun | None:
        """What the lane did with its first request; None: nothing, or it was taken before."""

    def leave(self) -> None:
        """Gives its place back, and what it still has; once."""

@final
class Secured:
    """What is known of a connection whose TLS session the thread has, and whose plain bytes Python has."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the client."""

    @property
    def local(self) -> tuple[str, int]:
        """Those that it connected to."""

    @property
    def certificate(self) -> bytes | None:
        """Of the client, verified, in DER; None: it has none."""

    @property
    def server_name(self) -> str | None:
        """By which the client called this server (SNI)."""

    def cut(self) -> None:
        """The connection is closed next, and its client must not take what it has for all of a message."""

@final
class ChunkDecoder:
    """Reads a body in chunks (RFC 9112, 7.1). An `EventRelay` goes on with it."""

    def __init__(self) -> None: ...
    def feed(self, bytes: bytes, /) -> tuple[bytes, int]:
        """The data in these bytes, and how many of them belong to the message.

        Raises ValueError: they are no chunks.
        """

    @property
    def has_ended(self) -> bool:
        """Whether no further byte belongs to the message."""

class Passing(Protocol):
    """What a stream is passed on with: as `slipway_gateway.forwarding.event_relays.Passing` has it."""

    @property
    def held(self) -> tuple[bytes, int, int, bool]: ...
    @property
    def progress(self) -> tuple[bytes, bytes, bytes, bytes, bool, int] | None: ...
    @property
    def count(self) -> tuple[bool, bool, tuple[int, int, int] | None, int, int, bool] | None: ...
    @property
    def times(self) -> tuple[float, int, bytes, bool] | None: ...
    @property
    def patience_s(self) -> float: ...
    @property
    def counted_bytes(self) -> int: ...

@final
class Passed:
    """What a relay made of a stream, and what passed since it last went on."""

    @property
    def held(self) -> tuple[bytes, int, int, bool]: ...
    @property
    def progress(self) -> tuple[tuple[bytes, bytes, bytes, bytes, bool], bytes] | None:
        """As it was given, and the tokens that were added."""

    @property
    def count(self) -> tuple[tuple[int, int, int] | None, int, int, bool] | None: ...
    @property
    def times(self) -> tuple[float, int, bytes, bool] | None: ...
    @property
    def events(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def stalled_s(self) -> float: ...
    @property
    def data(self) -> bytes:
        """After `events`: events that nothing has counted. After `long`: data that was counted and not sent."""

    @property
    def unsent(self) -> bytes:
        """The rest of a chunk that the client has a part of."""

    @property
    def pieces(self) -> list[bytes]:
        """Of the body, as they were read, where they are kept."""

@final
class EventRelay:
    """Relays the events of one response of Python's, until Python has to look."""

    def __init__(
        self,
        id: int,
        client: int,
        server: int,
        decoder: ChunkDecoder,
        *,
        silence_s: float,
        stall_s: float,
        now_s: float,
    ) -> None:
        """`client`, `server`: descriptors of sockets, which are the relay's from here on. `silence_s`: most seconds
        between two reads; 0: any. `stall_s`: how long a client may not read. `now_s`: of Python's clock.

        Raises ValueError: a negative descriptor or time.
        """

    def begin(self, lane: Lane, passing: Passing, keeps_pieces: bool) -> bool:
        """The thread runs it from now on; `News.paused_relays` has its id when it pauses. False: no thread runs, and it
        is `lost`."""

    def go_on(self, passing: Passing, keeps_pieces: bool) -> bool:
        """It goes on after a pause. False: as of `begin`."""

    def stop(self) -> None:
        """Nothing is read or written any more when this returns."""

    @property
    def paused(self) -> tuple[str, int] | None:
        """Why it pauses; None while it runs, and once it was stopped. The number is an error of the system (`broken`),
        or 1 where nothing follows the response on its connection (`end`).

        `done`: the last event of OpenAI's streams was sent. `room`: it holds more memory than was counted. `silent`:
        its server is silent for longer than `patience_s`. `kept`: 64 KiB of pieces are kept. `events`, `long`: see
        `Passed.data`. `end`, `eof`, `broken`, `malformed`, `timeout`: of its server. `left`, `stalled`: of its client.
        `lost`: the thread does not run it.
        """

    @property
    def silent_since_s(self) -> float:
        """Since when its server is awaited, on Python's clock; infinity while it is not."""

    @property
    def count(self) -> tuple[tuple[int, int, int] | None, int, int, bool] | None:
        """What a tenant pays for so far, as of `Passed`; None: nothing, or Python has it."""

    def take(self) -> Passed:
        """What Python goes on from; once after each pause, and after `stop`."""

@final
class Places:
    """Twin of `slipway_process.places.Places`, for one owner and one place at a time."""

    def __init__(self, limit: int, percentage: int = 50, most: int = 0) -> None: ...
    @property
    def used(self) -> int: ...
    def take(self, owner: str) -> str:
        """Returns "" or why there is no place: total or share."""

    def leave(self, owner: str) -> None: ...

# -- tenants, of both lanes

Limits = tuple[tuple[int, int, int], int, float, int]
"""Per minute of requests, input and output tokens; concurrency; seconds of a burst; parts."""
LimitHeaders = Sequence[Sequence[str] | None]
"""Of requests and of tokens: the limit, what remains, and when the bucket is full."""
Budget = tuple[int | None, int | None]
"""Of a day and of a month, in billionths of the currency."""

@final
class Reservation:
    """What one request took from the limits of its tenant, until `TenantQuota.settle`."""

@final
class TenantQuota:
    """Twin of the gateway's `quotas.tenant.TenantQuota`. Amounts: of requests, input and output tokens."""

    def __init__(self, limits: Limits) -> None: ...
    @property
    def running(self) -> int: ...
    def reserve(self, amounts: Sequence[int], now_s: float) -> tuple[Reservation | None, tuple[str, float] | None]:
        """A reservation, or the limit that is reached and the seconds to wait."""

    def settle(self, reservation: Reservation, used: Sequence[int | None], now_s: float) -> None: ...
    def change(self, limits: Limits, now_s: float) -> None: ...
    def arrive(self, most: int) -> tuple[str, float] | None: ...
    def arrived(self) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def is_idle(self, now_s: float) -> bool: ...
    def owed(self, limit: str, now_s: float) -> float: ...
    def headers(self, now_s: float) -> LimitHeaders: ...

@final
class Quotas:
    """Twin of the gateway's `quotas.registry.Quotas`."""

    def __init__(self) -> None: ...
    def of(self, tenant: str, limits: Limits, now_s: float) -> TenantQuota: ...
    def find(self, tenant: str) -> TenantQuota | None: ...
    def names(self) -> list[str]: ...
    def forget_others(self, tenants: set[str], now_s: float) -> None: ...

@final
class Spending:
    """Twin of the gateway's `ledger.spending.Spending`. Amounts are in billionths of the currency."""

    def __init__(self) -> None: ...
    def read(self, spent: Mapping[str, tuple[int, int]], hour: int) -> None:
        """`spent`: in the day and in the month, by tenant."""

    def written(self, added: Mapping[str, int]) -> None: ...
    def expect(self, tenant: str, nano: int) -> None: ...
    def begin(self, tenant: str, nano: int, budget: Budget, hour: int) -> str: ...
    def unwritten(self, tenant: str) -> int: ...
    def of(self, tenant: str, hour: int) -> tuple[int, int]:
        """In the day and in the month."""

    def exhausted(self, tenant: str, budget: Budget, hour: int) -> str: ...

@final
class LaneTenant:
    """A tenant for `Lane.identify_by`.

    `prices`: name of the model, input, output, cached input, request. `budget`, `limits`: this gateway's part.
    `shared_limits`: of all gateways, where its requests are counted with them. `keys`: id, hash, and the Unix time at
    which it expires.
    """

    def __init__(
        self,
        *,
        name: str,
        models: Sequence[str],
        is_disabled: bool,
        is_guarded: bool,
        weight: int,
        priority_limit: int | None,
        prices: Sequence[tuple[str, int, int, int | None, int, int]],
        budget: Budget,
        output_tokens: int,
        limits: Limits,
        shared_limits: Limits | None,
        keys: Sequence[tuple[str, str, float | None]],
    ) -> None: ...

# -- the fast lane (docs/plane.md)

Strata = dict[str, list[int]]
"""Counts of latencies by stratum, in buckets."""

@final
class Sessions:
    """The sessions of all generations, with one limit."""

    def __init__(self, limit: int) -> None: ...
    @property
    def taken(self) -> int: ...

@final
class Units:
    """Twin of the gateway's `judging.units.Units`, for both lanes. Keys and clients are UTF-8."""

    def __init__(self, memory: Sessions, weights: Mapping[str, int], begun_s: float) -> None: ...
    def __len__(self) -> int: ...
    def assign(self, revision: str, key: bytes, client: bytes, now_s: float) -> tuple[bool, bool]: ...
    def has(self, key: bytes) -> bool: ...
    def remember(self, key: bytes) -> None: ...
    def first_end(self, key: bytes) -> bool: ...
    def first(self, key: bytes, name: str) -> bool: ...
    def end(self) -> None: ...

@final
class Generation:
    """What the lane counts of one generation for the judge. `bounds`: of the buckets of latencies, in seconds."""

    def __init__(self, units: Units, bounds: Sequence[float], keeps_open: bool) -> None: ...
    def take(self) -> dict[str, tuple[int, int, int, Strata, Strata]]:
        """Since the last call, by revision: assigned, requests, units, latencies, and lower bounds of latencies."""

Endpoint = tuple[str, str, int, str, str]
"""URL, address, port, `Host`, and prefix of paths."""

@final
class PrefixRouting:
    """What is known of prompts at endpoints, in both lanes: `balancing.prefix_affinity` of the gateway has the rules.

    `hashes`: of a prompt's blocks, 16 bytes each; methods raise ValueError where they are not.
    """

    def __init__(self, max_blocks: int) -> None:
        """`max_blocks`: remembered of all endpoints; 0: none."""

    @property
    def blocks(self) -> int: ...
    def follow(self, urls: set[str]) -> None:
        """Adopts the endpoints that there are: those that are gone are forgotten."""

    def forget(self, url: str) -> None:
        """An endpoint's cache is gone."""

    def known(self, hashes: bytes, now_s: float) -> tuple[dict[str, int], dict[str, int]]:
        """By URL, without zeros: bytes of a prompt that an endpoint has seen, and bytes of others that wait there."""

    def matched_at(self, hashes: bytes, url: str) -> int:
        """Bytes of a prompt that an endpoint has seen."""

    def begin(self, hashes: bytes, size: int, owner: str, url: str) -> Prefill:
        """An endpoint gets a prompt."""

    def reported(self, url: str, header: bytes, now_s: float) -> None:
        """A pod reported its load in this header of a response."""

@final
class Prefill:
    """A prompt that an endpoint computes: `size` bytes of it wait there until `end`, or until this is gone."""

    @property
    def size(self) -> int: ...
    def end(self) -> None: ...

@final
class LaneRoute:
    """A route for `Lane.publish`. `reason`: why its requests are Python's; empty: they are plain.

    `names`: by which requests name it. `backends`: revisions with their weights and endpoints. `forwarded`: credentials
    that servers get. `isolates`: an engine of its endpoints knows no tenants. `cache`: for how many seconds responses
    are kept, and whether tenants get those of each other; None: none are. `prefix_affinity`: endpoints that have seen
    the beginning of a prompt are preferred. `is_paused`: the failsafe acts.
    `valid_for_s`: of its weights; None: for ever. Raises ValueError: a reason that metrics do not have, or a negative
    time.
    """

    def __init__(
        self,
        *,
        name: str,
        uid: str,
        model: str,
        id: str,
        names: Sequence[str],
        reason: str,
        salt: str,
        backends: Sequence[tuple[str, int, Sequence[Endpoint]]],
        forwarded: Sequence[str],
        isolates: bool,
        generation: Generation | None,
        cache: tuple[float, bool] | None,
        prefix_affinity: bool,
        is_paused: bool,
        valid_for_s: float | None,
    ) -> None: ...

@final
class Lane:
    """The fast lane: serves plain requests in the listener's thread. Its methods may be called by any thread."""

    def __init__(
        self,
        *,
        paths: Sequence[str],
        max_body_bytes: int,
        max_head_bytes: int,
        max_response_bytes: int,
        sticky_by: Sequence[str],
        tenant_by: Sequence[str],
        tenant_salt: str,
        shares_by_key: bool,
        priority_limit: int,
        connect_timeout_s: float,
        stall_timeout_s: float,
        patience_s: float,
        server: str,
        seconds_bounds: Sequence[float],
        ttft_bounds: Sequence[float],
        logs: bool,
        log_below: int,
        recount_one_in: int,
        max_recounts: int,
        trace_below: int | None,
        traces_per_s: int,
        in_flight: Places,
        quotas: Quotas,
        spending: Spending,
        prefixes: PrefixRouting,
        max_bytes: int,
        percentage: int,
        now_s: float,
    ) -> None:
        """`patience_s`: after it a request that is not whole, or has no response, is Python's. `log_below`: 16^8 times
        the share of requests with lines in the access log. `now_s`: of the clock of sessions. Raises ValueError."""

    def publish(self, routes: Sequence[LaneRoute]) -> None:
        """Replaces all routes. Raises ValueError: an endpoint's address is none."""

    def open(self, why_closed: str) -> None:
        """Whether requests are served: "" or the reason that they are not. Raises ValueError."""

    def pause(self, route: str, is_paused: bool) -> None:
        """Leaves the requests of a route to Python for now, or no longer."""

    def renew(self, valid_for_s: float) -> None:
        """The weights of all routes are valid for so long. Raises ValueError."""

    def identify_by(self, tenants: Sequence[LaneTenant] | None, pepper: bytes, number: int) -> None:
        """Replaces the tenants by which requests are authenticated; None: no request has an identity.

        `pepper`: empty: no key is valid. `number`: of this publication.
        """

    def sign_with(self, id: str, master: bytes) -> None:
        """The key that proves tenants; an empty id: there is none."""

    def eject(self, ejected: Mapping[str, float]) -> None:
        """Replaces the endpoints that are ejected: for how many seconds, by URL. Raises ValueError."""

    def blame(self, keys: set[tuple[str, str, int]]) -> None:
        """Replaces the clients, paths and lengths of requests that are left to Python."""

    def answered(self, client: str, path: str, body: bytes) -> bool: ...
    def count_python(self, url: str, count: int) -> None:
        """Python has so many requests in flight at an endpoint."""

    def answer(self, answers: Sequence[tuple[int, Sequence[float] | None]]) -> list[int]:
        """Answers calls, by ticket: seconds until each bucket is full; None: it was not taken. Returns the tickets of
        those that no longer wait."""

    def count_python_of(self, url: str, tenant: str, count: int) -> None:
        """Python has so many requests of a tenant in flight at an endpoint."""

    def of_tenant_at(self, url: str, tenant: str) -> int:
        """Requests of a tenant in flight at an endpoint, in this lane."""

    def at(self, url: str) -> int:
        """Requests in flight at an endpoint, in this lane."""

    def running(self) -> list[tuple[str, str, str, int]]:
        """Requests in flight in this lane by route, model and revision, where there are some."""

    def activity(self, route: str, uid: str) -> tuple[int, float | None]:
        """Requests in progress in this lane, and seconds since the last one ended."""

    @property
    def held_bytes(self) -> int: ...
    def hold_copies(self, most_bytes: int) -> None:
        """Forgets all copies of kept responses, and holds at most so many bytes of them from now on."""

    def put_copy(
        self,
        digest: bytes,
        *,
        revision: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        own_id: tuple[int, Sequence[int]],
        usage: tuple[int, int, int] | None,
        stored_s: float,
        expires_s: float,
        size_bytes: int,
    ) -> bool:
        """Requests with this digest, of 32 bytes, get this response. Returns whether there is room for it.

        `revision`: that computed it. `own_id`: bytes of its own id, and where they begin. `stored_s`: Unix time.
        `expires_s`: of the clock of sessions. Raises ValueError: the digest has another length.
        """

    def find_copy(
        self,
        model: str,
        tenant: str,
        key: bytes,
        path: str,
        headers: Sequence[tuple[str, bytes]],
        body: bytes,
        now_s: float,
        unix_s: float,
    ) -> tuple[str, bytes, float] | None:
        """What a request gets at this time, as the lane looks it up: revision, body and age in seconds; None: Python
        decides. `tenant`: its pseudonym. `key`: its sticky key. `body`: as its server would get it."""

    def drop_copy(self, digest: bytes) -> None:
        """No further request gets the copy of this digest."""

    @property
    def copied_bytes(self) -> int:
        """What copies hold, as their sizes were given."""

    def take(self) -> LaneCounts:
        """What was counted since the last call."""

@final
class LaneCounts:
    @property
    def revisions(self) -> list[RevisionCounts]: ...
    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Responses that are no failure, by URL."""

    @property
    def hand_overs(self) -> list[tuple[str, str, int]]:
        """Connections that went to Python, by model ("": not known) and reason."""

    @property
    def charges(self) -> list[TenantCharge]: ...
    @property
    def used_copies(self) -> list[bytes]:
        """Digests of copies that requests got."""

@final
class TenantCharge:
    """What requests of one tenant, key, model, revision and hour came to."""

    @property
    def tenant(self) -> str: ...
    @property
    def key(self) -> str:
        """The id of the API key."""

    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def hour(self) -> int: ...
    @property
    def admitted(self) -> int:
        """Requests that took from the tenant's limits, and ended in this lane."""

    @property
    def requests(self) -> int:
        """Those of them that are charged."""

    @property
    def usage(self) -> tuple[int, int, int]:
        """Input, output and cached tokens."""

    @property
    def cost_nano(self) -> int: ...
    @property
    def estimated(self) -> int:
        """Responses whose servers reported no usage."""

    @property
    def hits(self) -> tuple[int, tuple[int, int], Saved]:
        """Copies of kept responses among these requests: how many, the input and output tokens that they took from
        limits, and what they did not cost."""

Saved = tuple[tuple[int, int, int], int]
"""Input, output and cached tokens, and billionths of the currency, that copies of kept responses did not cost."""
Times = tuple[list[int], float]
"""Counts by bucket, empty without any, and the sum of seconds."""

@final
class RevisionCounts:
    @property
    def route(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def requests(self) -> int:
        """First attempts."""

    @property
    def answered(self) -> int:
        """Attempts to which an endpoint responded well."""

    @property
    def ok(self) -> int: ...
    @property
    def left(self) -> int: ...
    @property
    def clients(self) -> list[str]:
        """Of the last of these attempts."""

    @property
    def seconds(self) -> Times: ...
    @property
    def ttft(self) -> Times: ...
    @property
    def hits(self) -> int:
        """Requests that got copies of kept responses."""

    @property
    def saved(self) -> Saved: ...
    @property
    def prompt_bytes(self) -> tuple[int, int]:
        """Bytes of prompts that their endpoints had seen, and of those that they had not."""

@final
class LogEntry:
    """A request that this lane ended, for its line in the access log and for its spans."""

    @property
    def is_logged(self) -> bool: ...
    @property
    def is_traced(self) -> bool: ...
    @property
    def id(self) -> str: ...
    @property
    def request_id(self) -> str:
        """The client's own, where it sent a sane one."""

    @property
    def waited_s(self) -> float:
        """Until it was sent to an endpoint."""

    @property
    def owner(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def client_request_id(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def upstream(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def ended_s(self) -> float:
        """Unix time."""

    @property
    def seconds(self) -> float: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def tokens(self) -> tuple[int, int] | None: ...
    @property
    def is_estimated(self) -> bool:
        """Whether the tokens are."""

    @property
    def tenant(self) -> str:
        """Empty without one; so is `key`."""

    @property
    def key(self) -> str: ...
    @property
    def is_hit(self) -> bool:
        """It got a copy of a kept response, and went to no endpoint."""

@final
class RecountedHit:
    """The copy of a kept response that a request got. `chosen`: the revision that it would have gone to."""

    @property
    def digest(self) -> bytes: ...
    @property
    def revision(self) -> str:
        """That computed it."""

    @property
    def chosen(self) -> str: ...
    @property
    def saved(self) -> Saved: ...
    @property
    def found_s(self) -> float:
        """When the lane looked it up, on Python's clock."""

@final
class Recount:
    """A request that this lane ended, with what it made of it, so that Python counts it again."""

    @property
    def owner(self) -> str: ...
    @property
    def request(self) -> bytes: ...
    @property
    def response(self) -> bytes: ...
    @property
    def request_id(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def salt(self) -> str: ...
    @property
    def weights(self) -> list[tuple[str, int]]: ...
    @property
    def key(self) -> bytes: ...
    @property
    def client(self) -> str: ...
    @property
    def own(self) -> str: ...
    @property
    def stratum(self) -> str: ...
    @property
    def sent(self) -> bytes: ...
    @property
    def paid(self) -> Paid | None:
        """None without a tenant."""

    @property
    def hit(self) -> RecountedHit | None:
        """None: an endpoint answered."""

    @property
    def prompt(self) -> RecountedPrompt | None:
        """None: it had no part in the choice of an endpoint."""

@final
class RecountedPrompt:
    """A prompt, and the choice of its endpoint."""

    @property
    def hashes(self) -> bytes:
        """Of all blocks, 16 bytes each."""

    @property
    def size(self) -> int: ...
    @property
    def is_cached(self) -> bool:
        """Whether its endpoint had most of it."""

    @property
    def pods(self) -> list[tuple[str, int, int, int]]:
        """The endpoints among which it was chosen: URL, load, and bytes that it had of the prompt and that waited
        there. None where there was one alone."""

    @property
    def url(self) -> str:
        """The endpoint that got it."""

@final
class Paid:
    """What a tenant paid for a request. `table`: the publication of tenants by which it was found."""

    @property
    def tenant(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def table(self) -> int: ...
    @property
    def prompt_tokens(self) -> int | None:
        """As the head of the response has them."""

    @property
    def reserved(self) -> tuple[int, int]:
        """Input and output tokens."""

    @property
    def usage(self) -> tuple[int, int, int]:
        """Input, output and cached tokens."""

    @property
    def is_estimated(self) -> bool: ...
    @property
    def cost_nano(self) -> int: ...

@final
class Begun:
    """A request that this lane sent to an endpoint, and that Python goes on with."""

    @property
    def id(self) -> str: ...
    @property
    def endpoint(self) -> tuple[str, str, str, str]:
        """Route, model, revision and URL."""

    @property
    def ages_s(self) -> tuple[float, float]:
        """Seconds since it came, and since it was sent."""

    @property
    def is_traced(self) -> bool:
        """Whether its endpoint was told that its spans are recorded, by the parent `id[:16]`."""

    @property
    def was_idle(self) -> bool:
        """Whether its connection to the endpoint had waited for it."""

    @property
    def owner(self) -> str:
        """Whose place among the requests in flight it has."""

    def detach(self) -> int | None:
        """The descriptor of that connection, which is the caller's from here on; None: none could be opened."""

    def take_received(self) -> bytes:
        """What came of its response."""

    def take_unsent(self) -> bytes:
        """The rest of it that was not sent."""

    def take_place(self) -> bool:
        """Whether it has a place among the requests in flight, which is the caller's from here on."""

    def take_reservation(self, tenant: str) -> tuple[Reservation | None, LimitHeaders] | None:
        """What it took from the limits of this tenant, which the caller settles; None: nothing. Its expected cost is no
        longer counted. Without a reservation it was counted with other gateways, by its id."""

    @property
    def was_cached(self) -> bool | None:
        """Whether its endpoint had most of its prompt; None: that had no part in the choice."""

    def take_prefill(self) -> Prefill | None:
        """Its prompt at its endpoint, which is the caller's from here on; None: it has none."""

    def counted(self) -> None:
        """It no longer counts as in flight in this lane."""

    def end(self) -> None:
        """Gives back what it still has."""

def is_good_response(body: bytes) -> bool:
    """Whether a whole response is good for certain: where this is true, `wire.responses.find_failures` finds none."""

def is_varied_text(text: bytes) -> bool:
    """Whether a text has no loop at its end for certain: where this is true, `wire.responses.loops` is false."""

def http_date(unix_s: int) -> str:
    """A time as the header `Date` has it."""
