"""The options that name principals and resources, and the ACLs that they select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from millstream.cli.support.completion import complete_groups, complete_topics
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.model.acl import CLUSTER_NAME, WILDCARD, Operation, label, parse_term
from millstream.model.principal import parse_principal

if TYPE_CHECKING:
    from millstream.client.admin import Acl


class StoredPattern(StrEnum):
    """How the name of a new ACL is compared."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class FilterPattern(StrEnum):
    """Which patterns a filter finds."""

    ANY = "any"
    MATCH = "match"
    LITERAL = "literal"
    PREFIXED = "prefixed"


AllowOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-principal",
        metavar="PRINCIPAL",
        help="A principal that is allowed, such as User:alice or User:*. Repeatable.",
    ),
]
DenyOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--deny-principal",
        metavar="PRINCIPAL",
        help="A principal that is denied. Repeatable.",
    ),
]
OperationOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--operation", help="An operation, such as read or Read. Repeatable."),
]
TopicOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--topic", help="A topic. Repeatable.", autocompletion=complete_topics),
]
GroupOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--group", help="A consumer group. Repeatable.", autocompletion=complete_groups),
]
TransactionalIdOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", help="A transactional id. Repeatable."),
]
UserOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--user-principal",
        metavar="PRINCIPAL",
        help="A user, such as User:bob, for whom others create or describe delegation tokens."
        " Repeatable.",
    ),
]
TokenOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--delegation-token", help="The id of a delegation token. Repeatable."),
]
ClusterOption: TypeAlias = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
HostOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--host", help="An address of clients; all addresses without it. Repeatable."),
]


class Resource(NamedTuple):
    """A resource that options name."""

    resource_type: str
    name: str


def resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    users: Sequence[str] | None,
    tokens: Sequence[str] | None,
    cluster: bool,
) -> list[Resource]:
    """Return the resources that options name. Raises CommandError."""
    found = [Resource("topic", name) for name in topics or ()]
    found += [Resource("group", name) for name in groups or ()]
    found += [Resource("transactional-id", name) for name in transactional_ids or ()]
    found += [
        Resource("user", name if name == WILDCARD else check_principal(name))
        for name in users or ()
    ]
    found += [Resource("delegation-token", name) for name in tokens or ()]
    if cluster:
        found.append(Resource("cluster", CLUSTER_NAME))
    return found


def principals(
    allowed: Sequence[str] | None, denied: Sequence[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each principal with its permission. Raises CommandError."""
    for permission, names in (("allow", allowed), ("deny", denied)):
        for name in names or ():
            yield check_principal(name), permission


def check_principal(text: str) -> str:
    """Return a principal in text form. Raises CommandError."""
    try:
        return str(parse_principal(text))
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{text!r} is not {error}.") from None


def operations(names: Sequence[str] | None, default: str) -> list[str]:
    """Return the operations, or the default without any. Raises CommandError."""
    found = []
    for name in names or (default,):
        try:
            found.append(label(parse_term(Operation, name)))
        except ValueError as error:
            raise CommandError(ExitCode.USAGE, f"--operation {name!r}: expected {error}.") from None
    return found


def row(acl: Acl) -> dict[str, Any]:
    """Return an ACL as JSON shows it."""
    return {
        "principal": acl.principal,
        "permission": acl.permission,
        "operation": acl.operation,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "host": acl.host,
    }


#: The headings of a table of ACLs, in the order of `row`.
HEADINGS = ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"]


def sentence(acl: Acl) -> str:
    """Return an ACL as a line of text: `allow User:alice read topic orders`."""
    name = "" if acl.resource_type == "cluster" else f" {acl.resource_name}"
    star = "*" if acl.pattern_type == "prefixed" else ""
    host = "" if acl.host == "*" else f" from {acl.host}"
    return f"{acl.permission} {acl.principal} {acl.operation} {acl.resource_type}{name}{star}{host}"
