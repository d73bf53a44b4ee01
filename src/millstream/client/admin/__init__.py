"""Topics, groups, settings and offsets, as an application or an operator manages them.

The package owns `Admin`, `AsyncAdmin` and the types of their results. librdkafka sends most
requests. `millstream.protocol` sends those that librdkafka does not have.
"""

from __future__ import annotations

from millstream.client.admin.acl import Acl, AclFilter
from millstream.client.admin.admin import Admin
from millstream.client.admin.async_admin import AsyncAdmin
from millstream.client.admin.group_result import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupState,
    GroupType,
    IncompleteListing,
    OffsetChange,
)
from millstream.client.admin.result import (
    BrokerNode,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    Outcome,
    PartitionDescription,
    QuotaEntity,
    Reassignment,
    TopicDescription,
)

__all__ = [
    "Acl",
    "AclFilter",
    "Admin",
    "AsyncAdmin",
    "BrokerNode",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupState",
    "GroupType",
    "IncompleteListing",
    "NewTopic",
    "OffsetChange",
    "Outcome",
    "PartitionDescription",
    "QuotaEntity",
    "Reassignment",
    "TopicDescription",
]
