"""The socket between the HTTP process and the process of a model: messages of every size, in every cut."""

import asyncio
import random
import resource
import socket
import threading

import pytest

from slipway_predict.process.messages import (
    MAX_DATA_BYTES,
    SIZES,
    BatchError,
    Compute,
    Computed,
    ProtocolError,
    encode,
    from_model,
)
from slipway_predict.process.wire import FIRST_BYTES, HttpWire, MessageBuffer, ModelWire, ServerHungUp

SIZES_OF_DATA = (0, 1, 100, FIRST_BYTES - 100, FIRST_BYTES, FIRST_BYTES + 1, 3 * FIRST_BYTES, 5 << 20)


def fed(incoming, data, step):
    """What `incoming` returns for data that comes in pieces of at most `step` bytes; each fits into the room."""
    at, found = 0, []
    while at < len(data):
        room = incoming.room()
        piece = data[at : at + min(step, len(room))]
        room[: len(piece)] = piece
        at += len(piece)
        if message := incoming.take(len(piece)):
            found.append(message)
    return found


@pytest.mark.parametrize("step", [1000, 65536, 1 << 30])
def test_messages_of_every_size_come_whole_in_pieces_of_every_size(step):
    incoming, draw = MessageBuffer(), random.Random(step)
    for size in SIZES_OF_DATA:
        data = draw.randbytes(size)
        [(head, found)] = fed(incoming, b"".join(encode(Computed([], 0.5), [data])), step)
        assert from_model.decode(head) == Computed([], 0.5) and found == data


def test_bytes_that_come_one_by_one_are_a_message():
    [(head, data)] = fed(MessageBuffer(), b"".join(encode(BatchError("no"), [b"abc"])), 1)
    assert (from_model.decode(head), data) == (BatchError("no"), b"abc")


def test_a_message_stays_as_it_is_when_the_next_one_comes():
    incoming = MessageBuffer()
    [(_, first)] = fed(incoming, b"".join(encode(Computed([], 1.0), [b"first"])), 1 << 20)
    fed(incoming, b"".join(encode(Computed([], 1.0), [b"later"])), 1 << 20)
    assert first == b"first"


def test_a_message_behind_another_one_is_an_error():
    with pytest.raises(ProtocolError, match="second message"):
        fed(MessageBuffer(), 2 * b"".join(encode(Computed([], 1.0))), 1 << 20)


def test_sizes_alone_take_no_memory():
    incoming, before = MessageBuffer(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fed(incoming, SIZES.pack(8 << 20, MAX_DATA_BYTES) + bytes(FIRST_BYTES), 1 << 20) == []
    assert len(incoming.room()) < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    with pytest.raises(ProtocolError, match="bytes"):
        fed(MessageBuffer(), SIZES.pack(8, MAX_DATA_BYTES + 1), 1 << 20)


async def connected():
    http_end, model_end = socket.socketpair()
    _, wire = await asyncio.get_running_loop().create_connection(HttpWire, sock=http_end)
    return wire, model_end


async def test_answers_of_every_size_reach_the_one_who_waits():
    wire, model_end = await connected()

    def model():
        end = ModelWire(model_end)
        for _ in SIZES_OF_DATA:
            message, data = end.receive()
            assert message == Compute([], ["y"])
            end.send(Computed([], 0.25), [bytes(data)[::-1]])
        with pytest.raises(ServerHungUp):
            end.receive()

    thread = threading.Thread(target=model)
    thread.start()
    draw = random.Random(3)
    for size in SIZES_OF_DATA:
        sent = draw.randbytes(size)
        answer, data = await wire.exchange(encode(Compute([], ["y"]), [sent]), 30)
        assert answer == Computed([], 0.25) and bytes(data) == sent[::-1]
    wire.close()
    await asyncio.to_thread(thread.join, 10)
    model_end.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", ConnectionError),
        (SIZES.pack(3, 0) + b"\xc1\xc1\xc1", ProtocolError),
        (SIZES.pack(1 << 31, 0), ProtocolError),
        (SIZES.pack(10, 0) + b"abc", ConnectionError),
    ],
    ids=["hangs up", "no msgpack", "too large", "ends inside"],
)
async def test_what_is_no_answer_is_an_error_and_ends_the_connection(sent, error):
    wire, model_end = await connected()
    with model_end:
        model_end.sendall(sent)
        model_end.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            await wire.exchange(encode(Compute([], [])), 30)
        with pytest.raises(ConnectionError):
            await wire.exchange(encode(Compute([], [])), 30)


async def test_an_answer_to_nothing_ends_the_connection():
    wire, model_end = await connected()
    with model_end:
        model_end.sendall(b"".join(encode(BatchError("unwanted"))))
        assert await asyncio.to_thread(model_end.recv, 1) == b""
        with pytest.raises(ConnectionError):
            await wire.exchange(encode(Compute([], [])), 30)


async def test_no_answer_in_time_is_an_error():
    wire, model_end = await connected()
    with model_end, pytest.raises(TimeoutError):
        await wire.exchange(encode(Compute([], [])), 0.05)
    wire.close()
