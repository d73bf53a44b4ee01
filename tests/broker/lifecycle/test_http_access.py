"""The token and the TLS of the HTTP server, from settings."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from harness.in_process.server_set import HOST, ServerSet
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.lifecycle.http_access import _token_source, http_guard
from millstream.broker.lifecycle.listener_tls import BrokerTls
from millstream.env.disk import SystemDisk
from millstream.net.rejection import Rejection


def config(file: Path | None = None, token: str | None = None) -> BrokerConfig:
    flags = {} if file is None else {"http.bearer.token.file": str(file)}
    variables = {} if token is None else {"MILLSTREAM_HTTP_BEARER_TOKEN": token}
    return BrokerConfig.load(flags=flags, environment=variables)


def test_tokens(tmp_path: Path) -> None:
    assert _token_source(config(), SystemDisk())() is None
    assert _token_source(config(token="abc"), SystemDisk())() == "abc"
    file = tmp_path / "token"
    file.write_text("abc\n")
    read = _token_source(config(file), SystemDisk())
    assert read() == "abc"
    file.write_text("def")
    assert read() == "def"


def test_a_wrong_token_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"http.listen": f"{HOST}:0", "http.bearer.token": "of-the-broker"}
    with ServerSet(tmp_path, count=1, **settings) as brokers:
        server = brokers.servers[1]
        assert server._http is not None
        request = urllib.request.Request(
            f"http://{HOST}:{server._http.port}/metrics", headers={"Authorization": "Bearer wrong"}
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request)
        assert server._gate.rejections.counts[Rejection.AUTHENTICATION] == 1
    assert "rejected an HTTP request from 127.0.0.1" in caplog.text
    assert "Bearer" not in caplog.text


def test_a_file_that_disappears_admits_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("abc")
    read = _token_source(config(file), SystemDisk())
    file.unlink()
    assert read() == ""
    assert "http.bearer.token.file cannot be read" in caplog.text
    file.write_text("abc")
    assert read() == "abc"


def test_problems(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        http_guard(config(file), BrokerTls(SystemDisk()), SystemDisk())
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        http_guard(config(file), BrokerTls(SystemDisk()), SystemDisk())
    with pytest.raises(ConfigError, match="is empty"):
        http_guard(config(token=""), BrokerTls(SystemDisk()), SystemDisk())
    with pytest.raises(ConfigError, match="not both"):
        config(file, "abc")


@pytest.mark.parametrize(
    ("flags", "is_served"),
    [
        ({}, True),
        ({"listeners": "PLAINTEXT://:1,SASL_PLAINTEXT://:2"}, True),
        ({"listeners": "SASL_PLAINTEXT://:1"}, False),
        ({"authorizer.class.name": "millstream"}, False),
        ({"authorizer.class.name": "millstream", "authorizer.mode": "learn"}, True),
    ],
)
def test_a_secure_broker_serves_nothing_to_strangers(
    flags: dict[str, str], is_served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig.load(flags=flags)
    stranger = make_mocked_request("GET", "/metrics")
    guard = http_guard(config, BrokerTls(SystemDisk()), SystemDisk())
    assert guard.admits(stranger) is is_served
    assert ("serves only /healthz" in caplog.text) is not is_served


def test_a_secure_broker_with_a_token() -> None:
    variables = {
        "MILLSTREAM_HTTP_BEARER_TOKEN": "abc",
        "MILLSTREAM_LISTENERS": "SASL_PLAINTEXT://:1",
    }
    config = BrokerConfig.load(environment=variables)
    guard = http_guard(config, BrokerTls(SystemDisk()), SystemDisk())
    assert not guard.admits(make_mocked_request("GET", "/metrics"))
    headers = {"Authorization": "Bearer abc"}
    assert guard.admits(make_mocked_request("GET", "/metrics", headers=headers))
