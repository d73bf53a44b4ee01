"""The smallest set of ACLs for what clients needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.metadata.security_record import AclEntry, AclResource
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from millstream.security.acl.rule_set import Decision, RuleSet
from millstream.security.acl.suggestion import Need, Suggestion, smallest_acls

ALICE, BOB = "User:alice", "User:bob"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def need(
    operation: Operation,
    name: str,
    principal: str = ALICE,
    kind: ResourceType = TOPIC,
    is_denied: bool = True,
) -> Need:
    return Need(principal, operation, kind, name, is_denied)


def shown(found: list[Suggestion]) -> list[tuple[str, str, str]]:
    return [(each.operation.name, each.pattern_type.name, each.name) for each in found]


def test_implied_operations_need_no_acl() -> None:
    found = smallest_acls(
        [
            need(DESCRIBE, "orders"),
            need(READ, "orders", is_denied=False),
            need(Operation.DESCRIBE_CONFIGS, "orders"),
            need(DESCRIBE, "other"),
        ]
    )
    assert shown(found) == [
        ("READ", "LITERAL", "orders"),
        ("DESCRIBE_CONFIGS", "LITERAL", "orders"),
        ("DESCRIBE", "LITERAL", "other"),
    ]
    # Describe is denied today, so the ACL that implies it is missing.
    assert [each.is_missing for each in found] == [True, True, True]


def test_a_producer_needs_no_idempotent_write() -> None:
    needs = [
        need(Operation.IDEMPOTENT_WRITE, CLUSTER_NAME, kind=ResourceType.CLUSTER),
        need(Operation.IDEMPOTENT_WRITE, CLUSTER_NAME, BOB, ResourceType.CLUSTER),
        need(WRITE, "orders"),
    ]
    assert [(each.principal, each.operation) for each in smallest_acls(needs)] == [
        (ALICE, WRITE),
        (BOB, Operation.IDEMPOTENT_WRITE),
    ]


def test_names_are_merged_only_on_request() -> None:
    needs = [
        need(READ, "orders.eu.1"),
        need(READ, "orders.eu.2"),
        need(READ, "orders.us"),
        need(READ, "invoices"),
        need(WRITE, "orders.eu.1", BOB),
    ]
    assert len(smallest_acls(needs)) == 5
    assert shown(smallest_acls(needs, merge_prefixes=True)) == [
        ("READ", "LITERAL", "invoices"),
        ("READ", "PREFIXED", "orders."),
        ("WRITE", "LITERAL", "orders.eu.1"),
    ]
    assert shown(smallest_acls(needs[:2], merge_prefixes=True)) == [
        ("READ", "PREFIXED", "orders.eu.")
    ]


NEEDS = st.lists(
    st.builds(
        Need,
        st.sampled_from([ALICE, BOB]),
        st.sampled_from([READ, WRITE, DESCRIBE, Operation.DELETE, Operation.ALTER_CONFIGS]),
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from(["a", "a.b", "a.c", "a-b", "b.a", "b.c.d", "b.c.e"]),
        st.booleans(),
    ),
    max_size=20,
)


@given(NEEDS, st.booleans())
def test_the_suggested_acls_allow_all_needs_and_each_is_necessary(
    needs: list[Need], merge: bool
) -> None:
    suggestions = smallest_acls(needs, merge_prefixes=merge)
    assert all(allowed(suggestions, each) for each in needs)
    for omitted in suggestions:
        rest = [each for each in suggestions if each != omitted]
        assert not all(allowed(rest, each) for each in needs)


def allowed(suggestions: list[Suggestion], wanted: Need) -> bool:
    rules = RuleSet()
    acls: dict[AclResource, tuple[AclEntry, ...]] = {}
    for each in suggestions:
        resource = AclResource(each.resource_type, each.pattern_type, each.name)
        entry = AclEntry(each.principal, "*", each.operation, Permission.ALLOW)
        acls[resource] = (*acls.get(resource, ()), entry)
    for resource, entries in acls.items():
        rules.put(resource, entries)
    return (
        rules.decide(wanted.principal, "h", wanted.operation, wanted.resource_type, wanted.name)
        is Decision.ALLOWED
    )


def test_only_literal_and_prefixed_patterns_are_suggested() -> None:
    found = smallest_acls([need(READ, "a.b"), need(READ, "a.c")], merge_prefixes=True)
    assert {each.pattern_type for each in found} <= {PatternType.LITERAL, PatternType.PREFIXED}
