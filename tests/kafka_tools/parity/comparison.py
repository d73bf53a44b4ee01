"""Runs the steps of a scenario on both brokers and finds the lines in which their outputs differ.

Before lines are compared, everything that two brokers cannot have in common is masked: addresses,
folders, ids, times. The lines of most commands have no promised order and are compared as a bag.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.process.broker_process import wait_until
from kafka_tools.parity.peer import Peer
from kafka_tools.parity.step import Run, Start, Step, Stop
from kafka_tools.runner import Result, RunningTool, ToolRunner

#: How long the outputs of a read-only command may differ.
_SETTLE_SECONDS_MAX = 5.0
#: Tools that name the option for the address in their own way, or take none.
_ADDRESS_OPTIONS = {"kafka-replica-verification": "--broker-list", "kafka-dump-log": None}
#: Tools whose subcommand comes before the address.
_SUBCOMMAND_FIRST = frozenset({"kafka-cluster"})

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID = r"[A-Za-z0-9_-]{22}"
_MASKS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[ \t]+", " "),
        (r"127\.0\.0\.1:\d+", "HOST:PORT"),
        (r"(?<=127\.0\.0\.1 )\d{4,5}", "PORT"),
        (rf"[\w.-]*{_UUID}", "MEMBER"),
        (rf"(TopicId: |Cluster ID: |ClusterId: |cluster\.id=|topicId\":\"){_ID}", r"\1ID"),
        # Members of the consumer protocol, before their host.
        (rf"(?<= ){_ID}(?= /127)", "MEMBER"),
        (r"\b1[6-9]\d{11}\b", "TIME"),
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,:]\d+)?", "TIME"),
        (r"\bcrc: \d+", "crc: CRC"),
        (r"\bclientId=[\w-]+", "clientId=CLIENT"),
        (rf"\b(Member |directoryId\": \"){_ID}", r"\1ID"),
        # A client numbers the consumers of its process, and makes up names for groups.
        (r"\b(consumer-[\w-]+|console-consumer|perf-consumer)-\d+\b", r"\1-N"),
        # The sentence is the broker's own; the exception stands for the protocol's error code.
        (r"(errors\.(?!UnsupportedVersion)\w+Exception): .*", r"\1: SENTENCE"),
    )
]
#: Where in Kafka's code an error came from.
_STACK = re.compile(r"\s*(at |\.\.\. \d+ more)")


@dataclass(slots=True, frozen=True)
class Difference:
    """A line that only one of the brokers prints."""

    command: str
    broker: str
    line: str


class Comparison:
    """The comparison of one scenario. Files for commands are created in `folder`."""

    def __init__(
        self,
        tools: ToolRunner,
        peers: Sequence[Peer],
        folder: Path,
        is_known: Callable[[Difference], bool],
    ) -> None:
        self._tools = tools
        self._peers = peers
        self._folder = folder
        self._is_known = is_known
        self._started: list[tuple[str, list[RunningTool]]] = []

    def differences(self, steps: Sequence[Step]) -> Iterator[Difference]:
        with ThreadPoolExecutor(len(self._peers)) as pool:
            self._pool = pool
            try:
                for step in steps:
                    yield from self._take(step)
            finally:
                for _, running in self._started:
                    for each in running:
                        each.stop()

    def _take(self, step: Step) -> Iterator[Difference]:
        match step:
            case Run():
                yield from self._run(step)
            case Start():
                self._start(step)
            case Stop():
                command, running = self._started.pop()
                outputs = [
                    self._lines(each.stop(), peer, step)
                    for each, peer in zip(running, self._peers, strict=True)
                ]
                yield from self._compared(command, outputs)

    def _start(self, step: Start) -> None:
        running = [self._tools.start(*self._words(step.command, peer)) for peer in self._peers]
        self._started.append((step.command, running))
        wait_until(lambda: all(step.until in each.text() for each in running), step.command)

    def _run(self, step: Run) -> Iterator[Difference]:
        for name, content in step.files.items():
            path = self._folder / name
            path.write_text(content)
            for peer in self._peers:
                peer.values[name] = str(path)
        deadline = time.monotonic() + _SETTLE_SECONDS_MAX
        while True:
            outputs = list(self._pool.map(lambda peer: self._output(step, peer), self._peers))
            found = list(self._compared(step.command, outputs, is_ordered=step.is_ordered))
            is_settled = all(self._is_known(each) for each in found)
            if is_settled or not step.is_read or time.monotonic() > deadline:
                break
        yield from found

    def _output(self, step: Run, peer: Peer) -> list[str]:
        result = self._tools.run(*self._words(step.command, peer), stdin=step.stdin)
        if step.capture is not None:
            name, pattern = step.capture
            match = re.search(pattern, result.out)
            assert match is not None, result
            peer.values[name] = match[1]
        return self._lines(result, peer, step)

    def _words(self, command: str, peer: Peer) -> list[str]:
        tool, *rest = shlex.split(command.format(data=peer.data, **peer.values))
        option = _ADDRESS_OPTIONS.get(tool, "--bootstrap-server")
        address = [] if option is None else [option, peer.bootstrap]
        if tool in _SUBCOMMAND_FIRST:
            return [tool, rest[0], *address, *rest[1:]]
        return [tool, *address, *rest]

    def _lines(self, result: Result, peer: Peer, step: Run | Stop) -> list[str]:
        lines = [f"exit code {result.exit}"]
        # Some formatters put no line feed after a record.
        for line in result.text().replace("}}{", "}}\n{").splitlines():
            if not line.strip() or _STACK.match(line):
                continue
            masked = line.replace(str(peer.data), "DATA").replace(str(self._folder), "FOLDER")
            for pattern, replacement in _MASKS:
                masked = pattern.sub(replacement, masked)
            for own, replacement in step.masks:
                masked = re.sub(own, replacement, masked)
            lines.append(masked.strip())
        return list(dict.fromkeys(lines)) if step.is_distinct else lines

    def _compared(
        self, command: str, outputs: Sequence[list[str]], *, is_ordered: bool = False
    ) -> Iterator[Difference]:
        first, second = outputs
        if is_ordered and first != second and Counter(first) == Counter(second):
            yield Difference(command, "both", "the same lines in another order")
        for peer, own, other in zip(self._peers, (first, second), (second, first), strict=True):
            for line in (Counter(own) - Counter(other)).elements():
                yield Difference(command, peer.name, line)
