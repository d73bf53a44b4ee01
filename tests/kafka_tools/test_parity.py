"""Every subcommand of Kafka's tools prints the same about Millstream as about Apache Kafka.

`parity/catalogue.py` lists the commands. `parity/known_differences.toml` lists the accepted
differences with their reasons. An unlisted difference fails the test, and so does an entry that is
no longer needed. The scenarios run in order; each continues with the state that the previous ones
left.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.tool.java import FOLDERS, require_java
from kafka_tools.parity.catalogue import NOT_COMPARED, SCENARIOS
from kafka_tools.parity.comparison import Comparison
from kafka_tools.parity.known import KnownDifferences, load_known
from kafka_tools.parity.peer import Peer, kafka, millstream
from kafka_tools.parity.step import Stop
from kafka_tools.runner import TOOLS, ToolRunner

#: Name and signature of a main method in a class file's constants.
_MAIN = (b"\x01\x00\x04main", b"([Ljava/lang/String;)V")

pytestmark = pytest.mark.xdist_group("kafka-tools-parity")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    require_java("jars")
    with ExitStack() as running:
        yield (
            running.enter_context(kafka()),
            running.enter_context(millstream(tmp_path_factory.mktemp("millstream"))),
        )


@pytest.fixture(scope="module")
def known() -> KnownDifferences:
    return load_known()


@pytest.fixture(scope="module")
def compared() -> list[str]:
    """Return the scenarios that ran."""
    return []


@pytest.mark.parametrize("name", SCENARIOS)
def test_output(
    tools: ToolRunner,
    peers: tuple[Peer, Peer],
    known: KnownDifferences,
    compared: list[str],
    name: str,
    tmp_path: Path,
) -> None:
    comparison = Comparison(tools, peers, tmp_path, known.has)
    found = list(comparison.differences(SCENARIOS[name]))
    compared.append(name)
    new = [each for each in found if not known.has(each)]
    assert not new, "\n".join(f"{each.command}\n  {each.broker}: {each.line}" for each in new)


def test_known_differences_are_still_there(known: KnownDifferences, compared: list[str]) -> None:
    """Entries that also concern a scenario that did not run are not checked."""
    missed = [steps for name, steps in SCENARIOS.items() if name not in compared]
    untold = set(known.unneeded(missed))
    ran = known.unneeded(SCENARIOS[name] for name in compared)
    gone = [each for each in ran if each not in untold]
    assert not gone, "remove from known_differences.toml:\n" + "\n".join(gone)


def test_every_tool_is_compared() -> None:
    """Every tool class with a main method is in a scenario, or has a reason not to be."""
    require_java("jars")
    commands = [
        step.command.split()[0]
        for steps in SCENARIOS.values()
        for step in steps
        if not isinstance(step, Stop)
    ]
    compared = {TOOLS[name] for name in commands}
    (jar,) = FOLDERS["jars"].glob("kafka-tools-[0-9]*.jar")
    with zipfile.ZipFile(jar) as archive:
        startable = {
            name.removesuffix(".class").replace("/", ".")
            for name in archive.namelist()
            if name.endswith(".class")
            and "$" not in name
            and all(part in archive.read(name) for part in _MAIN)
        }
    assert startable - compared - set(NOT_COMPARED) == set()
    assert set(TOOLS.values()) - compared - set(NOT_COMPARED) == set()
    assert set(NOT_COMPARED) & compared == set()
