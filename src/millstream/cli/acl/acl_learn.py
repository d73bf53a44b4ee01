"""`millstream acl learn`: the ACLs that the observed traffic needs, and who would break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.acl import acl_option as option
from millstream.cli.acl.acl_change import create_and_report
from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.option import YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.acl import Operation, ResourceType, label
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.model.error import ErrorCode
from millstream.model.principal import ANONYMOUS
from millstream.security.acl.suggestion import Need, Suggestion, smallest_acls
from millstream.wire.messages.describe_needed_access import (
    DescribeNeededAccessRequest,
    DescribeNeededAccessResponse,
)

if TYPE_CHECKING:
    from millstream.client.admin import Acl

_ANONYMOUS: Final = str(ANONYMOUS)


@guarded
def learn(
    merge_prefixes: Annotated[
        bool,
        typer.Option(
            "--merge-prefixes",
            help="Merge names with a common prefix into one prefixed ACL.",
        ),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Create the missing ACLs after a confirmation.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show the smallest set of ACLs that clients needed, and who would break without them.

    The brokers collect this with authorizer.mode=learn, in which they deny nothing. --apply creates
    no ACLs for User:ANONYMOUS, which is every client without a login."""
    responses = _ask_all(servers, properties, timeout)
    needs = _needs(responses)
    suggestions = smallest_acls(needs, merge_prefixes=merge_prefixes)
    omitted = sum(each.omitted for each in responses)
    missing = [each for each in suggestions if each.is_missing]
    if apply:
        # Anybody who reaches a listener without authentication is this principal. The brokers are
        # too while they use such a listener, so it may have needed the rights of a broker.
        named = [each for each in missing if each.principal != _ANONYMOUS]
        if len(named) < len(missing):
            note(
                f"No ACLs are created for {_ANONYMOUS}: they would hold for everybody who reaches a"
                " listener without authentication. Use `millstream acl create` if you want that."
            )
        missing = named
    if apply and missing:
        _apply(missing, servers, properties, timeout, is_confirmed=yes, as_json=as_json)
        return
    if as_json:
        print_json(_json(responses, suggestions, needs))
        return
    _print(suggestions, needs)
    if not all(each.is_learning for each in responses):
        note("Not all brokers learn: set authorizer.mode=learn on every broker.")
    if omitted:
        note(f"{omitted} operations did not fit into the brokers' tables: the list is incomplete.")


def _ask_all(
    servers: str, properties: list[str] | None, timeout: float
) -> list[DescribeNeededAccessResponse]:
    """Ask every broker of the cluster. Raises CommandError."""
    responses = []
    with connected_cluster(servers, properties, timeout) as cluster:
        for node_id in cluster.broker_ids:
            response = cluster.broker_connection(node_id).call(
                DescribeNeededAccessRequest(), DescribeNeededAccessResponse
            )
            if response.error_code == ErrorCode.SECURITY_DISABLED:
                raise CommandError(
                    ExitCode.FAILED,
                    f"broker {node_id} has no authorizer: set authorizer.class.name=millstream and"
                    " authorizer.mode=learn.",
                )
            if response.error_code:
                raise CommandError(
                    ExitCode.FAILED,
                    f"broker {node_id}: {response.error_message or response.error_code}.",
                )
            responses.append(response)
    return responses


def _needs(responses: Sequence[DescribeNeededAccessResponse]) -> list[Need]:
    """Return the needs of all brokers, each once."""
    found: dict[tuple[str, int, int, str], bool] = {}
    for response in responses:
        for each in response.needs:
            key = (each.principal, each.operation, each.resource_type, each.resource_name)
            found[key] = found.get(key, False) or each.is_denied
    return [
        Need(principal, Operation(operation), ResourceType(resource_type), name, is_denied)
        for (principal, operation, resource_type, name), is_denied in sorted(found.items())
    ]


def _acl(suggestion: Suggestion) -> Acl:
    from millstream.client.admin import Acl

    return Acl(
        principal=suggestion.principal,
        operation=label(suggestion.operation),
        resource_type=label(suggestion.resource_type),
        resource_name=suggestion.name,
        pattern_type=label(suggestion.pattern_type),
    )


def _apply(
    missing: Sequence[Suggestion],
    servers: str,
    properties: list[str] | None,
    timeout: float,
    *,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    acls = [_acl(each) for each in missing]
    if not is_confirmed:
        for acl in acls:
            note(option.sentence(acl))
        confirm(f"Create {counted(len(acls), 'ACL')}?", "creating ACLs", "nothing was created.")
    create_and_report(Connection(servers, properties, timeout), acls, as_json=as_json)


def _json(
    responses: Sequence[DescribeNeededAccessResponse],
    suggestions: Sequence[Suggestion],
    needs: Sequence[Need],
) -> dict[str, Any]:
    return {
        "learning": all(each.is_learning for each in responses),
        "omitted": sum(each.omitted for each in responses),
        "acls": [{**option.row(_acl(each)), "missing": each.is_missing} for each in suggestions],
        "denied": [
            {
                "principal": need.principal,
                "operation": label(need.operation),
                "resource_type": label(need.resource_type),
                "resource_name": need.name,
            }
            for need in needs
            if need.is_denied
        ],
    }


def _print(suggestions: Sequence[Suggestion], needs: Sequence[Need]) -> None:
    if not suggestions:
        note("The brokers have observed no request of a client that needs a right.")
        return
    rows = []
    for each in suggestions:
        cells = list(option.row(_acl(each)).values())
        rows.append([*cells, "missing" if each.is_missing else "present"])
    print_table([*option.HEADINGS, "STATUS"], rows)
    denied = sorted({need.principal for need in needs if need.is_denied})
    if denied:
        note(f"With the present ACLs, requests of these would be denied: {', '.join(denied)}.")
    else:
        note("The present ACLs allow everything that was observed.")
