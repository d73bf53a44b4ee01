"""Decisions of ACLs: deny before allow, prefixes, wildcards, hosts and implied operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.metadata.security_record import AclEntry, AclResource
from millstream.model.acl import Operation, PatternType, Permission, ResourceType
from millstream.security.acl.rule_set import Decision, RuleSet
from security.acl.acl_case import Acl, allow, deny, prefixed, records, topic

ALICE = "User:alice"
HOST = "10.0.0.1"
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC = ResourceType.TOPIC


def decide(
    acls: list[Acl],
    operation: Operation = READ,
    name: str = "orders",
    principal: str = ALICE,
    host: str = HOST,
) -> Decision:
    return RuleSet(records(*acls)).decide(principal, host, operation, TOPIC, name)


def test_without_acls_nothing_is_decided() -> None:
    assert decide([]) is Decision.UNDECIDED
    assert decide([allow(ALICE, READ, topic("other"))]) is Decision.UNDECIDED


def test_an_acl_of_another_principal_denies() -> None:
    assert decide([allow("User:bob", READ, topic("orders"))]) is Decision.DENIED


@pytest.mark.parametrize(
    ("resource", "name", "is_allowed"),
    [
        (topic("orders"), "orders", True),
        (topic("orders"), "orders2", False),
        (topic("orders2"), "orders", False),
        (topic("orders"), "Orders", False),
        (topic("*"), "orders", True),
        (prefixed("orders"), "orders", True),
        (prefixed("orders"), "orders2", True),
        (prefixed("orders-"), "orders2", False),
        (prefixed("orders-"), "orders", False),
        (prefixed("ORDERS"), "orders", False),
        (topic("orders*"), "orders2", False),
        (AclResource(ResourceType.GROUP, PatternType.LITERAL, "orders"), "orders", False),
    ],
)
def test_names(resource: AclResource, name: str, is_allowed: bool) -> None:
    found = decide([allow(ALICE, READ, resource)], name=name)
    assert (found is Decision.ALLOWED) == is_allowed


@pytest.mark.parametrize("denied", [topic("orders"), topic("*"), prefixed("o")])
@pytest.mark.parametrize("allowed", [topic("orders"), topic("*"), prefixed("ord")])
def test_deny_goes_before_allow(denied: AclResource, allowed: AclResource) -> None:
    acls = [allow(ALICE, Operation.ALL, allowed), deny("User:*", READ, denied)]
    assert decide(acls) is Decision.DENIED
    assert decide(acls, WRITE) is Decision.ALLOWED


def test_hosts() -> None:
    acls = [allow(ALICE, READ, topic("orders"), host=HOST)]
    assert decide(acls) is Decision.ALLOWED
    assert decide(acls, host="10.0.0.2") is Decision.DENIED
    acls.append(deny(ALICE, READ, topic("orders"), host=HOST))
    assert decide(acls) is Decision.DENIED


def test_the_wildcard_principal_is_everyone() -> None:
    assert decide([allow("User:*", READ, topic("orders"))]) is Decision.ALLOWED
    assert decide([allow("User:al*", READ, topic("orders"))]) is Decision.DENIED


@pytest.mark.parametrize(
    ("given_operation", "wanted", "is_allowed"),
    [
        (READ, DESCRIBE, True),
        (WRITE, DESCRIBE, True),
        (Operation.DELETE, DESCRIBE, True),
        (Operation.ALTER, DESCRIBE, True),
        (Operation.CREATE, DESCRIBE, False),
        (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, True),
        (Operation.ALTER_CONFIGS, DESCRIBE, False),
        (Operation.ALL, Operation.ALTER_CONFIGS, True),
        (DESCRIBE, READ, False),
    ],
)
def test_implied_operations(
    given_operation: Operation, wanted: Operation, is_allowed: bool
) -> None:
    found = decide([allow(ALICE, given_operation, topic("orders"))], wanted)
    assert (found is Decision.ALLOWED) == is_allowed


def test_a_deny_implies_nothing() -> None:
    acls = [allow(ALICE, DESCRIBE, topic("orders")), deny(ALICE, READ, topic("orders"))]
    assert decide(acls, DESCRIBE) is Decision.ALLOWED
    acls = [allow(ALICE, READ, topic("orders")), deny(ALICE, DESCRIBE, topic("orders"))]
    assert decide(acls, DESCRIBE) is Decision.DENIED


def test_put_replaces_and_removes_patterns() -> None:
    rules = RuleSet(records(allow(ALICE, READ, prefixed("or")), allow(ALICE, READ, prefixed("in"))))
    rules.put(prefixed("or"), None)
    assert rules.decide(ALICE, HOST, READ, TOPIC, "orders") is Decision.UNDECIDED
    assert rules.decide(ALICE, HOST, READ, TOPIC, "invoices") is Decision.ALLOWED
    rules.put(prefixed("in"), None)
    rules.put(prefixed("in"), None)
    assert rules.decide(ALICE, HOST, READ, TOPIC, "invoices") is Decision.UNDECIDED


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([allow(ALICE, WRITE, topic("orders"))], True),
        ([allow(ALICE, READ, topic("orders"))], False),
        ([allow(ALICE, WRITE, topic("orders"), host="10.0.0.2")], False),
        ([allow(ALICE, WRITE, prefixed("orders"))], True),
        ([allow(ALICE, Operation.ALL, topic("*"))], True),
        ([allow(ALICE, WRITE, topic("orders")), deny(ALICE, WRITE, topic("orders"))], False),
        ([allow(ALICE, WRITE, topic("orders")), deny(ALICE, WRITE, prefixed("ord"))], False),
        ([allow(ALICE, WRITE, prefixed("orders")), deny(ALICE, WRITE, topic("orders"))], True),
        ([allow(ALICE, WRITE, prefixed("orders")), deny(ALICE, WRITE, prefixed("or"))], False),
        ([allow(ALICE, WRITE, topic("orders")), deny("User:*", Operation.ALL, topic("*"))], False),
        ([allow(ALICE, WRITE, topic("*")), deny(ALICE, WRITE, topic("orders"))], True),
    ],
)
def test_rights_on_any_resource(acls: list[Acl], is_allowed: bool) -> None:
    assert RuleSet(records(*acls)).allows_any(ALICE, HOST, WRITE, TOPIC) == is_allowed


# Against a naive oracle

NAMES = st.text(alphabet="abA-", max_size=4).filter(bool) | st.just("*")
OPERATIONS = st.sampled_from(
    [READ, WRITE, DESCRIBE, Operation.ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
)
ACLS = st.lists(
    st.tuples(
        st.builds(
            AclResource,
            st.sampled_from([TOPIC, ResourceType.GROUP]),
            st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
            NAMES,
        ),
        st.builds(
            AclEntry,
            st.sampled_from([ALICE, "User:bob", "User:*"]),
            st.sampled_from(["*", HOST, "10.0.0.2"]),
            OPERATIONS,
            st.sampled_from([Permission.ALLOW, Permission.DENY]),
        ),
    ),
    max_size=8,
)


def oracle(acls: list[Acl], operation: Operation, name: str) -> Decision:
    """Look at every ACL, one by one."""
    applying = [
        entry
        for resource, entry in acls
        if resource.resource_type == TOPIC
        and (
            resource.name == name
            or (resource.pattern_type == PatternType.LITERAL and resource.name == "*")
            or (resource.pattern_type == PatternType.PREFIXED and name.startswith(resource.name))
        )
    ]
    mine = [
        entry
        for entry in applying
        if entry.principal in (ALICE, "User:*") and entry.host in (HOST, "*")
    ]
    wanted = {operation, Operation.ALL}
    implying = {
        DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(operation, set())
    if any(e.permission == Permission.DENY and e.operation in wanted for e in mine):
        return Decision.DENIED
    if any(e.permission == Permission.ALLOW and e.operation in wanted | implying for e in mine):
        return Decision.ALLOWED
    return Decision.DENIED if applying else Decision.UNDECIDED


@given(ACLS, OPERATIONS.filter(lambda operation: operation != Operation.ALL), NAMES)
def test_decisions_are_those_of_an_oracle(acls: list[Acl], operation: Operation, name: str) -> None:
    if name == "*":
        name = "a"
    assert decide(acls, operation, name) is oracle(acls, operation, name)


@given(ACLS, NAMES)
def test_a_right_on_a_resource_is_a_right_on_any(acls: list[Acl], name: str) -> None:
    rules = RuleSet(records(*acls))
    allowing = [
        resource.name
        for resource, _ in acls
        if resource.name != "*" and oracle(acls, WRITE, resource.name) is Decision.ALLOWED
    ]
    if allowing:
        assert rules.allows_any(ALICE, HOST, WRITE, TOPIC)


@given(ACLS, ACLS, NAMES)
def test_changes_give_the_rules_of_a_new_set(
    before: list[Acl], after: list[Acl], name: str
) -> None:
    rules = RuleSet(records(*before))
    changed = records(*after)
    for resource in {*records(*before), *changed}:
        rules.put(resource, changed.get(resource))
    for operation in (READ, DESCRIBE):
        found = rules.decide(ALICE, HOST, operation, TOPIC, name)
        assert found is RuleSet(changed).decide(ALICE, HOST, operation, TOPIC, name)


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::7", "2001:db8::7"),
        ("broker.example", "broker.example"),
        (HOST, HOST),
    ],
)
def test_an_address_may_be_written_in_another_way(written: str, host: str) -> None:
    acls = [allow(ALICE, READ, topic("orders")), deny(ALICE, READ, topic("orders"), written)]
    assert decide(acls, host=host) is Decision.DENIED
    assert decide(acls, host="10.0.0.99") is Decision.ALLOWED
