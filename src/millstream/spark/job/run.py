"""What every job is given: brokers, a Spark, somebody to tell, and a way to be stopped.

Job functions take `**options: Unpack[RunOptions]` and make a `Run` of them:

    def archive(topics, path, **options: Unpack[RunOptions]) -> Report:
        run = Run.of("archive", options)

The Spark session is made on first use, so that what needs none (most dry runs) starts none.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, TypedDict, cast

from millstream.spark.job.report import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, Observation, SparkSession

SERVERS_DEFAULT: Final = "127.0.0.1:9092"


class RunOptions(TypedDict, total=False):
    """What every job function takes, by name."""

    #: Brokers to ask first, `host:port,...`.
    bootstrap_servers: str
    #: Client properties by their Kafka names (`security.protocol`, ...), for every connection.
    properties: Mapping[str, str]
    #: The session to work in; else the active one. Without any the job makes its own, and stops it
    #: in the end.
    spark: SparkSession | None
    #: For a session of the job's own: Spark's master (`local[*]`), or a Spark Connect server.
    master: str | None
    remote: str | None
    #: Only say what would be done.
    dry_run: bool
    progress: Progress
    #: Once set, the job stops at the next point at which nothing is lost.
    stop: threading.Event


@dataclass(slots=True)
class Run:
    """The options of one run, with their defaults. A context: it stops the session it made."""

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
        """The Spark session: the one given, the one this thread works in, or one made now."""
        if self.spark is None:
            from pyspark.sql import SparkSession

            self.spark = SparkSession.getActiveSession() or self._make()
        return self.spark

    def _make(self) -> SparkSession:
        from millstream.spark.session import require_server, spark_session

        if self.remote is not None:
            require_server(self.remote)
        handler = signal.getsignal(signal.SIGINT)
        name = f"millstream {self.job}"
        made = self._owned = spark_session(name, master=self.master, remote=self.remote)
        if threading.current_thread() is threading.main_thread():
            # Spark's own would end the job in the middle of a batch.
            signal.signal(signal.SIGINT, handler)
        return made

    def source_options(self) -> dict[str, str]:
        """The options of `format("millstream")` that say where the brokers are."""
        given = {f"kafka.{name}": value for name, value in self.properties.items()}
        return given | {"kafka.bootstrap.servers": self.bootstrap_servers}

    def reader(self) -> DataFrameReader:
        """A batch reader of committed records, still without topics and offsets."""
        options = {"kafka.isolation.level": "read_committed"} | self.source_options()
        return self.session().read.format("millstream").options(**options)


def observation(spark: SparkSession) -> Observation:
    """For `DataFrame.observe`: of the kind that the session, classic or remote, takes."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect.observation import Observation as RemoteObservation

        return cast("Observation", RemoteObservation())
    from pyspark.sql import Observation

    return Observation()
