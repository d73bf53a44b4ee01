"""The sources of settings: a TOML file, the environment, the command line.

Returns the text of each setting by name, with its origin for error messages. `broker_config` parses
the texts.

In TOML a name may be written with dots, as nested tables, or quoted; all three are the same:
    log.segment.bytes = 1048576
    [log.segment]
    bytes = 1048576
    "log.segment.bytes" = 1048576
In the environment `log.segment.bytes` is MILLSTREAM_LOG_SEGMENT_BYTES. `ssl.client.auth` of the
listener EXTERNAL is MILLSTREAM_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from millstream.broker.config.listener_setting import (
    PREFIX,
    parse_listener_setting,
    variable_setting,
)
from millstream.env.disk import Disk

ENVIRONMENT_PREFIX: Final = "MILLSTREAM_"
#: Path of the config file; the command line reads it.
CONFIG_FILE_VARIABLE: Final = "MILLSTREAM_CONFIG"
#: Kubernetes sets these for a service named millstream, so they are ignored.
_SERVICE_VARIABLE = re.compile(r"MILLSTREAM_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?)\Z")


class ConfigError(ValueError):
    """A setting that prevents the start; the message has its origin and what is allowed."""


class Given(NamedTuple):
    """The text of a setting and its origin."""

    text: str
    origin: str


def from_file(path: Path, disk: Disk, names: Iterable[str]) -> dict[str, Given]:
    """Return the settings in a TOML file."""
    try:
        tree = tomllib.loads(disk.read(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: is not valid TOML: {error}. A name that is also the beginning of another "
            'one has to be quoted: "max.connections" = 100'
        ) from error
    known = set(names)
    given: dict[str, Given] = {}
    for name, value in _leaves(tree, ""):
        if not _is_known(name, known):
            raise _unknown(f"{path}: {name}", name, known)
        if name in given:
            raise ConfigError(f"{path}: {name} is given twice, in two ways of writing it")
        given[name] = Given(_text(path, name, value), f"{path}: {name}")
    return given


def from_environment(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, Given]:
    """Return the settings in the environment variables."""
    by_variable = {variable_of(name): name for name in names}
    given: dict[str, Given] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        name = by_variable.get(variable) or _listener_setting_of(variable, by_variable)
        if name is not None:
            given[name] = Given(text, f"environment variable {variable}")
        elif not _SERVICE_VARIABLE.match(variable):
            raise _unknown(f"environment variable {variable}", variable, by_variable)
    return given


def check_flags(flags: Iterable[str], sensitive: Iterable[str]) -> None:
    """Reject secrets on the command line: all users of the host can list it. Raises ConfigError."""
    secrets = set(sensitive)
    for name in flags:
        of_listener = parse_listener_setting(name)
        if name in secrets or (of_listener is not None and of_listener.name in secrets):
            raise ConfigError(
                f"command line: {name} is a secret, and other users of this host can see the"
                f" command line: set it in the file, or in the environment variable"
                f" {variable_of(name)}"
            )


def from_flags(flags: Mapping[str, str], names: Iterable[str]) -> dict[str, Given]:
    """Return the settings of the command line, by setting name."""
    known = set(names)
    for name in flags:
        if not _is_known(name, known):
            raise _unknown(f"command line: {name}", name, known)
    return {name: Given(text, f"command line: {name}") for name, text in flags.items()}


def _is_known(name: str, known: set[str]) -> bool:
    of_listener = parse_listener_setting(name)
    return name in known or (of_listener is not None and of_listener.name in known)


def _listener_setting_of(variable: str, by_variable: Mapping[str, str]) -> str | None:
    """Return the setting of one listener that a variable sets; None if it sets none.

    Names of listeners may have underscores, so the longest setting that fits is taken."""
    prefix = variable_of(PREFIX)
    if not variable.startswith(prefix):
        return None
    words = variable.removeprefix(prefix).split("_")
    for count in range(1, len(words)):
        suffix = by_variable.get(ENVIRONMENT_PREFIX + "_".join(words[count:]))
        if suffix is not None:
            return variable_setting("_".join(words[:count]), suffix)
    return None


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _leaves(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ",".join(map(str, value))
    raise ConfigError(
        f"{path}: {name} = {value!r} is not allowed: expected a string, a number, true, false or "
        "an array of them"
    )


def _unknown(place: str, name: str, known: Iterable[str]) -> ConfigError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return ConfigError(f"{place}: there is no such setting{hint}")
