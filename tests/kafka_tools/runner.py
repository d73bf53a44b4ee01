"""Kafka's command line tools by the names of their scripts, all in one JVM.

    with ToolRunner(folder) as tools:
        result = tools.run("kafka-topics", "--bootstrap-server", address, "--list")
        with tools.running("kafka-verifiable-consumer", ...) as consumer:
            wait_until(lambda: "partitions_assigned" in consumer.text(), "an assignment")

`java/ToolRunner.java` is the other half and describes the protocol between them.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.tool.java import FOLDERS, JVM, class_path, compile_java, require_java

_SOURCE = Path(__file__).resolve().parent / "java" / "ToolRunner.java"
SECONDS_MAX = 120.0
_END_SECONDS_MAX = 10.0

#: Each script of Kafka's `bin` folder that starts a tool, and the class that it starts.
TOOLS: Mapping[str, str] = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}


@dataclass(slots=True, frozen=True)
class Result:
    """What a tool printed, and its exit code."""

    exit: int
    out: str
    err: str

    def text(self) -> str:
        return f"{self.out}\n{self.err}"


class ToolRunner:
    """The JVM. Calls may come from several threads; each tool has its own input and output."""

    def __init__(self, folder: Path, *flags: str) -> None:
        """`flags` are more flags of the JVM."""
        require_java("jars")
        classes = folder / "classes"
        classes.mkdir()
        compile_java(_SOURCE, classes, "jars")
        self._errors = folder / "runner.errors"
        jars = sorted(FOLDERS["jars"].glob("*.jar"))
        (tool_jar,) = (jar for jar in jars if re.match(r"kafka-tools-\d", jar.name))
        others = [str(jar) for jar in jars if jar != tool_jar]
        path = ":".join([str(classes), *others, class_path("kafka-applications")])
        # All tools share the heap, so it is larger than a single tool needs.
        own = ["-Xmx512m", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        command = [*JVM, *own, *flags, "-cp", path, "ToolRunner", str(tool_jar)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def run(
        self, tool: str, *arguments: str, stdin: str = "", seconds_max: float = SECONDS_MAX
    ) -> Result:
        """Run a tool to its end."""
        return self.start(tool, *arguments, stdin=stdin).wait(seconds_max)

    def start(self, tool: str, *arguments: str, stdin: str = "") -> RunningTool:
        name = TOOLS.get(tool, tool)
        number, future = self._send("run", **{"class": name, "args": arguments, "stdin": stdin})
        return RunningTool(self, f"{tool} {' '.join(arguments)}", number, future)

    @contextmanager
    def running(self, tool: str, *arguments: str) -> Iterator[RunningTool]:
        """Run a tool while the block runs, and then stop it as SIGTERM would."""
        running = self.start(tool, *arguments)
        try:
            yield running
        finally:
            running.stop()

    def call(self, op: str, **rest: Any) -> dict[str, Any]:
        _, future = self._send(op, **rest)
        return future.result(SECONDS_MAX)

    def _send(self, op: str, **rest: Any) -> tuple[int, Future[dict[str, Any]]]:
        number = next(self._numbers)
        future: Future[dict[str, Any]] = Future()
        assert self._process.stdin is not None
        with self._lock:
            self._pending[number] = future
            line = json.dumps({"id": number, "op": op, **rest})
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return number, future

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            response = json.loads(line)
            with self._lock:
                future = self._pending.pop(response["id"])
            future.set_result(response)
        text = self._errors.read_text(errors="replace")[-3000:]
        with self._lock:
            for future in self._pending.values():
                future.set_exception(AssertionError(f"the JVM of the tools ended:\n{text}"))


class RunningTool:
    """A tool that was started."""

    def __init__(
        self, runner: ToolRunner, title: str, number: int, future: Future[dict[str, Any]]
    ) -> None:
        self._runner = runner
        self._title = title
        self._number = number
        self._future = future
        self._lines: list[str] = []
        self._end = 0
        self.errors = ""

    def lines(self) -> list[str]:
        """The whole lines of its output so far."""
        response = self._runner.call("look", run=self._number, start=self._end)
        self._lines += response["lines"].splitlines()
        self._end = response["end"]
        self.errors = response["err"]
        return self._lines

    def text(self) -> str:
        """The same, with what it wrote to standard error."""
        return "\n".join([*self.lines(), self.errors])

    def wait(self, seconds_max: float = SECONDS_MAX) -> Result:
        try:
            response = self._future.result(seconds_max)
        except TimeoutError:
            raise AssertionError(
                f"{self._title} takes more than {seconds_max} s:\n{self.text()}"
            ) from None
        return Result(response["exit"], response["out"], response["err"])

    def stop(self) -> Result:
        """Stop the tool as SIGTERM would, unless it has ended."""
        if not self._future.done():
            self._runner.call("stop", run=self._number)
        return self.wait()
