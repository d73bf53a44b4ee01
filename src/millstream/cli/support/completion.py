"""Completion of topic, group and broker names in bash, zsh and fish.

A shell waits for the names, so each request has a short timeout, and no failure prints anything.
The connection comes from the options that are already on the command line, the environment or the
profile. An argument is completed if it is declared with one of these functions:

    typer.Argument(metavar="TOPIC", autocompletion=complete_topics)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import typer

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError
from millstream.model.bootstrap import SERVERS_DEFAULT

TIMEOUT_S: Final = 1.0
#: Topics that only brokers use. They are completed once the user types an underscore.
_INTERNAL: Final = "__"


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names start with `incomplete`."""
    shown = _found(ctx, _topics)
    if not incomplete.startswith("_"):
        shown = [name for name in shown if not name.startswith(_INTERNAL)]
    return _starting(shown, incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names start with `incomplete`."""
    return _starting(_found(ctx, _groups), incomplete)


def complete_brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of live brokers that start with `incomplete`."""
    return _starting(_found(ctx, _brokers), incomplete)


def complete_profiles(incomplete: str) -> list[str]:
    """Return the profiles whose names start with `incomplete`."""
    from millstream.cli.support.profile import Profiles

    try:
        return _starting(Profiles.load().names(), incomplete)
    except CommandError:
        return []


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _found(ctx: typer.Context, names: Callable[[Connection], list[str]]) -> list[str]:
    from millstream.client.error import MillstreamError

    given: dict[str, Any] = ctx.params
    try:
        connection = Connection(
            given.get("servers") or SERVERS_DEFAULT, given.get("properties"), TIMEOUT_S
        )
        return names(connection)
    except (CommandError, MillstreamError):
        # An error message would appear in the middle of the line that the user types.
        return []


def _topics(connection: Connection) -> list[str]:
    with connection.open_admin() as admin:
        return admin.list_topics(internal=True)


def _groups(connection: Connection) -> list[str]:
    from millstream.client.admin import IncompleteListing

    with connection.open_admin() as admin:
        try:
            found = admin.list_groups()
        except IncompleteListing as error:
            found = error.groups
    return [group.group_id for group in found]


def _brokers(connection: Connection) -> list[str]:
    admin, described = connection.reach()
    admin.close()
    return [str(broker.node_id) for broker in described.brokers]
