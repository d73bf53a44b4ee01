"""Unregisters brokers: removes every key of a broker from the metadata.

A broker is registered while its process is alive and reaches the metadata store. So there are two
cases:

- A dead broker is no longer registered. Its own dynamic settings are deleted, and so is its
  decommission if that is complete. Its replicas stay assigned, as in Kafka, until a reassignment or
  `millstream broker decommission` moves them.
- A live broker is removed from the cluster at once, as if it had died, and stays out until it is
  restarted: the key `unregistered/<id>` names the process that may not register again.
"""

from __future__ import annotations

from millstream.controller import decommission
from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord, Configs
from millstream.metadata.image import ClusterImage
from millstream.metadata.store.port import Change, Compare, Condition, Delete, Put
from millstream.model.error import BrokerError, ErrorCode


async def unregister(catalog: Catalog, broker_id: int) -> None:
    """Unregister a broker.

    BROKER_ID_NOT_REGISTERED if the metadata have nothing of it, INVALID_REQUEST if no other broker
    is alive, REQUEST_TIMED_OUT if it has registered again meanwhile."""
    image = catalog.image
    broker = image.brokers.get(broker_id)
    if broker is not None:
        await _remove_broker(catalog, broker)
        return
    has_replicas = _has_replicas(image, broker_id)
    is_emptied = broker_id in decommission.named(image.default_broker_configs)
    if not (has_replicas or is_emptied or broker_id in image.broker_configs):
        raise BrokerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered"
        )
    if broker_id in image.broker_configs:
        await catalog.alter_broker_configs(broker_id, lambda _: records.NO_CONFIGS)
    if is_emptied and not has_replicas:
        await catalog.alter_broker_configs(None, lambda present: _not_named(present, broker_id))


async def _remove_broker(catalog: Catalog, broker: BrokerRecord) -> None:
    image, broker_id = catalog.image, broker.node_id
    if len(image.brokers) == 1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker_id} is the only live one: start others first, or stop it",
        )
    key = records.broker_key(broker_id)
    tombstone = records.encode_unregistered(broker.incarnation)
    compares: list[Condition] = [Compare(key, broker.epoch)]
    changes: list[Change] = [Delete(key), Put(records.unregistered_key(broker_id), tombstone)]
    if image.controller == broker_id:
        compares.append(Compare(records.CONTROLLER_KEY, image.controller_epoch))
        changes.append(Delete(records.CONTROLLER_KEY))
    if await catalog.transact(compares, changes) is None:
        raise BrokerError(
            ErrorCode.REQUEST_TIMED_OUT, f"broker {broker_id} has registered again; try again"
        )


def _has_replicas(image: ClusterImage, broker_id: int) -> bool:
    return any(
        broker_id in record.replicas
        for topic in image.topics.values()
        for record in topic.partitions
    )


def _not_named(present: Configs, broker_id: int) -> Configs:
    remaining = decommission.named(present) - {broker_id}
    if not remaining:
        return present.delete(decommission.SETTING) if decommission.SETTING in present else present
    return present.set(decommission.SETTING, ",".join(map(str, sorted(remaining))))
