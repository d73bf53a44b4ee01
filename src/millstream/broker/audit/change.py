"""Finds the changes in requests and responses, for the audit trail. Pure.

Values of settings are left out: they may be secrets. Commits of group members and requests of
producers in their own transactions are left out too: only changes from outside the group or the
transaction are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

from millstream.broker.audit.audited import Change
from millstream.model.acl import Operation, PatternType, Permission, ResourceType, label
from millstream.model.error import ErrorCode

#: Names of the resource types of configs.
_CONFIG_RESOURCES: Final = {2: "topic", 4: "broker", 8: "logger", 16: "client-metrics", 32: "group"}

#: How the reason of Kafka's admin clients begins, when they remove members.
_REMOVED_BY_ADMIN: Final = "member was removed by an admin"


def topics_created(request: Any, response: Any) -> Iterable[Change]:
    if request.validate_only:
        return
    for row in response.topics:
        yield Change(f"topic:{row.name}", row.error_code)


def topics_deleted(request: Any, response: Any) -> Iterable[Change]:
    for row in response.responses:
        yield Change(f"topic:{row.name or row.topic_id.hex()}", row.error_code)


def partitions_created(request: Any, response: Any) -> Iterable[Change]:
    if request.validate_only:
        return
    counts = {topic.name: topic.count for topic in request.topics}
    for row in response.results:
        yield Change(f"topic:{row.name}", row.error_code, f"{counts.get(row.name)} partitions")


def records_deleted(request: Any, response: Any) -> Iterable[Change]:
    for topic in response.topics:
        for row in topic.partitions:
            detail = f"partition {row.partition_index}"
            yield Change(f"topic:{topic.name}", row.error_code, detail)


def configs_altered(request: Any, response: Any) -> Iterable[Change]:
    if request.validate_only:
        return
    names = {
        (wanted.resource_type, wanted.resource_name): ", ".join(
            config.name for config in wanted.configs
        )
        for wanted in request.resources
    }
    for row in response.responses:
        kind = _CONFIG_RESOURCES.get(row.resource_type, str(row.resource_type))
        detail = names.get((row.resource_type, row.resource_name), "")
        yield Change(f"{kind}:{row.resource_name}", row.error_code, detail)


def acls_created(request: Any, response: Any) -> Iterable[Change]:
    for wanted, row in zip(request.creations, response.results, strict=False):
        resource = _pattern(
            wanted.resource_type, wanted.resource_pattern_type, wanted.resource_name
        )
        yield Change(resource, row.error_code, _rule(wanted))


def acls_deleted(request: Any, response: Any) -> Iterable[Change]:
    for wanted, row in zip(request.filters, response.filter_results, strict=False):
        if not row.matching_acls:
            resource = f"acl:{_term(ResourceType, wanted.resource_type_filter)}"
            yield Change(resource, row.error_code, "no ACL matched")
        for found in row.matching_acls:
            resource = _pattern(found.resource_type, found.pattern_type, found.resource_name)
            yield Change(resource, row.error_code or found.error_code, _rule(found))


def _pattern(resource_type: int, pattern_type: int, name: str) -> str:
    return f"acl:{_term(ResourceType, resource_type)}/{_term(PatternType, pattern_type)}/{name}"


def _rule(acl: Any) -> str:
    permission = _term(Permission, acl.permission_type)
    return f"{permission} {acl.principal} from {acl.host}: {_term(Operation, acl.operation)}"


def _term(kind: type[IntEnum], value: int) -> str:
    """Return a term of ACLs; a number that is none of them as it is."""
    try:
        return label(kind(value))
    except ValueError:
        return str(value)


def users_altered(request: Any, response: Any) -> Iterable[Change]:
    """Find changes of SCRAM credentials. The request's passwords are not read."""
    for row in response.results:
        yield Change(f"user:{row.user}", row.error_code)


def quotas_altered(request: Any, response: Any) -> Iterable[Change]:
    if request.validate_only:
        return
    for wanted, row in zip(request.entries, response.entries, strict=False):
        entity = ",".join(
            each.entity_type
            if each.entity_name is None
            else f"{each.entity_type}={each.entity_name}"
            for each in row.entity
        )
        detail = ", ".join(
            f"{op.key} removed" if op.remove else f"{op.key}={_figure(op.value)}"
            for op in wanted.ops
        )
        yield Change(f"quota:{entity}", row.error_code, detail)


def _figure(value: float) -> str:
    """Return a number with all of its digits; a whole one as an integer."""
    return str(int(value)) if value.is_integer() else str(value)


def groups_deleted(request: Any, response: Any) -> Iterable[Change]:
    for row in response.results:
        yield Change(f"group:{row.group_id}", row.error_code)


def offsets_deleted(request: Any, response: Any) -> Iterable[Change]:
    resource = f"group:{request.group_id}"
    if response.error_code != ErrorCode.NONE:
        yield Change(resource, response.error_code)
        return
    yield from _by_topic(resource, response.topics)


def offsets_committed(request: Any, response: Any) -> Iterable[Change]:
    """Find commits without a member: an operator who resets offsets, or a consumer outside of the
    group's protocol."""
    if request.member_id or request.generation_id_or_member_epoch >= 0:
        return
    yield from _by_topic(f"group:{request.group_id}", response.topics)


def members_removed(request: Any, response: Any) -> Iterable[Change]:
    """Find members that an operator removes. A member that leaves names only itself, by its id."""
    members = request.members
    if len(members) > 1 or any(
        not each.member_id or (each.reason or "").startswith(_REMOVED_BY_ADMIN) for each in members
    ):
        code = response.error_code or max((row.error_code for row in response.members), default=0)
        names = ", ".join(each.group_instance_id or each.member_id for each in members)
        yield Change(f"group:{request.group_id}", code, f"removed {names}")


def _by_topic(resource: str, topics: Any) -> Iterator[Change]:
    for topic in topics:
        codes = [row.error_code for row in topic.partitions]
        name = topic.name or getattr(topic, "topic_id", b"").hex()
        yield Change(resource, max(codes, default=0), f"{name}: {len(codes)} partitions")


def producer_fenced(request: Any, response: Any) -> Iterable[Change]:
    """Find initialised transactional ids: earlier producers with the id are fenced, and their open
    transaction is aborted."""
    if request.transactional_id:
        yield Change(f"transactional-id:{request.transactional_id}", response.error_code)


def transactions_ended(request: Any, response: Any) -> Iterable[Change]:
    """Find markers: an operator ends a hanging transaction in some partitions."""
    results = {marker.producer_id: marker.transaction_result for marker in request.markers}
    for marker in response.markers:
        what = "commit" if results.get(marker.producer_id) else "abort"
        for topic in marker.topics:
            for row in topic.partitions:
                yield Change(
                    f"producer-id:{marker.producer_id}",
                    row.error_code,
                    f"{what} in {topic.name}-{row.partition_index}",
                )


def features_updated(request: Any, response: Any) -> Iterable[Change]:
    if request.validate_only:
        return
    for update in request.feature_updates:
        detail = f"level {update.max_version_level}"
        yield Change(f"feature:{update.feature}", response.error_code, detail)


def broker_unregistered(request: Any, response: Any) -> Iterable[Change]:
    yield Change(f"broker:{request.broker_id}", response.error_code)


def partitions_reassigned(request: Any, response: Any) -> Iterable[Change]:
    wanted = {
        (topic.name, row.partition_index): row.replicas
        for topic in request.topics
        for row in topic.partitions
    }
    for topic in response.responses:
        for row in topic.partitions:
            replicas = wanted.get((topic.name, row.partition_index))
            yield Change(
                f"topic:{topic.name}",
                response.error_code or row.error_code,
                f"partition {row.partition_index}: "
                + ("cancelled" if replicas is None else f"replicas {replicas}"),
            )


def leaders_elected(request: Any, response: Any) -> Iterable[Change]:
    for topic in response.replica_election_results:
        for row in topic.partition_result:
            yield Change(f"topic:{topic.topic}", row.error_code, f"partition {row.partition_id}")


def token_created(request: Any, response: Any) -> Iterable[Change]:
    owner = f"of {response.principal_type}:{response.principal_name}"
    yield Change(f"token:{response.token_id}", response.error_code, owner)


def token_changed(request: Any, response: Any) -> Iterable[Change]:
    """Find renewals and expirations of delegation tokens. The request names a token by its HMAC,
    which is a secret."""
    yield Change("token", response.error_code)
