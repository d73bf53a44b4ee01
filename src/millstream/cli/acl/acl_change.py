"""Creates and deletes ACLs for the commands, and reports each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.cli.acl import acl_option as option
from millstream.cli.support.outcome import confirm, report
from millstream.cli.support.terminal import counted, note, print_json

if TYPE_CHECKING:
    from millstream.cli.support.connection import Connection
    from millstream.client.admin import Acl, Admin


def create_and_report(connection: Connection, acls: Sequence[Acl], *, as_json: bool) -> None:
    """Create ACLs. An ACL that exists already is no error."""
    with connection.failing():
        created = connection.open_admin().create_acls(acls)
    outcomes = {
        option.sentence(acl): None if error is None else connection.failure(error)
        for acl, error in created.items()
    }
    report("acl", outcomes, "created", {}, as_json=as_json)


def delete_and_report(
    connection: Connection, admin: Admin, acls: Sequence[Acl], *, is_confirmed: bool, as_json: bool
) -> None:
    """Delete ACLs after a confirmation."""
    from millstream.client.admin import AclFilter

    if not acls:
        if as_json:
            print_json([])
        else:
            note("No ACLs match.")
        return
    if not is_confirmed:
        for acl in acls:
            note(option.sentence(acl))
        confirm(f"Delete {counted(len(acls), 'ACL')}?", "deleting", "nothing was deleted.")
    with connection.failing():
        deleted = admin.delete_acls([AclFilter.exactly(acl) for acl in acls])
    outcomes = {
        option.sentence(acl): None if isinstance(outcome, list) else connection.failure(outcome)
        for acl, outcome in zip(acls, deleted.values(), strict=True)
    }
    report("acl", outcomes, "deleted", {}, as_json=as_json)
