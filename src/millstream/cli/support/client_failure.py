"""The failure of a command for an error of Millstream's clients."""

from __future__ import annotations

import re
from typing import Final

from millstream.cli.support.failure import CommandError, ExitCode, no_connection

#: How the admin client begins a sentence about one topic.
_TOPIC: Final = re.compile(r"\w+ing topic '([^']+)':")
_GROUP_MISSING: Final = "GROUP_ID_NOT_FOUND"
_GROUP_ACTIVE: Final = "NON_EMPTY_GROUP"


def client_failure(
    error: Exception, servers: str, topic: str | None = None, group: str | None = None
) -> CommandError:
    """Return the failure. A missing topic or group is `topic` or `group`, if these are given."""
    from millstream.client.error import (
        BrokerError,
        TimedOut,
        UsageError,
        is_existing,
        is_missing,
        is_unreachable,
    )
    from millstream.client.error_page import page_of

    sentence = _sentence(error)
    if isinstance(error, UsageError):
        return CommandError(ExitCode.USAGE, sentence)
    if isinstance(error, TimedOut):
        return no_connection(servers, sentence)
    if not isinstance(error, BrokerError):
        return CommandError(ExitCode.FAILED, sentence)
    if is_unreachable(error.code):
        return no_connection(servers, sentence)
    if error.name == _GROUP_MISSING:
        return missing_group(group) if group else CommandError(ExitCode.NOT_FOUND, sentence)
    if error.name == _GROUP_ACTIVE and group is not None:
        return active_group(group)
    if is_missing(error.code):
        name = topic or _named_topic(error)
        return missing_topic(name) if name else CommandError(ExitCode.NOT_FOUND, sentence)
    if is_existing(error.code):
        return CommandError(ExitCode.EXISTS, f"topic {topic or _named_topic(error)!r} exists.")
    return CommandError(ExitCode.FAILED, sentence, page_of(error.code))


def _named_topic(error: Exception) -> str | None:
    """Return the topic that the client's sentence names."""
    match = _TOPIC.match(str(error))
    return None if match is None else match[1]


def missing_topic(topic: str) -> CommandError:
    """Return the failure for a topic that does not exist."""
    return CommandError(
        ExitCode.NOT_FOUND,
        f"topic {topic!r} does not exist: `millstream topic list` shows all topics.",
    )


def missing_group(group: str) -> CommandError:
    """Return the failure for a group that does not exist."""
    return CommandError(
        ExitCode.NOT_FOUND,
        f"group {group!r} does not exist: `millstream group list` shows all groups.",
    )


def active_group(group: str, state: str = "", members: int = 0) -> CommandError:
    """Return the failure of an operation that needs a group without members."""
    noun = "member" if members == 1 else "members"
    known = f" ({state}, {members} {noun})" if state else ""
    return CommandError(
        ExitCode.FAILED,
        f"group {group!r} is active{known}: stop its members first;"
        f" `millstream group members {group}` shows them.",
    )


def _sentence(error: Exception) -> str:
    """Return a client's sentence as it follows `error:`, without librdkafka's prefixes."""
    text = str(error)
    for prefix in ("Broker: ", "Local: "):
        text = text.replace(f": {prefix}", ": ")
    return text[:1].lower() + text[1:]
