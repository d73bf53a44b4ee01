"""Fixtures: client programs by name, compiled if necessary, and brokers that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.process.brokers import ONE, THREE, Brokers, started
from transactions_clients.program import (
    FOLDER,
    MAY_BE_MISSING,
    Program,
    build_go,
    compile_java,
    go_program,
    java_program,
    missing_tool,
    node_program,
    python_program,
    unreachable_go,
)
from transactions_clients.stable import SETTINGS


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share brokers. The others start their own."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and "brokers" in getattr(item, "fixturenames", ()):
            assert isinstance(item, pytest.Function)
            count = item.callspec.params["brokers"]
            item.add_marker(pytest.mark.xdist_group(f"transactions on {count}"))


@pytest.fixture(scope="session", params=[ONE, THREE])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    """Start brokers that tests share: a test that kills a broker restarts it. Each test uses
    its own topics, groups and ids."""
    with started(tmp_path_factory.mktemp("brokers"), request.param, SETTINGS) as running:
        yield running
        running.check_logs()


@pytest.fixture(scope="session")
def java_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled Java programs; empty until a test needs one."""
    return tmp_path_factory.mktemp("classes")


@pytest.fixture(scope="session")
def program_named(java_classes: Path) -> Callable[[str], Program]:
    """Return a function that finds a program. Programs that need Maven Central or npm are skipped
    if those are unreachable."""
    programs = {
        "confluent": python_program("processors/confluent_processor.py"),
        "aiokafka": python_program("processors/aiokafka_processor.py"),
        "kafkajs": node_program("processors/processor.js"),
        "java": java_program("Processor", java_classes),
        "java writer": java_program("Writer", java_classes),
        "confluent sender": python_program("senders/confluent_sender.py"),
        "aiokafka sender": python_program("senders/aiokafka_sender.py"),
        "kafka-python sender": python_program("senders/kafka_python_sender.py"),
        "kafkajs sender": node_program("senders/sender.js"),
        "java sender": java_program("Sender", java_classes),
    }

    def find(name: str) -> Program:
        program = programs[name]
        missing = missing_tool(program)
        if missing is not None:
            tool, reason = missing
            end = pytest.skip if tool in MAY_BE_MISSING else pytest.fail
            end(f"{tool} is not available: {reason}")
        if "java" in program.tools and not any(java_classes.iterdir()):
            compile_java(java_classes)
        return program

    return find


@pytest.fixture(scope="session")
def franz_sender(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return the franz-go sender; skip the test if Go or its modules are missing."""
    source = FOLDER / "senders" / "franz"
    reason = unreachable_go(source)
    if reason is not None:
        pytest.skip(f"franz-go is not available: {reason}")
    built = tmp_path_factory.mktemp("franz") / "sender"
    build_go(source, built)
    return go_program(built)


@pytest.fixture(scope="session")
def java_writer(java_classes: Path, program_named: Callable[[str], Program]) -> Program | None:
    """The Java writer, or None without Kafka's jars: a Python writer then takes its role."""
    missing = missing_tool(java_program("Writer", java_classes))
    if missing is not None and missing[0] in MAY_BE_MISSING:
        return None
    return program_named("java writer")
