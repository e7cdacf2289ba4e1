"""What engines report as usage, in streams and bodies in any pieces, from the gateway's reader into a ledger.

A ledger in SQLite takes what each response is charged. It must take all of it, and its totals must be their sum.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from slipway_gateway.ledger.store import LedgerStore
from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.estimate import Estimate
from slipway_gateway.quotas.meter import Charge, Meter
from slipway_gateway.quotas.prices import Price
from slipway_gateway.wire.sse import EventAligner

from .tally import Tally

TENANT = "stranger"
NUMBERS = (
    *("0", "1", "7", "-1", "1.5", "1e9", "1e400", "true", "null", '"7"', "[]", "{}", "NaN"),
    *(str(2**31), str(2**40 - 1), str(2**40), str(2**53 + 1), str(2**63), str(2**64), "9" * 400),
)
NAMES = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens", "usage")
REQUESTS = (
    b'{"model":"m","prompt":"a","max_tokens":16}',
    b'{"model":"m","prompt":["a","b"],"n":3,"best_of":8}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a"}}]}]}',
    b'{"n":9999999999,"prompt":[[1,2]]}',
    b"",
)
TEXTS = (
    *(
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b": +\n\n",
        b": +\ndata: a\n\n",
        b":\n",
        b": x\n\n",
        b"data: [DONE]\n\n",
    ),
    *(b"id: 5\n", b"\r\n\r\n", b"\r\r", b"\n", b'data: {"usage":', b"event: response.completed\n", b"}" * 9),
)
PRICES = (0, 1, 15_000_000, 9_000_000_000)  # the last one: of a currency with large numbers
EACH = 25  # responses after which the ledger is read


@st.composite
def _usage(draw: st.DrawFn) -> bytes:
    pairs = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NUMBERS)), max_size=4))
    cached = draw(
        st.sampled_from(("", ',"prompt_tokens_details":{"cached_tokens":' + draw(st.sampled_from(NUMBERS)) + "}"))
    )
    inside = ",".join(f'"{name}":{number}' for name, number in pairs)
    return f'"usage":{{{inside or chr(34) + "a" + chr(34) + ":1"}{cached}}}'.encode()


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[bytes], bool, bool, Price]:
    """A request's body; its response in pieces; whether that is a stream, and repeats the request; a price."""
    events = st.one_of(
        st.sampled_from(TEXTS), _usage().map(lambda usage: b"data: {" + usage + b"}\n\n"), st.binary(max_size=9)
    )
    sent = b"".join(draw(st.lists(events, max_size=12))) * draw(st.sampled_from((1, 1, 1, 40)))
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(sent)), strict=True)]
    price = Price("*", draw(st.sampled_from(PRICES)), draw(st.sampled_from(PRICES)))
    return draw(st.sampled_from(REQUESTS)), pieces, draw(st.booleans()), draw(st.booleans()), price


class _Ledger:
    """A new database, and what it must have."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slipway-fuzz-")
        self._store = LedgerStore(f"sqlite:///{Path(self._folder.name) / 'ledger.db'}")
        self.number = self.nano = 0

    def add(self, charge: Charge) -> None:
        added = self._store.apply([charge])
        assert added.get(TENANT, 0) == charge.cost_nano, f"{added} was added in place of {charge.cost_nano}"
        self.nano += charge.cost_nano
        if self.number % EACH == 0:
            spent = self._store.spent(1)[TENANT].month_nano
            assert spent == self.nano, f"the ledger has {spent} in place of {self.nano}"


ledger = cache(_Ledger)


def check_response(drawn: tuple[bytes, list[bytes], bool, bool, Price], tally: Tally) -> None:
    request, pieces, is_stream, echoes, price = drawn
    kept, bound = ledger(), UsageBound(request, [16])
    kept.number += 1
    meter = Meter(
        str(kept.number),
        TENANT,
        "k",
        estimate=Estimate(3, 16),
        bound=bound,
        price=price,
        model="m",
        hour=1,
        echoes=echoes,
    )
    meter.begin("r1", {})
    aligner = EventAligner()
    for piece in pieces:
        if is_stream:
            meter.add_events(aligner.feed(piece))
        else:
            meter.add_body(piece)
    usage, most = meter.usage, bound.clamp(meter.usage, 1 << 40)
    assert usage == most and min(usage.input_tokens, usage.output_tokens, usage.cached_tokens) >= 0, usage
    charge: Any = meter.charge()
    kept.add(charge)
    tally.ended("estimated" if charge.estimated else "implausible" if meter.implausible else "as reported")
