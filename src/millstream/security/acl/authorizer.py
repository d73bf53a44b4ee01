"""Decides whether a principal may do something, and remembers the decisions. Pure.

A decision follows, in this order: super users may do everything; the ACLs of the principal and of
its groups decide (`rule_set.py`); `allow.everyone.if.no.acl.found` decides for resources without
ACLs.

`decisions` caches decisions by the present ACLs. It is cleared when an ACL changes, and when it is
full. On the hot path a check is one look-up in it. Whether a principal may do something to any
resource of a type depends on all ACLs of the type, so these decisions are cached as well.

In learning mode every operation is allowed. The authorizer then records the operations that each
principal needed (`observation.py`). `would_allow` says which of them the present ACLs would deny.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.acl import OPERATIONS_OF, Operation, ResourceType, label
from millstream.model.principal import Principal
from millstream.security.acl.observation import Observations
from millstream.security.acl.rule_set import Decision, RuleSet

#: Decisions kept before the cache is cleared: some tens of megabytes at most.
DECISIONS_MAX: Final = 100_000
#: Decisions about longer names are not kept: clients choose names, and could fill the memory.
NAME_LENGTH_MAX: Final = 300

#: Principal, address of the client, operation, resource type, resource name.
DecisionKey: TypeAlias = tuple[Principal, str, Operation, ResourceType, str]


class AuthorizerOptions(NamedTuple):
    """How the authorizer decides where ACLs do not."""

    #: Principals in text form (`User:admin`) that may do everything.
    super_users: frozenset[str] = frozenset()
    #: Whether a resource that no ACL applies to is open to everyone.
    allows_without_acl: bool = False
    #: Whether everything is allowed, and the operations that principals need are recorded.
    is_learning: bool = False


class Authorizer:
    """The decisions of one broker. Event loop only."""

    __slots__ = ("_any_decisions", "_rules", "decisions", "denials", "observations", "options")

    def __init__(self, options: AuthorizerOptions, image: ClusterImage) -> None:
        self.options = options
        self._rules = RuleSet(image.acls)
        #: Whether each checked operation is allowed. Read by `Context.allows`.
        self.decisions: dict[DecisionKey, bool] = {}
        #: Results of `allows_any`, by principal, address, operation and resource type.
        self._any_decisions: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}
        #: Denied requests, by operation and resource type.
        self.denials: defaultdict[tuple[Operation, ResourceType], int] = defaultdict(int)
        #: What principals needed, in learning mode.
        self.observations = Observations()

    @property
    def is_learning(self) -> bool:
        return self.options.is_learning

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Use the ACLs of a new image."""
        if not delta.acls:
            return
        for resource in delta.acls:
            self._rules.put(resource, image.acls.get(resource))
        self.decisions.clear()
        self._any_decisions.clear()

    def decide(self, key: DecisionKey) -> bool:
        """Decide an operation that `decisions` does not hold, and remember the decision."""
        principal, host, operation, resource_type, name = key
        if len(self.decisions) >= DECISIONS_MAX:
            self.decisions.clear()
        allowed = self.would_allow(
            str(principal), host, operation, resource_type, name, principal.groups
        )
        if self.options.is_learning:
            if not self._is_super_user(str(principal), principal.groups):
                self.observations.add(
                    str(principal), host, operation, resource_type, name, principal.groups
                )
            allowed = True
        if len(name) <= NAME_LENGTH_MAX:
            self.decisions[key] = allowed
        return allowed

    def _is_super_user(self, principal: str, groups: Collection[str]) -> bool:
        super_users = self.options.super_users
        return principal in super_users or not super_users.isdisjoint(groups)

    def would_allow(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: int,
        name: str,
        groups: Collection[str] = (),
    ) -> bool:
        """Return the decision by super users and ACLs, in learning mode too. Nothing is
        recorded."""
        if self._is_super_user(principal, groups):
            return True
        decision = self._rules.decide(principal, host, operation, resource_type, name, groups)
        if decision is Decision.UNDECIDED:
            return self.options.allows_without_acl
        return decision is Decision.ALLOWED

    def is_visible(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether a list shows a resource. Learning mode hides nothing and records nothing:
        a list needs no right on each resource that it shows."""
        if self.options.is_learning:
            return True
        key = (principal, host, operation, resource_type, name)
        found = self.decisions.get(key)
        return self.decide(key) if found is None else found

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether the ACLs allow this on at least one resource of the type. Learning mode
        does not change it."""
        key = (principal, host, operation, resource_type)
        found = self._any_decisions.get(key)
        if found is not None:
            return found
        text = str(principal)
        # A name without ACLs stands for all such resources, and for super users.
        found = self.would_allow(
            text, host, operation, resource_type, _NO_RESOURCE, principal.groups
        ) or self._rules.allows_any(text, host, operation, resource_type, principal.groups)
        if len(self._any_decisions) >= DECISIONS_MAX:
            self._any_decisions.clear()
        self._any_decisions[key] = found
        return found

    def operations(
        self, principal: Principal, host: str, resource_type: ResourceType, name: str
    ) -> int:
        """Return the allowed operations on a resource as a bit field."""
        field = 0
        for operation in OPERATIONS_OF[resource_type]:
            if self.is_visible(principal, host, operation, resource_type, name):
                field |= 1 << operation
        return field


#: No resource has this name: topics have no spaces.
_NO_RESOURCE: Final = "no resource"


def all_operations(resource_type: ResourceType) -> int:
    """Return all operations of a resource type as a bit field."""
    return sum(1 << operation for operation in OPERATIONS_OF[resource_type])


def resource_text(resource_type: ResourceType, name: str) -> str:
    """Return a resource as audit trails and logs show it: `topic:orders`, `cluster`. A long name is
    truncated."""
    kind = label(resource_type)
    return kind if resource_type is ResourceType.CLUSTER else f"{kind}:{name[:NAME_LENGTH_MAX]}"
