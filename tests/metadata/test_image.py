"""Images and deltas: the result of events, for any split of the events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.metadata import cluster_record as records
from millstream.metadata.cluster_record import (
    broker_config_key,
    broker_key,
    client_metrics_config_key,
    encode_broker,
    encode_configs,
    encode_partition,
    encode_topic,
    group_config_key,
    partition_key,
    topic_key,
)
from millstream.metadata.image import (
    EMPTY_IMAGE,
    BrokerRecord,
    ClusterImage,
    Endpoint,
    PartitionRecord,
    apply,
    difference,
)
from millstream.metadata.store.port import MetadataStoreError, WatchEvent

ID_A, ID_B = b"a" * 16, b"b" * 16


def partition(*replicas: int, epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(replicas=replicas, leader=replicas[0], leader_epoch=epoch, isr=replicas)


def put_topic(name: str, topic_id: bytes, revision: int, **configs: str) -> WatchEvent:
    return WatchEvent(topic_key(name), encode_topic(topic_id, configs), revision)


def put_partition(topic_id: bytes, number: int, record: PartitionRecord) -> WatchEvent:
    return WatchEvent(partition_key(topic_id, number), encode_partition(record), 1)


def image_of(*events: WatchEvent) -> ClusterImage:
    return apply(EMPTY_IMAGE, events, 1)[0]


def test_a_new_topic_is_found_by_name_and_id() -> None:
    image, delta = apply(
        EMPTY_IMAGE,
        [put_partition(ID_A, 0, partition(1)), put_topic("a", ID_A, 3, flush="1")],
        3,
    )
    topic = image.topic("a")
    assert topic is not None
    assert image.topic_by_id(ID_A) is topic
    assert (topic.name, topic.topic_id, topic.revision) == ("a", ID_A, 3)
    assert dict(topic.configs) == {"flush": "1"}
    assert image.partition("a", 0) == partition(1)
    assert image.partition("a", 1) is image.partition("a", -1) is image.partition("b", 0) is None
    assert delta.created == [topic]
    assert image.revision == 3
    assert EMPTY_IMAGE.topics.get("a") is None


def test_equal_partitions_and_configs_are_shared() -> None:
    image = image_of(
        put_partition(ID_A, 0, partition(1)),
        put_partition(ID_B, 0, partition(1)),
        put_topic("a", ID_A, 1, x="1"),
        put_topic("b", ID_B, 1, x="1"),
    )
    assert image.topics["a"].partitions is image.topics["b"].partitions
    assert image.topics["a"].configs is image.topics["b"].configs


def test_a_delta_has_the_topic_before_and_after_a_partition_change() -> None:
    image = image_of(put_partition(ID_A, 0, partition(1)), put_topic("a", ID_A, 1))
    after, delta = apply(image, [put_partition(ID_A, 0, partition(2, epoch=1))], 2)
    assert delta.changed == [(image.topics["a"], after.topics["a"])]
    assert after.topics["a"].partitions == (partition(2, epoch=1),)
    assert image.topics["a"].partitions == (partition(1),)


def test_a_put_that_changes_nothing_makes_an_empty_delta() -> None:
    image = image_of(put_partition(ID_A, 0, partition(1)), put_topic("a", ID_A, 1))
    after, delta = apply(image, [put_topic("a", ID_A, 2)], 2)
    assert not delta
    assert after.topics["a"].revision == 2


def test_deletion_removes_name_id_and_partitions() -> None:
    image = image_of(put_partition(ID_A, 0, partition(1)), put_topic("a", ID_A, 1))
    events = [WatchEvent(topic_key("a"), None, 2), WatchEvent(partition_key(ID_A, 0), None, 2)]
    after, delta = apply(image, events, 2)
    assert delta.deleted == [image.topics["a"]]
    assert not after.topics
    assert not after.topic_names
    assert not after.waiting


def test_a_recreated_topic_is_deleted_and_created() -> None:
    image = image_of(put_partition(ID_A, 0, partition(1)), put_topic("a", ID_A, 1))
    events = [
        WatchEvent(topic_key("a"), None, 2),
        WatchEvent(partition_key(ID_A, 0), None, 2),
        put_partition(ID_B, 0, partition(2)),
        put_topic("a", ID_B, 3),
    ]
    after, delta = apply(image, events, 3)
    assert [topic.topic_id for topic in delta.deleted] == [ID_A]
    assert [topic.topic_id for topic in delta.created] == [ID_B]
    assert after.topic_by_id(ID_A) is None
    assert after.topics["a"].partitions == (partition(2),)
    assert not after.waiting


def test_partitions_wait_for_their_topic_and_for_each_other() -> None:
    image = image_of(put_partition(ID_A, 2, partition(3)), put_partition(ID_A, 0, partition(1)))
    assert not image.topics
    image, delta = apply(image, [put_topic("a", ID_A, 2)], 2)
    assert delta.created == [image.topics["a"]]
    assert image.topics["a"].partitions == (partition(1),)
    image, delta = apply(image, [put_partition(ID_A, 1, partition(2))], 3)
    assert image.topics["a"].partitions == (partition(1), partition(2), partition(3))
    assert len(delta.changed) == 1
    assert not image.waiting


def test_brokers_are_added_changed_and_removed() -> None:
    record = BrokerRecord(
        node_id=7, endpoints=(Endpoint("PLAINTEXT", "h", 9092),), rack="r", incarnation="i"
    )
    image, delta = apply(EMPTY_IMAGE, [WatchEvent(broker_key(7), encode_broker(record), 5)], 5)
    registered = image.brokers[7]
    assert registered.epoch == 5
    assert registered.endpoint("PLAINTEXT") == Endpoint("PLAINTEXT", "h", 9092)
    assert registered.endpoint("OTHER") is None
    assert (registered.rack, registered.incarnation, registered.clean_start) == ("r", "i", True)
    assert delta.brokers == {7: registered}
    after, delta = apply(image, [WatchEvent(broker_key(7), None, 6)], 6)
    assert not after.brokers
    assert delta.brokers == {7: None}


def test_subscriptions_to_client_metrics() -> None:
    def put(name: str, value: str) -> WatchEvent:
        return WatchEvent(client_metrics_config_key(name), encode_configs({"a": value}), 1)

    before, delta = apply(EMPTY_IMAGE, [put("s", "1"), put("a/b", "2")], 1)
    assert delta
    assert delta.client_metrics
    assert {name: dict(own) for name, own in before.client_metrics.items()} == {
        "s": {"a": "1"},
        "a/b": {"a": "2"},
    }
    after, delta = apply(before, [WatchEvent(client_metrics_config_key("a/b"), None, 2)], 2)
    assert delta.client_metrics
    assert list(after.client_metrics) == ["s"]
    assert difference(before, after).client_metrics
    assert not difference(after, after)
    assert not apply(after, [], 3)[1].client_metrics


def test_group_configs() -> None:
    def put(name: str, value: str) -> WatchEvent:
        return WatchEvent(group_config_key(name), encode_configs({"a": value}), 1)

    before, delta = apply(EMPTY_IMAGE, [put("g", "1"), put("a/b\0", "2")], 1)
    assert delta
    assert delta.group_configs == {"g", "a/b\0"}
    assert {name: dict(own) for name, own in before.group_configs.items()} == {
        "g": {"a": "1"},
        "a/b\0": {"a": "2"},
    }
    after, delta = apply(before, [put("g", "3"), WatchEvent(group_config_key("a/b\0"), None, 2)], 2)
    assert delta.group_configs == {"g", "a/b\0"}
    assert {name: dict(own) for name, own in after.group_configs.items()} == {"g": {"a": "3"}}
    assert difference(before, after).group_configs == {"g", "a/b\0"}
    assert not difference(after, after)


def test_broker_configs_of_one_and_of_all() -> None:
    events = [
        WatchEvent(broker_config_key(3), encode_configs({"a": "1"}), 1),
        WatchEvent(broker_config_key(None), encode_configs({"b": "2"}), 1),
    ]
    image, delta = apply(EMPTY_IMAGE, events, 1)
    assert delta.broker_configs
    assert dict(image.broker_configs[3]) == {"a": "1"}
    assert dict(image.default_broker_configs) == {"b": "2"}
    after, delta = apply(image, [WatchEvent(event.key, None, 2) for event in events], 2)
    assert delta.broker_configs
    assert not after.broker_configs
    assert not after.default_broker_configs


def test_unknown_keys_are_ignored_and_malformed_values_reported_by_key() -> None:
    image, delta = apply(EMPTY_IMAGE, [WatchEvent("unknown/x", b"?", 4)], 4)
    assert image.revision == 4
    assert not delta
    for key in ("topics/a", "partitions/x/0", "brokers/1", "brokers/x", "configs/broker/1"):
        with pytest.raises(MetadataStoreError, match=key):
            apply(EMPTY_IMAGE, [WatchEvent(key, b"?", 1)], 1)


IDS = [bytes([n]) * 16 for n in range(6)]
KEYS = st.one_of(
    st.tuples(st.just("topic"), st.sampled_from("abc"), st.sampled_from(IDS)),
    st.tuples(st.just("partition"), st.sampled_from(IDS), st.integers(0, 2)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, st.booleans(), st.integers(1, 9)), max_size=40), st.data())
def test_deltas_and_images_agree_for_any_split_of_events(
    steps: list[tuple[tuple[str, object, object], bool, int]], data: st.DataObject
) -> None:
    """Each delta is the difference between the images before and after it, for any split of the
    events. The last image has exactly the stored topics. As in a store, an id has one name."""
    state: dict[str, WatchEvent] = {}
    owner: dict[object, str] = {}
    events: list[WatchEvent] = []
    for revision, ((kind, first, second), present, replica) in enumerate(steps, start=1):
        if kind == "topic":
            assert isinstance(first, str)
            assert isinstance(second, bytes)
            if owner.setdefault(second, first) != first:
                continue
            held = state.get(topic_key(first))
            event = put_topic(first, second, revision, v=str(replica))
            if not present or (held is not None and held.value is None):
                event = WatchEvent(event.key, None, revision)
        else:
            assert isinstance(first, bytes)
            assert isinstance(second, int)
            event = put_partition(first, second, partition(replica))._replace(revision=revision)
            if not present:
                event = event._replace(value=None)
        state[event.key] = event
        events.append(event)
    image = EMPTY_IMAGE
    start = 0
    while start < len(events):
        end = data.draw(st.integers(start + 1, len(events)))
        after, delta = apply(image, events[start:end], events[end - 1].revision)
        expected = difference(image, after)
        assert sorted(delta.created, key=repr) == sorted(expected.created, key=repr)
        assert sorted(delta.deleted, key=repr) == sorted(expected.deleted, key=repr)
        assert sorted(delta.changed, key=repr) == sorted(expected.changed, key=repr)
        image, start = after, end
    for topic in image.topics.values():
        assert image.topic_names[topic.topic_id] == topic.name
        stored = state[topic_key(topic.name)]
        assert stored.value is not None
        assert topic.revision == stored.revision
    assert len(image.topic_names) == len(image.topics)
    live = {key for key, event in state.items() if event.value and key.startswith("topics/")}
    assert live == {topic_key(name) for name in image.topics}


def test_removed_settings_are_ignored() -> None:
    topic_id = bytes(range(16))
    retired = {"message.downconversion.enable": "true", "retention.ms": "1"}
    events = [
        WatchEvent(topic_key("t"), encode_topic(topic_id, retired), 1),
        WatchEvent(
            broker_config_key(None),
            encode_configs({"log.message.downconversion.enable": "true"}),
            2,
        ),
    ]
    image, _ = apply(ClusterImage(), events, 2)
    assert dict(image.topics["t"].configs) == {"retention.ms": "1"}
    assert image.default_broker_configs == records.NO_CONFIGS


def test_the_controller_s_epoch_is_the_revision_of_its_key() -> None:
    def elected(node_id: int, revision: int) -> WatchEvent:
        return WatchEvent(records.CONTROLLER_KEY, records.encode_controller(node_id), revision)

    image, delta = apply(ClusterImage(), [elected(1, 5)], 5)
    assert (image.controller, image.controller_epoch, delta.controller) == (1, 5, True)
    # The same broker is elected again: the controller is the same, its epoch is new.
    gone = WatchEvent(records.CONTROLLER_KEY, None, 6)
    image, delta = apply(image, [gone, elected(1, 7)], 7)
    assert (image.controller, image.controller_epoch, delta.controller) == (1, 7, False)


def test_feature_levels_are_applied() -> None:
    put = WatchEvent(records.FEATURES_KEY, records.encode_features({"f": 2}), 3)
    image, delta = apply(ClusterImage(), [put], 3)
    assert (dict(image.features.levels), image.features.revision) == ({"f": 2}, 3)
    assert delta.features
    assert bool(delta)
    assert difference(ClusterImage(), image).features
    same = WatchEvent(records.FEATURES_KEY, records.encode_features({"f": 2}), 4)
    image, delta = apply(image, [same], 4)
    assert (image.features.revision, delta.features) == (4, False)
