"""Settings for the data directory, the upkeep of logs, compaction and producer state."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.model.sentinel import INT64_MAX

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """Partition logs. `config.log`."""

    log_dir: str = setting(_STRING, "./millstream-data", "The data directory.", shown_kind=_LIST)
    log_dirs: tuple[str, ...] | None = setting(
        _LIST, None, "The data directory; takes precedence over log.dir. Only one is allowed."
    )

    # Upkeep.
    log_flush_before_ack: bool = setting(
        _BOOLEAN, False, "Flush records to stable storage before they are acknowledged."
    )
    log_flush_scheduler_interval_ms: int = setting(
        _LONG, INT64_MAX, "Time between checks for logs whose flush.ms has elapsed.", minimum=1
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        _INT, 60_000, "Time between checkpoints of the recovery points.", minimum=1
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        _INT, 60_000, "Time between checkpoints of the log start offsets.", minimum=1
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        _LONG, 5000, "Time between checkpoints of the high watermarks.", minimum=1
    )
    log_retention_check_interval_ms: int = setting(
        _LONG, 300_000, "Time between checks for segments that are past retention.", minimum=1
    )
    log_initial_task_delay_ms: int = setting(
        _LONG, 30_000, "Time from the start to the first of these checks.", minimum=0
    )
    log_open_files_max: int = setting(
        _INT,
        4096,
        "Maximum number of log files open at a time; others are opened when needed.",
        minimum=16,
    )
    num_recovery_threads_per_data_dir: int = setting(
        _INT,
        2,
        "Threads that recover logs after an unclean shutdown, and flush them at shutdown.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )

    # Compaction.
    log_cleaner_enable: bool = setting(
        _BOOLEAN, True, "Compact topics with cleanup.policy=compact."
    )
    log_cleaner_threads: int = setting(
        _INT, 1, "Number of logs compacted at a time.", minimum=0, scope=ConfigScope.CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        _LONG,
        128 * _MIB,
        "Memory for the keys of the logs being compacted, over all threads.",
        minimum=_MIB,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size: int = setting(
        _INT,
        512 * 1024,
        "Memory for reads and writes of the log cleaner, over all threads.",
        minimum=1024,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        _DOUBLE,
        0.9,
        "Maximum load factor of the memory for keys.",
        minimum=0.1,
        maximum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        _DOUBLE,
        1.7976931348623157e308,
        "Maximum rate of the log cleaner's reads and writes together.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = setting(
        _LONG,
        15_000,
        "Time that the log cleaner sleeps when there is nothing to compact.",
        minimum=0,
        scope=ConfigScope.CLUSTER_WIDE,
    )

    # Idempotent producers.
    producer_id_expiration_ms: int = setting(
        _INT,
        86_400_000,
        "Idle time after which the state of a producer expires.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        _INT, 600_000, "Time between checks for expired producers.", minimum=1
    )

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return Path(self.log_dirs[0] if self.log_dirs else self.log_dir)
