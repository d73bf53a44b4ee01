"""What every job needs: brokers, a Spark session, a progress callback, and a stop event.

Job functions take `**options: Unpack[RunOptions]` and create a `Run` from them:

    def archive(topics, path, **options: Unpack[RunOptions]) -> Report:
        run = Run.of("archive", options)

The Spark session is created on first use, because most dry runs need none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypedDict, cast

from millstream.env.termination import preserved_interrupt_handler
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.spark.job.report import Progress, silent
from millstream.spark.redaction import hide_secrets, is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, Observation, SparkSession


class RunOptions(TypedDict, total=False):
    """The options of every job function."""

    #: Bootstrap servers, `host:port,...`.
    bootstrap_servers: str
    #: Client properties by their Kafka names (`security.protocol`, ...), for every connection.
    properties: Mapping[str, str]
    #: The session to use; default: the active one. Without an active session the job creates one
    #: and stops it at the end.
    spark: SparkSession | None
    #: For a session that the job creates: Spark's master (`local[*]`), or a Spark Connect server.
    master: str | None
    remote: str | None
    #: Only report what the job would do.
    dry_run: bool
    progress: Progress
    #: Once set, the job stops at the next point where no work is lost.
    stop: threading.Event


@dataclass(slots=True)
class Run:
    """The options of one run with defaults. On exit it stops the session that it created."""

    job: str
    bootstrap_servers: str = SERVERS_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict)
    spark: SparkSession | None = None
    master: str | None = None
    remote: str | None = None
    dry_run: bool = False
    progress: Progress = silent
    stop: threading.Event = field(default_factory=threading.Event)
    _owned: SparkSession | None = None
    #: Whether a remote session hides the secrets of its options.
    _hides_secrets: bool = False

    @classmethod
    def of(cls, job: str, options: RunOptions) -> Run:
        return cls(job, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            self.spark = None
            owned.stop()

    def session(self) -> SparkSession:
        """Return the session of the options, else the active one, else a new one."""
        if self.spark is None:
            from pyspark.sql import SparkSession

            self.spark = SparkSession.getActiveSession() or self._create_session()
        if not self._hides_secrets and is_remote(self.spark):
            hide_secrets(self.spark)
            self._hides_secrets = True
        return self.spark

    def _create_session(self) -> SparkSession:
        from millstream.spark.session import require_server, spark_session

        if self.remote is not None:
            require_server(self.remote)
        name = f"millstream {self.job}"
        # Spark installs a handler that would end the job in the middle of a batch.
        with preserved_interrupt_handler():
            created = self._owned = spark_session(name, master=self.master, remote=self.remote)
        return created

    def source_options(self) -> dict[str, str]:
        """Return the options of `format("millstream")` for the connection to the brokers."""
        given = {f"kafka.{name}": value for name, value in self.properties.items()}
        return given | {"kafka.bootstrap.servers": self.bootstrap_servers}

    def reader(self) -> DataFrameReader:
        """Return a batch reader of committed records, without topics and offsets."""
        options = {"kafka.isolation.level": "read_committed"} | self.source_options()
        return self.session().read.format("millstream").options(**options)


def observation(spark: SparkSession) -> Observation:
    """Return an Observation for `DataFrame.observe` that fits a classic or remote session."""
    if is_remote(spark):
        from pyspark.sql.connect.observation import Observation as RemoteObservation

        return cast("Observation", RemoteObservation())
    from pyspark.sql import Observation

    return Observation()
