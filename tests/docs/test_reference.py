"""The reference pages show what the code defines."""

from __future__ import annotations

import re
import sys

import pytest
import typer
import yaml

from docs.documents import REPOSITORY

if str(REPOSITORY) not in sys.path:
    sys.path.append(str(REPOSITORY))

from scripts.docs.extension import GENERATORS, page_text

from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.cli.main import build
from millstream.model.config import definitions as topic_definitions
from millstream.model.group_config import definitions as group_definitions

ALERTS = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
README_BYTES_MAX = 6 * 1024


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("broker-settings", broker_definitions),
        ("topic-settings", topic_definitions),
        ("group-settings", group_definitions),
    ],
)
def test_every_setting_has_one_row(page: str, names: dict[str, object]) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", GENERATORS[page](), re.MULTILINE)
    assert sorted(rows) == sorted(names)


def test_every_command_has_a_section_with_its_options() -> None:
    text = GENERATORS["cli"]()
    commands = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert f"## millstream {name}\n" in text
        for below in getattr(command, "commands", {}):
            assert f"### millstream {name} {below}\n" in text
    assert "| `--partitions`, `-p`" in text


def test_the_reference_says_which_of_two_flags_is_the_default() -> None:
    _, *sections = re.split(r"^#+ millstream ", GENERATORS["cli"](), flags=re.MULTILINE)
    texts = {section.partition("\n")[0]: section for section in sections}
    follow = (
        "| `--follow`, `--no-follow` | Keep following new records, or stop once everything is read."
    )
    assert f"{follow} Default: `--follow`. |" in texts["outbox relay"]
    assert f"{follow} Default: `--no-follow`. |" in texts["dlq list"]
    # One of the two has to be given.
    assert (
        "| `--sent`, `--unsent` | Whether the claimed batch is in the topic. |"
        in (texts["outbox settle"])
    )


def test_alerts_use_metrics_of_the_reference() -> None:
    """A metric that the reference lacks would mean that the page is not complete."""
    text = GENERATORS["metrics"]()
    named = set(re.findall(r"`(millstream_\w+)`", text))
    used = set(re.findall(r"\bmillstream_\w+", ALERTS.read_text()))
    used = {
        re.sub(r"_(bucket|sum|count)$", "", name) if name not in named else name for name in used
    }
    assert used - named == set()


def test_the_pages_of_protocol_spark_python_and_errors() -> None:
    assert "| `Fetch` | 1 | 4 to 18 |" in GENERATORS["protocol"]()
    assert "### Fetch\n\nVersions 4 to 18. Returns committed batches" in GENERATORS["protocol"]()
    assert "| `startingOffsets` |" in GENERATORS["spark-options"]()
    assert (
        "| 3 | `UNKNOWN_TOPIC_OR_PARTITION` | Unknown topic or partition |"
        in GENERATORS["error-codes"]()
    )
    assert "| 4 | no connection" in GENERATORS["exit-codes"]()
    assert "| `ProducerFenced` | `BrokerError` |" in GENERATORS["exceptions"]()
    python = GENERATORS["python"]()
    assert "## Producer\n" in python
    assert "send(" in python
    assert "### read_topic_history\n" in GENERATORS["python-spark"]()


def test_every_generator_has_a_page() -> None:
    used = {
        name
        for path in (REPOSITORY / "docs" / "reference").glob("*.md")
        for name in re.findall(r"\{generated\} ([\w-]+)", path.read_text())
    }
    assert used == set(GENERATORS)


def test_links_between_files_become_links_between_pages() -> None:
    text = "[a](../../ARCHITECTURE.md) [b](../../deploy/prometheus/alerts.yml) [c](#d)"
    assert page_text("how-to/x", text) == (
        "[a](../project/architecture.md) b (`deploy/prometheus/alerts.yml`) [c](#d)"
    )


def test_every_alert_names_its_section_of_the_runbook() -> None:
    runbook = (REPOSITORY / "docs" / "how-to" / "runbook.md").read_text()
    sections = re.findall(r"^### (\w+)$", runbook, re.MULTILINE)
    rules = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    alerts = [rule["alert"] for rule in rules if "alert" in rule]
    assert sorted(sections) == sorted(alerts)
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"millstream docs {rule['alert']}"


def test_the_readme_is_short_and_has_the_two_commands() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert len(readme.encode()) <= README_BYTES_MAX
    assert "## The two commands" in readme
