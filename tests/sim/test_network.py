"""The simulated network behaves like the real one, and shows faults as TCP does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from millstream.env.network import Network, SystemNetwork
from millstream.wire.api import ApiKey
from sim.loop import Process, VirtualLoop
from sim.network import RESET_S, Wire


class Recorder(asyncio.BufferedProtocol):
    """Records the bytes that arrive, and echoes them if asked to."""

    def __init__(self, *, echoes: bool = False) -> None:
        self._echoes = echoes
        self._buffer = bytearray(7)
        self.received = bytearray()
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.received += self._buffer[:count]
        if self._echoes:
            assert self.transport is not None
            self.transport.write(bytes(self._buffer[:count]))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(error)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event covers all conditions
            await asyncio.sleep(0.001)


# Both networks


async def _echo(network: Network, host: str) -> None:
    servers: list[Recorder] = []

    def accept() -> Recorder:
        servers.append(Recorder(echoes=True))
        return servers[-1]

    listener = await network.bind(host, 0, accept)
    _, port = listener.address()
    assert port > 0
    await listener.start()
    client = Recorder()
    transport = await network.connect(host, port, lambda: client)
    transport.writelines([b"one ", bytearray(b"two "), memoryview(b"three")])
    await _until(lambda: client.received == b"one two three")

    transport.pause_reading()
    transport.write(b"!" * 100)
    await _until(lambda: len(servers[0].received) == 113)
    assert len(client.received) == 13
    transport.resume_reading()
    await _until(lambda: len(client.received) == 113)

    transport.close()
    assert await client.lost is None
    assert await servers[0].lost is None
    await listener.close()
    with pytest.raises(ConnectionRefusedError):
        await network.connect(host, port, Recorder)


async def _abort(network: Network, host: str) -> None:
    servers: list[Recorder] = []

    def accept() -> Recorder:
        servers.append(Recorder())
        return servers[-1]

    listener = await network.bind(host, 0, accept)
    await listener.start()
    client = Recorder()
    transport = await network.connect(host, listener.address()[1], lambda: client)
    await _until(lambda: servers)
    transport.abort()
    assert await client.lost is None
    await servers[0].lost
    await listener.close()


@pytest.mark.parametrize("scenario", [_echo, _abort])
def test_contract_of_the_system_network(scenario: Any) -> None:
    asyncio.run(scenario(SystemNetwork(), "127.0.0.1"))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scenario", [_echo, _abort])
def test_contract_of_the_simulated_network(scenario: Any, loop: VirtualLoop, seed: int) -> None:
    process = loop.process("p")
    network = Wire(loop, Random(seed)).network("here", process)
    loop.run_until_complete(process.spawn(scenario(network, "here")))
    assert not loop.errors


# The simulated network


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


class Pair:
    """A connection from host `a` to host `b`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.wire = Wire(loop, Random(1))
        self.processes: dict[str, Process] = {host: loop.process(host) for host in "ab"}
        self.ends: dict[str, Recorder] = {}

    async def connect(self) -> None:
        networks = {host: self.wire.network(host, each) for host, each in self.processes.items()}

        def accept() -> Recorder:
            self.ends["b"] = Recorder()
            return self.ends["b"]

        listener = await networks["b"].bind("b", 9, accept)
        await listener.start()
        client = self.ends["a"] = Recorder()
        await networks["a"].connect("b", 9, lambda: client)
        await _until(lambda: "b" in self.ends)

    def send(self, source: str, data: bytes) -> None:
        transport = self.ends[source].transport
        assert transport is not None
        transport.write(data)


def run(loop: VirtualLoop, scenario: Callable[[Pair], Any]) -> None:
    pair = Pair(loop)

    async def main() -> None:
        await pair.connect()
        await scenario(pair)

    loop.run_until_complete(main())
    assert not loop.errors


def test_a_cut_delays_bytes_and_keeps_their_order(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.wire.cut("a", "b")
        pair.send("a", b"1")
        pair.send("b", b"back")
        await asyncio.sleep(RESET_S / 2)
        assert pair.ends["b"].received == b""
        assert pair.ends["a"].received == b"back"
        pair.send("a", b"2")
        pair.wire.heal("a", "b")
        pair.send("a", b"3")
        await _until(lambda: pair.ends["b"].received == b"123")

    run(loop, scenario)


def test_a_long_cut_times_out_the_sender(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.wire.cut("a", "b")
        pair.send("a", b"lost")
        assert isinstance(await pair.ends["a"].lost, TimeoutError)
        assert not pair.ends["b"].lost.done()
        pair.wire.heal("a", "b")
        pair.send("b", b"anybody there?")
        assert isinstance(await pair.ends["b"].lost, ConnectionResetError)
        assert pair.ends["b"].received == b""

    run(loop, scenario)


def test_lost_acknowledgements_time_out_the_sender(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.wire.cut("b", "a")
        pair.send("a", b"arrives")
        await _until(lambda: pair.ends["b"].received == b"arrives")
        assert isinstance(await pair.ends["a"].lost, TimeoutError)

    run(loop, scenario)


def test_a_dead_process_resets_its_connections(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.processes["b"].kill()
        pair.wire.end_process(pair.processes["b"])
        assert isinstance(await pair.ends["a"].lost, ConnectionResetError)

    run(loop, scenario)


def test_a_machine_without_power_sends_nothing(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.wire.power_off("b")
        await asyncio.sleep(2 * RESET_S)
        assert not pair.ends["a"].lost.done()
        pair.send("a", b"x")
        await asyncio.sleep(RESET_S / 2)
        assert not pair.ends["a"].lost.done()
        pair.wire.power_on("b")
        pair.send("a", b"y")
        assert isinstance(await pair.ends["a"].lost, ConnectionResetError)

    run(loop, scenario)


def test_a_held_process_receives_bytes_after_its_release(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        pair.processes["b"].hold()
        pair.send("a", b"early")
        await asyncio.sleep(1)
        assert pair.ends["b"].received == b""
        pair.processes["b"].release()
        await _until(lambda: pair.ends["b"].received == b"early")

    run(loop, scenario)


def test_a_reader_that_pauses_also_pauses_the_writer(loop: VirtualLoop) -> None:
    async def scenario(pair: Pair) -> None:
        writer, reader = pair.ends["a"], pair.ends["b"]
        calls: list[str] = []
        writer.pause_writing = lambda: calls.append("pause")  # type: ignore[method-assign]
        writer.resume_writing = lambda: calls.append("resume")  # type: ignore[method-assign]
        assert reader.transport is not None
        reader.transport.pause_reading()
        pair.send("a", bytes(100_000))
        await asyncio.sleep(1)
        assert calls == ["pause"]
        reader.transport.resume_reading()
        await _until(lambda: calls == ["pause", "resume"])
        assert len(reader.received) == 100_000

    run(loop, scenario)


def test_a_repeated_request_arrives_twice_and_its_second_response_is_discarded(
    loop: VirtualLoop,
) -> None:
    received: list[Recorder] = []

    async def scenario() -> None:
        wire = Wire(loop, Random(1))
        processes = {host: loop.process(host) for host in "ab"}

        def accept() -> Recorder:
            received.append(Recorder(echoes=True))
            return received[-1]

        listener = await wire.network("b", processes["b"]).bind("b", 9, accept)
        await listener.start()
        client = Recorder()
        transport = await wire.network("a", processes["a"]).connect("b", 9, lambda: client)
        request = _frame(ApiKey.FETCH)
        transport.write(request)
        transport.write(_frame(ApiKey.OFFSET_COMMIT))
        await _until(lambda: len(client.received) == 2 * len(request))
        await wire.repeat("a", "b", loop.process("between"), hold_s=0.1)
        assert [bytes(each.received) for each in received[1:]] == [request]
        assert len(client.received) == 2 * len(request)

    loop.run_until_complete(loop.process("test").spawn(scenario()))


def _frame(api: ApiKey) -> bytes:
    return (6).to_bytes(4) + api.to_bytes(2) + bytes(4)
