"""Each client writes a record to a topic and reads it back. It raises if it cannot log in."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaException, Producer

import millstream
from harness.leftover import collecting
from harness.tool.java import CACHE
from kafka_tools.runner import ToolRunner
from sasl_clients.login import OAUTH, Login

with warnings.catch_warnings():
    # kafka-python reads its schemas in a deprecated way.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider

FOLDER = Path(__file__).resolve().parent
SECONDS_MAX = 60.0
LOGIN_SECONDS_MAX = 5.0


class LoginError(Exception):
    """The client could not log in."""


def properties(bootstrap: str, login: Login) -> dict[str, Any]:
    """Return librdkafka's properties."""
    found: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
    }
    if login.ca:
        found["ssl.ca.location"] = login.ca
    if login.mechanism != OAUTH:
        return found | {"sasl.username": login.user, "sasl.password": login.password}
    return found | {"oauth_cb": lambda _: (login.password, time.time() + 300)}


def confluent(bootstrap: str, login: Login, topic: str) -> bytes | None:
    common = properties(bootstrap, login) | {"log_level": 0}
    producer = Producer(common)
    try:
        producer.list_topics(timeout=LOGIN_SECONDS_MAX)
    except KafkaException as error:
        raise LoginError(str(error)) from error
    producer.produce(topic, b"v")
    assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer(common | {"group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert isinstance(value, bytes)
        return value


def aio(bootstrap: str, login: Login, topic: str) -> bytes | None:
    class Provider(AioTokenProvider):
        async def token(self) -> str:
            return login.password

    options: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": login.protocol,
        "sasl_mechanism": login.mechanism,
    }
    if login.ca:
        options["ssl_context"] = ssl.create_default_context(cafile=login.ca)
    if login.mechanism == OAUTH:
        options["sasl_oauth_token_provider"] = Provider()
    else:
        options |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    with collecting("aiokafka"):
        failure = asyncio.run(_aio_failure(options, topic))
    if failure:
        raise LoginError(failure)

    async def read() -> bytes | None:
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=f"g-{topic}", auto_offset_reset="earliest", **options
        ) as consumer:
            found = await asyncio.wait_for(consumer.getone(), SECONDS_MAX)
            value: bytes | None = found.value
            return value

    return asyncio.run(read())


async def _aio_failure(options: dict[str, Any], topic: str) -> str:
    """Write a record. Return the error of the producer; empty if there is none."""
    producer = aiokafka.AIOKafkaProducer(**options)
    try:
        await producer.start()
        await producer.send_and_wait(topic, b"v")
    except aiokafka.errors.KafkaError as error:
        return str(error) or type(error).__name__
    finally:
        await producer.stop()
    return ""


def kafka_python(bootstrap: str, login: Login, topic: str) -> bytes | None:
    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return login.password

    options: dict[str, Any] = {
        "bootstrap_servers": bootstrap.split(","),
        "security_protocol": login.protocol,
        "sasl_mechanism": login.mechanism,
    }
    if login.ca:
        options["ssl_cafile"] = login.ca
    if login.mechanism == OAUTH:
        options["sasl_oauth_token_provider"] = Provider()
    else:
        options |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    with collecting("kafka"):
        failure = _kafka_python_failure(options, topic)
    if failure:
        raise LoginError(failure)
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(SECONDS_MAX * 1000),
        **options,
    )
    with closing(consumer):
        value: bytes | None = next(iter(consumer)).value
        return value


def _kafka_python_failure(options: dict[str, Any], topic: str) -> str:
    """Write a record. Return the error of the producer; empty if there is none."""
    limit_ms = int(LOGIN_SECONDS_MAX * 1000)
    try:
        producer = kafka.KafkaProducer(
            **options, max_block_ms=limit_ms, bootstrap_timeout_ms=limit_ms
        )
        with closing(producer):
            producer.send(topic, b"v").get(SECONDS_MAX)
    except kafka.errors.KafkaError as error:
        return str(error) or type(error).__name__
    return ""


def kcat(bootstrap: str, login: Login, topic: str) -> bytes | None:
    given = properties(bootstrap, login)
    del given["bootstrap.servers"]
    if given.pop("oauth_cb", None) is not None:
        given["sasl.oauthbearer.method"] = "oidc"
        given["sasl.oauthbearer.token.endpoint.url"] = login.token_url
        given["sasl.oauthbearer.client.id"] = login.user
        given["sasl.oauthbearer.client.secret"] = "any"
    with tempfile.TemporaryDirectory() as folder:
        return _kcat(bootstrap, given, topic, _new_librdkafka(Path(folder)))


def _new_librdkafka(folder: Path) -> dict[str, str]:
    """Return variables with which kcat uses the librdkafka of confluent-kafka.

    Debian's has version 2.0, whose logins by SCRAM fail, and which cannot fetch OAuth tokens."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob(
        "confluent_kafka.libs/librdkafka-*.so.1"
    )
    (folder / "librdkafka.so.1").symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def _kcat(
    bootstrap: str, given: Mapping[str, Any], topic: str, environment: Mapping[str, str]
) -> bytes:
    flags = [part for name, value in given.items() for part in ("-X", f"{name}={value}")]
    try:
        _run(["kcat", "-b", bootstrap, *flags, "-L", "-m", "5"], b"", environment)
        _run(["kcat", "-b", bootstrap, *flags, "-P", "-t", topic], b"v", environment)
    except subprocess.CalledProcessError as error:
        raise LoginError(str(error.stderr)) from error
    read = ["-C", "-t", topic, "-o", "beginning", "-c", "1", "-e", "-q"]
    return _run(["kcat", "-b", bootstrap, *flags, *read], b"", environment).strip()


def kafkajs(bootstrap: str, login: Login, topic: str) -> bytes | None:
    environment = {**os.environ, "NODE_PATH": str(CACHE / "node" / "node_modules")}
    arguments = [bootstrap, topic, login.mechanism.lower(), login.user, login.password, login.ca]
    command = ["node", str(FOLDER / "roundtrip.js"), *arguments]
    try:
        return _run(command, environment=environment).strip()
    except subprocess.CalledProcessError as error:
        raise LoginError(str(error.stderr)) from error


def java_properties(login: Login, extension: str = "") -> str:
    """Return the properties of Java clients, for a file."""
    name = {"PLAIN": "plain.Plain", OAUTH: "oauthbearer.OAuthBearer"}.get(
        login.mechanism, "scram.Scram"
    )
    module = f"org.apache.kafka.common.security.{name}LoginModule"
    options = f'username="{login.user}" password="{login.password}"{extension}'
    lines = [f"security.protocol={login.protocol}", f"sasl.mechanism={login.mechanism}"]
    if login.ca:
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={login.ca}"]
    if login.mechanism == OAUTH:
        options = ""
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        lines += [
            f"sasl.login.callback.handler.class={handler}",
            f"sasl.oauthbearer.token.endpoint.url={login.token_url}",
            f"sasl.oauthbearer.client.credentials.client.id={login.user}",
            "sasl.oauthbearer.client.credentials.client.secret=any",
        ]
    return "\n".join([*lines, f"sasl.jaas.config={module} required {options};", ""])


class ToolError(Exception):
    """One of Kafka's tools failed; the text is its output."""


def java_tool(
    tools: ToolRunner,
    folder: Path,
    tool: str,
    login: Login,
    *arguments: str,
    given: str = "",
    extension: str = "",
) -> str:
    """Run one of Kafka's tools with the properties of a login, and return its output."""
    path = folder / "client.properties"
    path.write_text(java_properties(login, extension))
    concrete = [part.replace("{config}", str(path)) for part in arguments]
    done = tools.run(tool, *concrete, stdin=given, seconds_max=SECONDS_MAX)
    if done.exit:
        raise ToolError(done.text())
    return done.out


def millstream_client(bootstrap: str, login: Login, topic: str) -> bytes | None:
    options: dict[str, Any] = {
        "security_protocol": login.protocol,
        "sasl_mechanism": login.mechanism,
    }
    if login.ca:
        options["ssl_cafile"] = login.ca
    if login.mechanism == OAUTH:
        options["config"] = {"oauth_cb": lambda _: (login.password, time.time() + 300)}
    else:
        options |= {"sasl_username": login.user, "sasl_password": login.password}
    try:
        with millstream.Admin(bootstrap, timeout=LOGIN_SECONDS_MAX, **options) as admin:
            admin.create_topic(topic, if_missing=True)
    except millstream.MillstreamError as error:
        raise LoginError(str(error)) from error
    with millstream.Producer(bootstrap, **options) as producer:
        producer.send_and_wait(topic, b"v")
    with millstream.Consumer(
        bootstrap, topics=[topic], group_id=f"g-{topic}", auto_offset_reset="earliest", **options
    ) as consumer:
        value: Any = next(iter(consumer)).value
        return value if isinstance(value, bytes) else str(value).encode()


def _run(
    command: list[str], given: bytes = b"", environment: Mapping[str, str] | None = None
) -> bytes:
    done = subprocess.run(
        command, input=given, capture_output=True, check=True, timeout=SECONDS_MAX, env=environment
    )
    return done.stdout


CLIENTS: dict[str, Callable[[str, Login, str], bytes | None]] = {
    "confluent": confluent,
    "aiokafka": aio,
    "kafka-python": kafka_python,
    "kcat": kcat,
    "kafkajs": kafkajs,
    "millstream": millstream_client,
}
