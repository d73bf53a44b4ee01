"""The relay on a broker with TLS, users and ACLs, with the rights that the documentation names."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from millstream import Acl, Admin, Consumer, Outbox
from millstream.client.outbox.address import database_at
from millstream.client.outbox.relay import Relay, RelaySettings
from millstream.client.outbox.schema import TABLE_DEFAULT
from millstream.client.outbox.sink import PROGRESS_TOPIC
from millstream.model.acl import label
from millstream.security.acl.role import Role, parse_pattern, rules_of
from millstream.testing.secure_broker import SecureBroker

TOPIC = "orders"


def _rights(user: str) -> list[Acl]:
    """Return `writer` for the topic of the events, and what a relay needs for itself."""
    own = [
        ("topic", PROGRESS_TOPIC, "literal"),
        ("group", f"{TABLE_DEFAULT}-", "prefixed"),
        ("transactional_id", f"{TABLE_DEFAULT}-", "prefixed"),
    ]
    found = [
        (label(rule.operation), label(rule.resource_type), rule.pattern.name, "literal")
        for rule in rules_of(Role.WRITER, parse_pattern(TOPIC))
    ]
    found += [("all", *resource) for resource in own]
    return [
        Acl(
            principal=f"User:{user}",
            operation=operation,
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
        )
        for operation, kind, name, pattern in found
    ]


def test_the_documented_rights_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    database = database_at(f"sqlite:///{path}", TABLE_DEFAULT)
    database.init(None, notify=True)
    with closing(sqlite3.connect(path)) as connection:
        Outbox().write(connection, TOPIC, key="alice", value="2 apples")
        connection.commit()
    with SecureBroker(tmp_path / "broker") as broker:
        servers = broker.bootstrap_servers
        with Admin(servers, **broker.options()) as admin:
            admin.create_topic(TOPIC)
            assert not any(admin.create_acls(_rights("alice")).values())
        said: list[str] = []
        relay = Relay(database, broker.properties("alice"), RelaySettings(drain=True), said.append)
        relay.run()
        assert relay.sent == 1, said
        options = {"auto_offset_reset": "earliest", **broker.options()}
        with Consumer(servers, topics=[TOPIC], **options) as consumer:
            assert next(iter(consumer)).value == b"2 apples"
    assert not any(broker.passwords["alice"] in line for line in said)
