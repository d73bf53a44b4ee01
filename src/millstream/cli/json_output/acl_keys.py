"""The JSON output of `millstream acl`."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, one, rows
from millstream.cli.json_output.topic_keys import RESULT

_ACL: Final = {
    "principal": "The principal.",
    "permission": "`allow` or `deny`.",
    "operation": "The operation.",
    "resource_type": "`topic`, `group`, `cluster`, `transactional-id` or another type.",
    "resource_name": "The name of the pattern.",
    "pattern_type": "`literal` or `prefixed`.",
    "host": "The address of clients, or `*`.",
}
_CHANGE: Final = {"acl": "The ACL in words.", **RESULT}

ACL: Final[dict[str, JsonOutput]] = {
    "acl create": rows(_CHANGE),
    "acl list": rows(_ACL),
    "acl delete": rows(_CHANGE),
    "acl grant": rows(_CHANGE),
    "acl revoke": rows(_CHANGE),
    "acl learn": one(
        {
            "learning": "Whether all brokers learn.",
            "omitted": "Operations that did not fit into the brokers' tables.",
            "acls": "The smallest set of ACLs that clients needed.",
            **{f"acls[].{name}": meaning for name, meaning in _ACL.items()},
            "acls[].missing": "Whether the present ACLs deny an operation that this ACL allows.",
            "denied": "The operations that the present ACLs would deny.",
            "denied[].principal": "The principal.",
            "denied[].operation": "The operation.",
            "denied[].resource_type": "The type of the resource.",
            "denied[].resource_name": "The name of the resource.",
        }
    ),
}
