"""Decommissioning: no replica stays on the broker, moves are balanced, and racks are respected."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller import decommission, reassignment
from millstream.controller.decommission import Decommission
from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage
from millstream.metadata.partition_change import PartitionChange
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

TOPIC_ID = b"t" * 16


def image_of(
    partitions: list[PartitionRecord], racks: dict[int, str | None], emptied: str = ""
) -> ClusterImage:
    configs: Map[str, str] = Map({decommission.SETTING: emptied}) if emptied else Map()
    topic = TopicRecord("t", TOPIC_ID, tuple(partitions))
    return ClusterImage(
        brokers=Map(
            {each: BrokerRecord(node_id=each, endpoints=(), rack=racks[each]) for each in racks}
        ),
        topics=Map({"t": topic}),
        topic_names=Map({TOPIC_ID: "t"}),
        default_broker_configs=configs,
    )


def placed(*replicas: int) -> PartitionRecord:
    return PartitionRecord(replicas=replicas, leader=replicas[0], leader_epoch=0, isr=replicas)


def look(image: ClusterImage) -> list[PartitionChange]:
    moves = Decommission(image)
    for topic in image.topics.values():
        moves.add(topic)
    return moves.changes()


def completed(record: PartitionRecord, image: ClusterImage) -> PartitionRecord:
    """Return the record after the new replicas have caught up."""
    caught_up = msgspec.structs.replace(record, isr=record.replicas)
    return reassignment.complete(caught_up, image.eligible) or record


def emptied_image(image: ClusterImage, rounds_max: int = 1000) -> ClusterImage:
    """Plan and complete moves until no move is left to plan."""
    racks = {each: broker.rack for each, broker in image.brokers.items()}
    setting = image.default_broker_configs[decommission.SETTING]
    for _ in range(rounds_max):
        changes = look(image)
        if not changes:
            return image
        partitions = list(image.topics["t"].partitions)
        for change in changes:
            partitions[change.partition] = completed(change.after, image)
        image = image_of(partitions, racks, setting)
    raise AssertionError("the moves never end")


@given(
    st.lists(
        st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True), min_size=1, max_size=80
    ),
    st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
)
def test_no_replica_stays_and_replication_factors_are_kept(
    replicas: list[list[int]], emptied: list[int]
) -> None:
    racks = {each: "ab"[each % 2] for each in range(1, 7)}
    setting = ",".join(map(str, emptied))
    before = image_of([placed(*each) for each in replicas], dict(racks), setting)
    after = emptied_image(before)
    for old, new in zip(before.topics["t"].partitions, after.topics["t"].partitions, strict=True):
        assert len(new.replicas) == len(set(new.replicas)) == len(old.replicas)
        assert not set(emptied) & set(new.replicas)
        # Replicas on other brokers keep their position.
        for was, now in zip(old.replicas, new.replicas, strict=True):
            assert was == now or was in emptied
        assert new.leader in new.isr


def test_replicas_and_preferred_leaders_are_balanced() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(1, 5))
    partitions = [placed(4, 1 + n % 3) for n in range(120)]
    after = emptied_image(image_of(partitions, racks, "4"))
    held = Counter(each for record in after.topics["t"].partitions for each in record.replicas)
    preferred = Counter(record.replicas[0] for record in after.topics["t"].partitions)
    assert held == {1: 80, 2: 80, 3: 80}
    assert max(preferred.values()) - min(preferred.values()) <= 2


def test_a_rack_without_a_replica_of_the_partition_is_preferred() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "c", 5: "b"}
    # Broker 5 has more replicas than broker 3, but only broker 5 is on the rack of broker 2.
    partitions = [placed(1, 2, 4), placed(5), placed(5)]
    (change,) = look(image_of(partitions, racks, "2"))
    assert reassignment.target(change.after) == (1, 5, 4)
    assert change.after.adding == (5,)
    assert change.after.removing == (2,)


def test_the_number_of_simultaneous_moves_is_bounded() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2))
    image = image_of([placed(1) for _ in range(200)], racks, "1")
    changes = look(image)
    assert 0 < len(changes) < 200
    partitions = list(image.topics["t"].partitions)
    for change in changes:
        partitions[change.partition] = change.after
    assert look(image_of(partitions, racks, "1")) == []
    partitions[0] = completed(partitions[0], image)
    assert len(look(image_of(partitions, racks, "1"))) == 1


def test_a_move_to_a_decommissioned_broker_gets_a_new_target() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2, 3))
    under_way = reassignment.begin(placed(1), [2], {1, 2, 3})
    assert under_way is not None
    (change,) = look(image_of([under_way], racks, "2"))
    # The partition returns to broker 1, which still has it.
    assert change.after.replicas == (1,)


def test_no_move_starts_if_too_few_brokers_remain() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2))
    assert look(image_of([placed(1, 2)], racks, "2")) == []


def test_impossible_decommissions_are_rejected() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2, 3))
    image = image_of([placed(1, 2, 3)], racks)
    with pytest.raises(BrokerError, match="2 brokers would remain") as raised:
        decommission.check(image, {3})
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(BrokerError, match="there is no broker 9"):
        decommission.check(image, {9})
    # A dead broker can be decommissioned while it has replicas.
    decommission.check(image_of([placed(1, 9)], racks), {9})
    # A partition without a replica on broker 9 does not matter.
    decommission.check(image_of([placed(1, 2, 3), placed(1, 9)], {**racks, 4: None}, "9"), {9})
