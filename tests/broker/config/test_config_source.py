"""Settings from TOML, the environment and flags: syntax, mistakes, hints."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.config.config_source import (
    ConfigError,
    from_environment,
    from_file,
    from_flags,
)
from millstream.env.disk import SystemDisk

NAMES = ["log.segment.bytes", "max.connections", "max.connections.per.ip", "listeners", "a.b"]


def read(tmp_path: Path, text: str | bytes) -> dict[str, str]:
    path = tmp_path / "millstream.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {name: given.text for name, given in from_file(path, SystemDisk(), NAMES).items()}


@pytest.mark.parametrize(
    "text",
    [
        "log.segment.bytes = 5",
        "[log.segment]\nbytes = 5",
        "[log]\nsegment.bytes = 5",
        '"log.segment.bytes" = 5',
        '[log]\n"segment.bytes" = "5"',
    ],
)
def test_a_name_may_be_dotted_nested_or_quoted(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {"log.segment.bytes": "5"}


def test_values_of_every_kind(tmp_path: Path) -> None:
    text = '"a.b" = true\nlisteners = ["A://h:1", "B://h:2"]\n"log.segment.bytes" = 0.5'
    assert read(tmp_path, text) == {
        "a.b": "true",
        "listeners": "A://h:1,B://h:2",
        "log.segment.bytes": "0.5",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.segment.byte = 5", r"millstream\.toml: log\.segment\.byte: .* log\.segment\.bytes\?"),
        ("log.segment.bytes = 5\n[log]", "is not valid TOML"),
        ("max.connections = 1\nmax.connections.per.ip = 1", "has to be quoted"),
        ('"a.b" = 1\na.b = 2', "a.b is given twice"),
        ('"a.b" = 2024-01-01', "expected a string, a number"),
        ('"a.b" = [[1]]', "expected a string, a number"),
        (b"a.b = '\xff'", "is not UTF-8"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(tmp_path, text)


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: No such file"):
        from_file(tmp_path / "gone.toml", SystemDisk(), NAMES)


def test_unrelated_variables_are_ignored() -> None:
    environment = {
        "PATH": "/bin",
        "MILLSTREAM_CONFIG": "/etc/millstream.toml",
        "MILLSTREAM_SERVICE_HOST": "10.0.0.1",
        "MILLSTREAM_SERVICE_PORT_KAFKA": "9092",
        "MILLSTREAM_PORT": "tcp://10.0.0.1:9092",
        "MILLSTREAM_PORT_9092_TCP_ADDR": "10.0.0.1",
        "MILLSTREAM_MAX_CONNECTIONS_PER_IP": "7",
    }
    given = from_environment(environment, NAMES)
    assert {name: value.text for name, value in given.items()} == {"max.connections.per.ip": "7"}


def test_unknown_variables_and_flags_are_rejected_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"MILLSTREAM_MAX_CONECTIONS: .* MILLSTREAM_MAX_CON"):
        from_environment({"MILLSTREAM_MAX_CONECTIONS": "7"}, NAMES)
    with pytest.raises(ConfigError, match=r"command line: listener: .* listeners\?"):
        from_flags({"listener": "x"}, NAMES)
