from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from groups.classic_world import World
from millstream.coordination.effects import LogRecord
from millstream.groups import group_record as record
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.offset import GroupOffsets

RETENTION_MS = 1000


def committed(offset: int = 5, commit_ms: int = 0, **more: object) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", commit_ms)._replace(**more)  # type: ignore[arg-type]


def replay(records: list[LogRecord]) -> GroupOffsets:
    offsets = GroupOffsets("group")
    for raw_key, raw_value in records:
        key = record.decode_key(raw_key)
        assert isinstance(key, record.OffsetCommitKey)
        value = record.decode_value(key, raw_value)
        assert value is None or isinstance(value, record.OffsetCommitValue)
        offsets.restore(key, value)
    return offsets


_places = st.tuples(st.sampled_from(["t", "u", "v"]), st.integers(0, 3))
_commits = st.builds(
    CommittedOffset,
    offset=st.integers(0, 2**62),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=20),
    commit_ms=st.integers(0, 2**40),
    expire_ms=st.just(-1),
    topic_id=st.binary(min_size=16, max_size=16),
)


@given(st.lists(st.one_of(st.tuples(_places, _commits), st.tuples(_places, st.none()))))
def test_replaying_the_records_gives_the_same_offsets(
    changes: list[tuple[tuple[str, int], CommittedOffset | None]],
) -> None:
    offsets = GroupOffsets("group")
    expected: dict[tuple[str, int], CommittedOffset] = {}
    records: list[LogRecord] = []
    for place, change in changes:
        if change is None:
            records += offsets.delete(*place)
            expected.pop(place, None)
        else:
            records.append(offsets.commit(*place, change))
            expected[place] = change
    for each in (offsets, replay(records)):
        assert {(topic, number): found for topic, number, found in each} == expected
        assert len(each) == len(expected)
        assert bool(each) == bool(expected)


def test_the_expiry_of_an_offset_survives_a_replay() -> None:
    offsets = GroupOffsets("group")
    records = [offsets.commit("t", 0, committed(expire_ms=77))]
    found = replay(records).get("t", 0)
    assert found is not None
    assert found.expire_ms == 77


def test_deleting_twice_writes_one_tombstone() -> None:
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed())
    assert len(offsets.delete("t", 0)) == 1
    assert offsets.delete("t", 0) == []
    assert not offsets


def test_a_new_topic_of_the_same_name_does_not_inherit_offsets() -> None:
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed(topic_id=b"a" * 16))
    offsets.commit("t", 1, committed())
    assert offsets.get("t", 0, b"a" * 16) is not None
    assert offsets.get("t", 0, b"b" * 16) is None
    assert offsets.get("t", 0) is not None
    assert offsets.get("t", 1, b"b" * 16) is not None, "committed before ids were kept"


def test_a_group_that_only_commits_keeps_each_offset_for_the_retention_after_its_commit() -> None:
    world = World()
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed(commit_ms=0))
    offsets.commit("t", 1, committed(commit_ms=10))
    assert offsets.expire(RETENTION_MS - 1, RETENTION_MS, world.group) == []
    assert len(offsets.expire(RETENTION_MS, RETENTION_MS, world.group)) == 1
    assert [number for _, number, _ in offsets] == [1]


def test_offsets_of_subscribed_topics_never_expire() -> None:
    world = World()
    members = world.stable()
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed())
    offsets.commit("gone", 0, committed())
    tombstones = offsets.expire(10**15, RETENTION_MS, world.group)
    assert len(tombstones) == 1
    assert list(offsets.topics) == ["t"]
    world.join(members[0])
    offsets.commit("gone", 0, committed())
    assert offsets.expire(10**15, RETENTION_MS, world.group) == [], "not during a rebalance"


def test_offsets_age_from_when_the_group_became_empty() -> None:
    world = World()
    members = world.stable()
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed())
    world.leave(*((member, None) for member in members))
    assert offsets.expire(world.now_ms + RETENTION_MS - 1, RETENTION_MS, world.group) == []
    assert len(offsets.expire(world.now_ms + RETENTION_MS, RETENTION_MS, world.group)) == 1


def test_the_expiry_of_an_offset_overrides_the_retention() -> None:
    world = World()
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed(expire_ms=10 * RETENTION_MS))
    assert offsets.expire(9 * RETENTION_MS, RETENTION_MS, world.group) == []
    assert len(offsets.expire(10 * RETENTION_MS, RETENTION_MS, world.group)) == 1


# Transactions

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.just(-1), _places, _commits),
        st.tuples(st.just("delete"), st.just(-1), _places, st.none()),
        st.tuples(st.just("pend"), st.integers(0, 2), _places, _commits),
        st.tuples(st.sampled_from(["keep", "drop"]), st.integers(0, 2), st.none(), st.none()),
    ),
    max_size=30,
)


@given(_steps)
def test_the_last_commit_wins_in_whatever_order_transactions_end(
    steps: list[tuple[str, int, tuple[str, int], CommittedOffset]],
) -> None:
    """Compare with a model that stores every commit, and with a replay of the records."""
    offsets, replayed = GroupOffsets("group"), GroupOffsets("group")
    #: By partition: the order of the commit, its producer (None if committed), and the offset.
    model: dict[tuple[str, int], list[tuple[int, int | None, CommittedOffset]]] = {}
    for serial, (what, producer_id, place, value) in enumerate(steps):
        records: list[LogRecord] = []
        if what == "commit":
            records = [offsets.commit(*place, value)]
            model.setdefault(place, []).append((serial, None, value))
        elif what == "delete":
            records = offsets.delete(*place)
            model.pop(place, None)
        elif what == "pend":
            records = [offsets.commit_pending(producer_id, *place, value)]
            model.setdefault(place, []).append((serial, producer_id, value))
        else:
            for each in (offsets, replayed):
                each.complete_transaction(producer_id, is_commit=what == "keep")
            _end_transaction(model, producer_id, is_commit=what == "keep")
        _restore(replayed, records, producer_id)
        for each in (offsets, replayed):
            _check(each, model)


def _end_transaction(
    model: dict[tuple[str, int], list[tuple[int, int | None, CommittedOffset]]],
    producer_id: int,
    *,
    is_commit: bool,
) -> None:
    for place, rows in model.items():
        mine = [row for row in rows if row[1] == producer_id]
        # A transaction keeps only its last commit for a partition.
        kept = [(serial, None, value) for serial, _, value in mine[-1:]] if is_commit else []
        model[place] = sorted([row for row in rows if row not in mine] + kept, key=lambda r: r[0])


def _restore(offsets: GroupOffsets, records: list[LogRecord], producer_id: int) -> None:
    for raw_key, raw_value in records:
        key = record.decode_key(raw_key)
        assert isinstance(key, record.OffsetCommitKey)
        value = record.decode_value(key, raw_value)
        assert value is None or isinstance(value, record.OffsetCommitValue)
        offsets.restore(key, value, producer_id)


def _check(
    offsets: GroupOffsets,
    model: dict[tuple[str, int], list[tuple[int, int | None, CommittedOffset]]],
) -> None:
    for topic, number in [(topic, number) for topic in "tuv" for number in range(4)]:
        rows = model.get((topic, number), [])
        final = [(serial, value) for serial, producer_id, value in rows if producer_id is None]
        newest = max((serial for serial, _ in final), default=-1)
        expected = final[-1][1] if final else None
        assert offsets.get(topic, number) == expected
        is_unstable = any(
            producer_id is not None and serial > newest for serial, producer_id, _ in rows
        )
        assert offsets.is_unstable(topic, number) == is_unstable


def test_a_group_with_pending_offsets_is_not_dropped() -> None:
    world = World()
    offsets = GroupOffsets("group")
    offsets.commit("t", 0, committed())
    offsets.commit_pending(7, "t", 0, committed(6))
    offsets.commit_pending(7, "u", 1, committed(6))
    assert offsets.expire(10**15, RETENTION_MS, world.group) == [], "it may be changed yet"
    assert len(offsets.delete_all()) == 2
    assert not offsets
    offsets.complete_transaction(7, is_commit=True)
    assert not offsets
