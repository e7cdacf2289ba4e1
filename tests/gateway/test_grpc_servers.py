"""gRPC from clients to real servers of classic models: every datatype, exact weights on one channel, a drain, TLS."""

import asyncio
import contextlib
import signal
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy
import pytest
import yaml
from grpc import aio

from devcluster.certificates import Authority
from devcluster.ports import reserve_port
from slipway_predict.http.bodies.infer_message import CONTENTS
from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from slipway_predict.tensors import NUMPY, Tensor, from_bytes, to_bytes
from tests.predict import onnx_models
from tests.predict.conftest import PREDICT
from tests.server.process import ServerProcess

from .grpc_gateway import INFER, STREAM, echo, grpc_gateway, infer
from .harness import drop, upstream
from .test_process import gateway as gateway_process
from .test_tls import installed, trusting

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KINDS = [kind for kind in NUMPY if kind != "BF16"]  # which onnxruntime does not take beside texts
LEFT, RIGHT = "aaaaaaaaaa", "bbbbbbbbbb"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    root = tmp_path_factory.mktemp("models")
    onnx_models.identity(root / "identity", tuple(KINDS))
    with (
        ServerProcess(root / "identity", *PREDICT) as left,
        ServerProcess(root / "identity", *PREDICT[:-3], "v2", "--model-revision", RIGHT) as right,
    ):
        yield left.wait_ready(), right.wait_ready()


def routes(path: Path, servers: tuple[ServerProcess, ServerProcess], weight: int) -> str:
    backends = [
        {"revision": RIGHT, "version": "v2", "weight": weight, "endpoints": [servers[1].url]},
        {"revision": LEFT, "version": "v1", "weight": 100 - weight, "endpoints": [servers[0].url]},
    ]
    path.write_text(yaml.safe_dump({"models": {"m": {"salt": "1", "backends": backends}}}))
    return str(path)


@pytest.fixture
async def port(servers: tuple[ServerProcess, ServerProcess], tmp_path: Path) -> AsyncIterator[int]:
    port = reserve_port()
    flags = ("--routes", routes(tmp_path / "routes.yaml", servers, 30), f"--grpc-port={port}")
    async with gateway_process(*flags):
        yield port


def example(kind: str) -> Tensor:
    if kind == "BYTES":
        items = numpy.empty(2, object)
        items[:] = ["ä".encode(), b""]
        return Tensor("x_BYTES", kind, items.reshape(1, 2))
    return Tensor(f"x_{kind}", kind, numpy.array([[0, 1]]).astype(NUMPY[kind]))


def request(*, typed: bool = False, version: str = "") -> Any:
    """One row of every datatype; FP16 has no typed form, and a message has one form alone."""
    message = ModelInferRequest(model_name="m", model_version=version, id="7")
    for kind in KINDS:
        tensor = example(kind)
        message.inputs.add(name=tensor.name, datatype=kind, shape=[1, 2])
        if typed and kind in CONTENTS:
            getattr(message.inputs[-1].contents, CONTENTS[kind]).extend(tensor.array.reshape(-1).tolist())
        else:
            message.raw_input_contents.append(to_bytes(tensor))
    return message


def infers(channel: aio.Channel, path: str = INFER) -> Any:
    kinds = {"request_serializer": ModelInferRequest.SerializeToString}
    return channel.unary_unary(path, **kinds, response_deserializer=ModelInferResponse.FromString)


async def test_every_datatype_comes_back_and_a_missing_input_is_named(port: int) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await infers(channel)(request())
        assert (answer.id, [one.datatype for one in answer.outputs]) == ("7", KINDS)
        for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
            found = from_bytes(one.name, one.datatype, one.shape, raw)
            assert found.array.tolist() == example(one.datatype).array.tolist()
        short = request()
        del short.inputs[-1], short.raw_input_contents[-1]
        with pytest.raises(aio.AioRpcError) as raised:
            await infers(channel)(short)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'x_BYTES' is missing" in str(raised.value.details())
        with pytest.raises(aio.AioRpcError, match="13 inputs and 1 raw_input_contents"):
            await infers(channel)(request(typed=True))


async def test_one_channel_gets_exactly_the_weights(port: int) -> None:
    """By L4 all calls of a channel would go to one pod."""
    message, versions = request(), Counter[str]()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for number in range(100):
            answer = await infers(channel)(message, metadata=(("x-session-id", f"s{number}"),))
            versions[answer.model_version] += 1
        again = Counter[str]()
        for number in range(100):
            answer = await infers(channel)(message, metadata=(("x-session-id", f"s{number}"),))
            again[answer.model_version] += 1
    assert versions == again and 15 <= versions["v2"] <= 45, "a hash of the ids decides"


async def test_a_version_pins_and_a_stream_answers_in_order(port: int) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for version in ("v1", "v2", LEFT):
            answer = await infers(channel)(request(version=version))
            assert answer.model_version == {LEFT: "v1"}.get(version, version)
        call = channel.stream_stream(STREAM)()
        for number in range(20):
            message = request()
            message.id = str(number)
            await call.write(message.SerializeToString())
        await call.done_writing()
        answers = [answer async for answer in call]
        # Field 2 is the ModelInferResponse; its tag and its length are before it.
        found = [ModelInferResponse.FromString(answer[answer.index(b"\x0a\x01m") :]).id for answer in answers]
        assert found == [str(number) for number in range(20)]


async def test_a_gateway_that_drains_loses_no_call(
    servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    """Behind a Service, new connections go to other gateways as soon as one is to end; those that are open stay."""
    ports = [reserve_port(), reserve_port()]
    flags = ("--routes", routes(tmp_path / "routes.yaml", servers, 50), "--drain-delay=0.2", "--grpc-connection-age=1")
    message, answered, ended, chosen = request(), 0, False, ports[0]
    async with (
        gateway_process(*flags, f"--grpc-port={ports[0]}") as first,
        gateway_process(*flags, f"--grpc-port={ports[1]}"),
        relay(lambda: chosen) as service,
        aio.insecure_channel(f"127.0.0.1:{service}") as channel,
    ):

        async def load() -> None:
            nonlocal answered
            while not ended:
                await infers(channel)(message)
                answered += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(load())
            await asyncio.sleep(0.5)
            before, chosen = answered, ports[1]
            first.process.send_signal(signal.SIGTERM)
            assert await first.ended() == 0
            at_the_end = answered
            assert not [line for line in first.log if "cut" in line["msg"]]
            await asyncio.sleep(0.5)
            ended = True
        assert 0 < before <= at_the_end < answered, "calls go on at the other gateway"


@contextlib.asynccontextmanager
async def relay(port: Callable[[], int]) -> AsyncIterator[int]:
    """A port whose new connections go to `port`."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port())
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def test_tls_has_the_certificate_of_the_api_and_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "authority")
    for name in ("first", "second"):
        authority.issue(name, name, hosts=["127.0.0.1"])
    files = installed(authority, "first", tmp_path)
    monkeypatch.setattr("slipway_gateway.serving.tls.LOOK_AGAIN_S", 0.0)
    settings = {"tls_cert_file": files.certificate, "tls_private_key_file": files.private_key}
    trusted = grpc.ssl_channel_credentials(authority.path("ca.crt").read_bytes())
    async with upstream(echo) as server, grpc_gateway(**settings) as made:
        made.gate.route((LEFT, 100, [server.url]))
        for name in ("first", "second"):
            installed(authority, name, tmp_path)
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with aio.secure_channel(f"127.0.0.1:{made.server.port}", trusted, options=options) as channel:
                call = channel.unary_unary(INFER)(infer())
                assert await call == infer()
            assert await subject(made.server.port, trusting(authority)) == name
        with pytest.raises(aio.AioRpcError):
            await made.call("ServerLive", timeout=2.0)


async def subject(port: int, trusted: ssl.SSLContext) -> str:
    """The name in the certificate that the port shows."""
    trusted.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    try:
        found = dict(part for one in writer.get_extra_info("peercert")["subject"] for part in one)
        return str(found["commonName"])
    finally:
        await drop(writer)


async def test_tls_1_3_alone_is_taken_and_another_protocol_is_not(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    authority.issue("first", "first", hosts=["127.0.0.1"])
    files = installed(authority, "first", tmp_path)
    settings = {"tls_cert_file": files.certificate, "tls_private_key_file": files.private_key}
    trusted = grpc.ssl_channel_credentials(authority.path("ca.crt").read_bytes())
    async with upstream(echo) as server, grpc_gateway(**settings, tls_min_version="1.3") as made:
        made.gate.route((LEFT, 100, [server.url]))
        address = f"127.0.0.1:{made.server.port}"
        async with aio.secure_channel(address, trusted) as channel:
            assert await channel.unary_unary(INFER)(infer()) == infer()
        old = trusting(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # SSLError, or the connection is gone already
            await subject(made.server.port, old)
        # Without h2 in the handshake there is no HTTP/2, and so no gRPC.
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port, ssl=trusting(authority))
        assert b"named no HTTP/2" in await reader.read()
        writer.close()


@pytest.fixture(scope="module")
def triton_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own: the client's messages have the names of the server's."""
    folder = tmp_path_factory.mktemp("triton")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "-q", "tritonclient[grpc]==2.73.0"], check=True)
    return folder / "bin/python"


@pytest.mark.extended
@pytest.mark.timeout(900)
async def test_an_unmodified_tritonclient_passes(port: int, triton_python: Path) -> None:
    program = Path(__file__).parent / "triton_grpc_client.py"
    done = await asyncio.create_subprocess_exec(
        triton_python,
        program,
        f"127.0.0.1:{port}",
        ",".join(KINDS),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(done.communicate(), 300)
    assert output.decode().strip().endswith("passed"), output.decode()
