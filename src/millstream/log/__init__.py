"""Storage of partitions: segments with their indexes, recovery, retention, compaction."""
