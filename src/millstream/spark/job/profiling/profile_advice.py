"""Derives advice from the measures of a topic. Pure.

The advice assumes 10 MB/s per partition. This is less than one broker's disk and one consumer can
handle, so that both can catch up. More partitions do not spread a single key, because all its
records go to one partition; only salting does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from millstream.spark.job.profiling.profile_measure import (
    CompressionSample,
    KeyDistribution,
    KeyMeasure,
    PartitionTime,
    TopicLoad,
)

PARTITION_BYTES_S: Final = 10_000_000
#: A partition is hot with this many fair shares, a key with this many partitions' fair shares.
HOT_PARTITION_PARTS: Final = 2.0
HOT_KEY_PARTS: Final = 1.0
_KEY_SHARE_MIN: Final = 0.05
#: Thresholds of advice.
_PACKED_RATIO_MAX: Final = 0.8
_NULL_KEYS_SHARE_MIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """The measures of a topic."""

    topic: str
    partitions: int
    bucket_s: int
    times: tuple[PartitionTime, ...]
    load: TopicLoad
    keys: KeyDistribution
    duplicates: int
    packed: CompressionSample

    @property
    def span_s(self) -> float:
        """Return the time from the first record to the last, at least one second."""
        if not self.times:
            return 1.0
        first, last = min(t.first_s for t in self.times), max(t.last_s for t in self.times)
        return max(1.0, last - first)

    @property
    def peak_bytes_s(self) -> float:
        width = min(float(self.bucket_s), self.span_s)
        return max((each.bytes for each in self.load.buckets), default=0) / width

    @property
    def peak_records_s(self) -> float:
        width = min(float(self.bucket_s), self.span_s)
        return max((each.records for each in self.load.buckets), default=0) / width

    @property
    def behind(self) -> int:
        return sum(each.behind for each in self.times)

    @property
    def behind_s_max(self) -> float:
        return max((each.behind_s_max for each in self.times), default=0.0)

    def share(self, records: int) -> float:
        return records / self.load.records if self.load.records else 0.0

    def parts(self, records: int) -> float:
        """Return records as a multiple of one partition's fair share."""
        return self.share(records) * self.partitions

    def is_hot_key(self, key: KeyMeasure) -> bool:
        """Return whether a key alone fills a partition, by its share or by its rate."""
        bytes_share = key.bytes / self.load.bytes if self.load.bytes else 0.0
        is_large = self.partitions > 1 and self.share(key.records) >= _KEY_SHARE_MIN
        fills_one = is_large and self.parts(key.records) > HOT_KEY_PARTS
        return fills_one or bytes_share * self.peak_bytes_s > PARTITION_BYTES_S


def partitions_needed(peak_bytes_s: float) -> int:
    """Return the number of partitions for at most 10 MB/s each at the peak."""
    return max(1, math.ceil(peak_bytes_s / PARTITION_BYTES_S))


def salt_count(profile: TopicProfile, key: KeyMeasure) -> int:
    """Return the number of partitions that a hot key fills, over which to salt it."""
    bytes_share = key.bytes / profile.load.bytes if profile.load.bytes else 0.0
    by_rate = math.ceil(bytes_share * profile.peak_bytes_s / PARTITION_BYTES_S)
    by_share = math.ceil(profile.parts(key.records))
    return max(2, min(profile.partitions, max(by_rate, by_share)))


def advice(profile: TopicProfile) -> list[str]:
    """Return sentences, the most important first; empty if there is no advice."""
    return [
        *_on_partitions(profile),
        *_on_keys(profile),
        *_on_contents(profile),
    ]


def _on_partitions(profile: TopicProfile) -> list[str]:
    found = []
    needed = partitions_needed(profile.peak_bytes_s)
    if needed > profile.partitions:
        peak_mb_s = profile.peak_bytes_s / 1e6
        found.append(
            f"{profile.partitions} partitions are too few for a peak of {peak_mb_s:.1f} MB/s: at "
            f"10 MB/s each, {needed} are needed. Keys move to other partitions when they are added."
        )
    hot = [
        each.at
        for each in profile.load.partitions
        if profile.partitions > 1 and profile.parts(each.records) > HOT_PARTITION_PARTS
    ]
    if hot:
        listed = ", ".join(map(str, hot[:10]))
        found.append(f"Partitions with more than twice their fair share of the records: {listed}.")
    empty = profile.partitions - len(profile.load.partitions)
    if empty:
        found.append(f"{empty} of {profile.partitions} partitions have no records in this time.")
    return found


def _on_keys(profile: TopicProfile) -> list[str]:
    found = []
    for key in profile.keys.named:
        if profile.is_hot_key(key):
            share = profile.share(key.records)
            found.append(
                f"Key {key.name!r} has {share:.0%} of the records, more than a partition's fair"
                f" share: salt it over {salt_count(profile, key)} partitions "
                "(millstream.client.hot_keys.salting)."
            )
    if profile.keys.distinct and profile.keys.distinct < profile.partitions:
        found.append(
            f"{profile.keys.distinct} keys cannot fill {profile.partitions} partitions evenly."
        )
    share = profile.share(profile.load.null_keys)
    if _NULL_KEYS_SHARE_MIN <= share < 1.0:
        found.append(
            f"{share:.0%} of the records have no key: they have no order among themselves, and "
            "compacted topics reject them."
        )
    return found


def _on_contents(profile: TopicProfile) -> list[str]:
    found = []
    ratios = {name: profile.packed.ratio(name) for name in profile.packed.packed_bytes}
    best = min(ratios, key=lambda name: ratios[name], default=None)
    if best is not None and ratios[best] < _PACKED_RATIO_MAX:
        cheap = min(("lz4", "snappy"), key=lambda name: ratios.get(name, 1.0))
        found.append(
            f"Plain records shrink to {ratios[best]:.0%} with {best} and to "
            f"{ratios.get(cheap, 1.0):.0%} with {cheap}: set compression.type on producers that "
            "don't compress yet."
        )
    if profile.duplicates:
        found.append(
            f"{profile.duplicates} records repeat the key and value of another: where that is not "
            "meant, producers without idempotence or jobs that ran twice wrote them."
        )
    if profile.behind:
        found.append(
            f"{profile.behind} records are older than one before them, by up to "
            f"{profile.behind_s_max:.0f} s: a watermark shorter than that drops some."
        )
    return found
