"""Hostile input before a client is authenticated: no login succeeds, and other clients are
served."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import struct
import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from attack.attacker import STEP_S_MAX, Line, attack, connect
from attack.conftest import Victim
from harness.process.broker_process import wait_until
from harness.process.secure_process import PASSWORDS, SecureProcess
from millstream.broker.handlers import ENTRIES
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.schema import Message, codec

SASL, TLS = "SASL_PLAINTEXT", "SASL_SSL"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGIN_APIS = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
COUNTS = [
    pytest.param(2_000, id="quick"),
    pytest.param(100_000, id="whole", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
]


def frame(request: Message, version: int) -> bytes:
    segments = frame_request(
        request.api_key, version, 1, "attacker", codec(type(request), version).encode(request)
    )
    return b"".join(bytes(each) for each in segments)


HANDSHAKES = {
    mechanism: frame(SaslHandshakeRequest(mechanism=mechanism), 1) for mechanism in MECHANISMS
}


async def _login(line: Line, mechanism: str, *messages: bytes) -> SaslAuthenticateResponse | None:
    """Send the messages of a login; return the last response, or None if there was none."""
    line.send(HANDSHAKES[mechanism])
    if await line.receive_frame() is None:
        return None
    response = None
    for message in messages:
        line.send(frame(SaslAuthenticateRequest(auth_bytes=message), 2))
        body = await line.receive_frame()
        if body is None:
            return None
        view = memoryview(body)
        _, position = parse_response_header(view, ApiKey.SASL_AUTHENTICATE, 2)
        response = codec(SaslAuthenticateResponse, 2).decode(view, position)
        if response.error_code != ErrorCode.NONE:
            return response
    return response


def _random_bytes(random_: random.Random) -> bytes:
    return random_.randbytes(random_.choice((0, 1, 3, 4, 5, 16, 100, 1000)))


def _mutated(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        position = random_.randrange(len(changed))
        kind = random_.randrange(3)
        if kind == 0:
            changed[position] = random_.randrange(256)
        elif kind == 1:
            del changed[position:]
        else:
            changed[position:position] = random_.randbytes(random_.randint(1, 50))
        if not changed:
            break
    return bytes(changed)


def _client_first(user: str, random_: random.Random) -> bytes:
    return f"n,,n={user},r={random_.randbytes(12).hex()}".encode()


async def _strike_sasl(line: Line, random_: random.Random) -> None:
    """Try one hostile login; it must not succeed."""
    mechanism = random_.choice(MECHANISMS)
    kind = random_.randrange(8)
    if kind == 0:
        line.send(_random_bytes(random_))
        line.end_input()
        await line.until_closed()
        return
    if kind == 1:
        size = random_.choice((-1, 0, 2**31 - 1, 10**9, 524_289, 6_000_000))
        line.send(struct.pack(">i", size) + _random_bytes(random_))
        line.end_input()
        await line.until_closed()
        return
    if kind == 2:
        line.send(_mutated(HANDSHAKES[mechanism], random_))
        line.end_input()
        await line.until_closed()
        return
    if kind == 3:
        messages = [_random_bytes(random_), _random_bytes(random_)]
    elif kind == 4:
        messages = [b"\0admin\0" + _random_bytes(random_), b"\0admin\0admin"]
    elif kind == 5:
        first = _client_first("admin", random_)
        messages = [first, _mutated(b"c=biws,r=abc,p=" + b"QUJD" * 8, random_)]
    elif kind == 6:
        messages = [_mutated(_client_first("alice", random_), random_), b""]
    else:
        messages = [b"\0" * random_.randint(1, 100_000)]
    response = await _login(line, mechanism, *messages)
    # A first message of SCRAM may be well-formed by chance and get a challenge. It is no login.
    if response is not None and response.error_code == ErrorCode.NONE:
        assert mechanism != "PLAIN"
        assert response.auth_bytes.startswith(b"r=")


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_logins_fail(victim: Victim, count: int) -> None:
    attack(victim.broker.ports[SASL], count, _strike_sasl)


async def _strike_raw_sasl(line: Line, random_: random.Random) -> None:
    """Try one hostile login without request headers; it must not succeed."""
    mechanism = random_.choice(MECHANISMS)
    line.send(frame(SaslHandshakeRequest(mechanism=mechanism), 0))
    if await line.receive_frame() is None:
        return
    tokens = (
        _random_bytes(random_) or b"?",
        b"\0admin\0" + _random_bytes(random_),
        _client_first("admin", random_),
        _mutated(_client_first("alice", random_), random_) or b"?",
        # Requests count as messages of the mechanism.
        frame(ApiVersionsRequest(), 0)[4:],
        frame(SaslAuthenticateRequest(auth_bytes=b"\0admin\0admin"), 2)[4:],
    )
    for token in random_.sample(tokens, 2):
        line.send_frame(token)
        response = await line.receive_frame()
        if response is None:
            return
        # A challenge is no login.
        assert mechanism != "PLAIN"
        assert response.startswith(b"r=")


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_logins_without_headers_fail(victim: Victim, count: int) -> None:
    attack(victim.broker.ports[SASL], count, _strike_raw_sasl)


async def _strike_tls(line: Line, random_: random.Random) -> None:
    """One hostile start of TLS: records that are malformed, cut short, oversized or no TLS."""
    hello = bytes.fromhex("16030100c8010000c40303") + random_.randbytes(193)
    data = random_.choice(
        (
            _random_bytes(random_),
            _mutated(hello, random_),
            hello[: random_.randrange(len(hello))],
            b"\x16\x03\x01\xff\xff" + random_.randbytes(20_000),
            b"\x17\x03\x03\x40\x00" + random_.randbytes(16_384),
            b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
            frame(ApiVersionsRequest(), 0),
        )
    )
    line.send(data)
    line.end_input()
    await line.until_closed()


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_tls_records_fail(victim: Victim, count: int) -> None:
    attack(victim.broker.ports[TLS], count, _strike_tls)


def test_no_request_is_served_before_a_login(victim: Victim) -> None:
    """Every API and version: the connection is closed without a response."""
    requests = [
        (entry, version)
        for entry in ENTRIES
        if entry.request.api_key not in LOGIN_APIS
        for version in range(entry.versions[0], entry.versions[1] + 1)
    ]

    async def send_all() -> None:
        for number, (entry, version) in enumerate(requests):
            line = await connect(victim.broker.ports[SASL], number)
            try:
                # The body does not matter: the broker must not read it.
                key = struct.pack(">hhih", entry.request.api_key, version, 1, -1)
                line.send_frame(key + b"\0" * 32)
                assert await line.until_closed() == b"", (entry.request, version)
            finally:
                line.close()

    asyncio.run(send_all())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_request_is_served_after_a_failed_login(victim: Victim, mechanism: str) -> None:
    """Every API: the request comes with the login, so that the broker has it before it knows that
    the login fails, and before it closes the connection."""
    password = PASSWORDS["admin"][:-1]
    wrong = f"\0admin\0{password}" if mechanism == "PLAIN" else "n,,n=admin,r=,p=x"
    login = HANDSHAKES[mechanism] + frame(SaslAuthenticateRequest(auth_bytes=wrong.encode()), 2)
    entries = [entry for entry in ENTRIES if entry.request.api_key not in LOGIN_APIS]

    async def send(number: int) -> None:
        request = entries[number].request
        line = await connect(victim.broker.ports[SASL], number)
        try:
            header = struct.pack(">hhih", request.api_key, entries[number].versions[1], 77, -1)
            body = header + b"\0" * 32
            line.send(login + struct.pack(">i", len(body)) + body)
            handshake = await line.receive_frame()
            assert handshake is not None
            # The login's response may be lost when the connection is reset.
            failed = await line.receive_frame()
            if failed is not None:
                assert struct.unpack_from(">i", failed)[0] != 77, request
            assert await line.until_closed() == b"", request
        finally:
            line.close()

    async def send_all() -> None:
        await asyncio.gather(*(send(number) for number in range(len(entries))))

    asyncio.run(send_all())


def test_a_request_in_the_middle_of_a_login_is_not_served(victim: Victim) -> None:
    async def interrupt() -> None:
        line = await connect(victim.broker.ports[SASL], 1)
        first = _client_first("admin", random.Random(1))
        response = await _login(line, "SCRAM-SHA-256", first)
        assert response is not None
        assert response.error_code == ErrorCode.NONE
        line.send_frame(struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + b"\xff\xff\xff\xff")
        assert await line.until_closed() == b""
        line.close()

    asyncio.run(interrupt())


def test_guessing_passwords_is_slow_for_its_address_only(victim: Victim) -> None:
    """One address tries many passwords. A user at another address logs in meanwhile."""
    guesses = 200
    others = 0

    async def guess() -> tuple[int, float]:
        failed = 0
        begin = time.monotonic()
        for number in range(guesses):
            if time.monotonic() - begin > STEP_S_MAX:
                break
            try:
                line = await connect(victim.broker.ports[SASL], 0, source="127.9.9.9")
                response = await _login(line, "PLAIN", b"\0admin\0guess-%d" % number)
                line.close()
            except ConnectionError:
                continue
            assert response is None or response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            failed += response is not None
        return failed, time.monotonic() - begin

    async def log_in() -> None:
        nonlocal others
        for number in range(10):
            line = await connect(victim.broker.ports[SASL], number)
            response = await _login(line, "PLAIN", b"\0alice\0" + PASSWORDS["alice"].encode())
            line.close()
            assert response is not None
            assert response.error_code == ErrorCode.NONE
            others += 1

    async def both() -> tuple[int, float]:
        found, _ = await asyncio.gather(guess(), log_in())
        return found

    failed, seconds = asyncio.run(both())
    assert others == 10
    assert failed >= 1
    # Each guess that got a response was delayed.
    assert seconds >= failed * 0.015


def test_an_unknown_user_gets_the_same_challenge_as_a_known_one(victim: Victim) -> None:
    """Both challenges have the same form, iterations and length of the nonce, and a salt like those
    that Kafka's tools make. Both failures have the same text."""

    async def ask(user: str) -> tuple[list[str], str | None]:
        line = await connect(victim.broker.ports[SASL], hash(user) % 1000)
        line.send(HANDSHAKES["SCRAM-SHA-256"])
        await line.receive_frame()
        line.close()
        line = await connect(victim.broker.ports[SASL], hash(user) % 1000)
        first = await _login(line, "SCRAM-SHA-256", _client_first(user, random.Random(1)))
        assert first is not None
        challenge = first.auth_bytes.decode()
        nonce = challenge.split(",")[0]
        line.send(
            frame(
                SaslAuthenticateRequest(auth_bytes=f"c=biws,{nonce},p={'A' * 43}=".encode()),
                2,
            )
        )
        body = await line.receive_frame()
        assert body is not None
        view = memoryview(body)
        _, position = parse_response_header(view, ApiKey.SASL_AUTHENTICATE, 2)
        last = codec(SaslAuthenticateResponse, 2).decode(view, position)
        line.close()
        assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        nonce, salt, iterations = challenge.split(",")
        # A random number as text, without leading zeros: its length varies.
        assert re.fullmatch("[0-9a-z]{20,26}", base64.b64decode(salt.removeprefix("s=")).decode())
        return [f"{nonce[:2]} {len(nonce)}", salt[:2], iterations, salt], last.error_message

    (*known, known_salt), text = asyncio.run(ask("alice"))
    (*unknown, unknown_salt), other_text = asyncio.run(ask("nobody"))
    assert known == unknown
    assert text == other_text
    # The salt of an unknown user is the same each time, like that of a known one.
    assert asyncio.run(ask("nobody"))[0] == [*unknown, unknown_salt]
    assert asyncio.run(ask("alice"))[0] == [*known, known_salt]


@pytest.mark.parametrize("protocol", [SASL, TLS])
@pytest.mark.parametrize("count", [500, pytest.param(4000, marks=pytest.mark.soak)])
def test_stalled_connections_end_and_other_clients_are_served(
    victim: Victim, protocol: str, count: int
) -> None:
    """Many connections send nothing, or the beginning of a message. The broker closes them."""

    async def stall() -> None:
        lines = [await connect(victim.broker.ports[protocol], number) for number in range(count)]
        for number, line in enumerate(lines):
            if number % 2:
                line.send(b"\x16\x03\x01"[: 1 + number % 3] if protocol == TLS else b"\0\0")
        # A client with a password is served all the time.
        assert await asyncio.to_thread(victim.topics) == set()
        closed = await asyncio.gather(*(line.until_closed() for line in lines))
        assert len(closed) == count
        for line in lines:
            line.close()

    asyncio.run(stall())


def test_a_client_that_is_connected_continues_during_an_attack(
    broker: SecureProcess, victim: Victim
) -> None:
    properties = broker.properties(TLS)
    admin = AdminClient(properties)
    producer = Producer({**properties, "linger.ms": 0, "message.timeout.ms": 30_000})
    errors: list[object] = []

    async def produce() -> int:
        sent = 0
        for number in range(200):
            producer.produce("during", f"{number}", on_delivery=lambda e, _: e and errors.append(e))
            sent += 1
            await asyncio.to_thread(producer.poll, 0.01)
        return sent

    async def strike() -> None:
        gate = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with gate:
                try:
                    line = await connect(broker.ports[TLS], number)
                    await _strike_tls(line, random.Random(number))
                    line.close()
                except ConnectionError:
                    pass

        await asyncio.gather(*(one(number) for number in range(500)))

    async def both() -> int:
        sent, _ = await asyncio.gather(produce(), strike())
        return sent

    assert asyncio.run(both()) == 200
    assert producer.flush(30) == 0
    assert errors == []
    _delete_topic(admin, "during", victim)


def _delete_topic(admin: AdminClient, topic: str, victim: Victim) -> None:
    try:
        admin.delete_topics([topic])[topic].result(30)
    except KafkaException as error:
        pytest.fail(f"{topic} could not be deleted: {error}")
    wait_until(lambda: victim.topics() == set(), f"{topic} to be deleted")
