from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from millstream.cli.json_output.table import JSON_OUTPUTS
from millstream.cli.main import MODULES, build, completed_words

if TYPE_CHECKING:
    from tests.cli.conftest import Run

HEAVY = (
    "confluent_kafka",
    "aiohttp",
    "uvloop",
    "prometheus_client",
    "millstream.broker",
    "cramjam",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pyspark",
)


#: Subcommands that have no commands of their own.
_ALONE = ("serve", "produce", "consume", "doctor", "docs")
#: Commands that print nothing for scripts.
_WITHOUT_DATA: Final = frozenset({"docs", "worker run"})


def test_version(run: Run) -> None:
    number = importlib.metadata.version("millstream")
    assert run("--version").out == f"millstream {number}\n"
    assert run("version").out.startswith(f"millstream {number}\n")
    assert json.loads(run("version", "--json").out)["millstream"] == number


def _commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[_Command]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, (*path, name))
        else:
            yield _Command((*path, name), command)


class _Command(NamedTuple):
    """A command and the words that call it."""

    path: tuple[str, ...]
    command: TyperCommand

    @property
    def options(self) -> list[TyperOption]:
        return [each for each in self.command.params if isinstance(each, TyperOption)]


_ROOT = typer.main.get_command(build())
assert isinstance(_ROOT, TyperGroup)
_COMMANDS = list(_commands(_ROOT))


def test_every_module_adds_its_commands() -> None:
    words = {each.path for each in _COMMANDS}
    assert {path[0] for path in words} == {*MODULES, "version"}
    assert {
        ("topic", "create"),
        ("group", "reset-offsets"),
        ("txn", "abort"),
        ("broker", "decommission"),
        ("cluster", "up"),
        ("log", "dump"),
        ("dlq", "replay"),
        ("outbox", "relay"),
        ("broker", "config", "set"),
        ("profile", "create"),
        ("doctor",),
    } <= words


def test_every_command_that_prints_data_has_json_with_documented_keys() -> None:
    """A command without data belongs into `_WITHOUT_DATA`, any other into `JSON_OUTPUTS`."""
    lacking, undocumented = [], []
    for each in _COMMANDS:
        name = " ".join(each.path)
        spellings = [spelling for option in each.options for spelling in option.opts]
        if "--json" in spellings and name not in JSON_OUTPUTS:
            undocumented.append(name)
        elif "--json" not in spellings and name not in _WITHOUT_DATA:
            lacking.append(name)
    assert (lacking, undocumented) == ([], [])


def test_documented_outputs_belong_to_commands() -> None:
    names = {" ".join(each.path) for each in _COMMANDS} | {"serve --check"}
    assert sorted(JSON_OUTPUTS.keys() - names) == []
    for name, output in JSON_OUTPUTS.items():
        assert output.keys, name
        assert all(meaning.endswith(".") for meaning in output.keys.values()), name


def test_one_spelling_for_each_meaning() -> None:
    """Options that exist in several commands have the same spellings everywhere."""
    spellings = {
        "--follow": {"--follow", "--no-follow"},
        "--yes": {"--yes", "-y"},
        "--json": {"--json"},
        "--dry-run": {"--dry-run"},
        "--regex": {"--regex"},
    }
    for each in _COMMANDS:
        for option in each.options:
            for name, expected in spellings.items():
                if name in option.opts:
                    found = {*option.opts, *option.secondary_opts}
                    assert found >= expected, each.path
        own = {spelling for option in each.options for spelling in option.opts}
        assert not own & {"--available-now", "--continuous", "--drain", "--troubled"}, each.path


def test_every_command_that_connects_has_a_profile() -> None:
    for each in _COMMANDS:
        own = {spelling for option in each.options for spelling in option.opts}
        connects = any(option.envvar == "MILLSTREAM_BOOTSTRAP_SERVERS" for option in each.options)
        assert connects == ("--profile" in own), each.path


@pytest.mark.parametrize("each", _COMMANDS, ids=lambda each: " ".join(each.path))
def test_help_describes_the_command_and_all_its_options(run: Run, each: _Command) -> None:
    outcome = run(*each.path, "--help")
    assert outcome.code == 0
    assert f"Usage: millstream {' '.join(each.path)}" in outcome.out.replace(
        " root ", " millstream "
    )
    text = " ".join(outcome.out.split())
    first = (each.command.help or "").split("\n\n")[0].split()
    assert first, "the command has no description"
    assert " ".join(first[:5]) in text
    for option in each.options:
        assert option.opts[0] in text
        assert (option.help or "").endswith("."), option.opts[0]


def test_the_usage_shows_which_arguments_can_be_repeated() -> None:
    for each in _COMMANDS:
        for argument in each.command.params:
            if argument.param_type_name == "argument":
                shown = (argument.metavar or "").strip("[]").endswith("...")
                assert shown == (argument.nargs == -1), (each.path, argument.name)


@pytest.mark.parametrize("each", _COMMANDS, ids=lambda each: " ".join(each.path))
def test_an_unknown_option_is_a_usage_error(run: Run, each: _Command) -> None:
    outcome = run(*each.path, "--no-such-option")
    assert outcome.code == 2
    assert "--no-such-option" in outcome.error
    assert outcome.out == ""


@pytest.mark.parametrize("name", [each for each in MODULES if each not in _ALONE])
def test_a_group_of_commands_lists_them(run: Run, name: str) -> None:
    outcome = run(name, "--help")
    assert outcome.code == 0
    for each in _COMMANDS:
        if each.path[0] == name:
            assert each.path[1] in outcome.out


def test_help_names_the_exit_codes(run: Run) -> None:
    assert "Exit codes: 0 done" in run("--help").out
    lacking = [each.path for each in _COMMANDS if "Exit codes" not in (each.command.epilog or "")]
    assert lacking == [("version",)]


def test_wrong_usage(run: Run) -> None:
    assert run("no-such-command").code == 2
    assert run("consume").code == 2


def test_each_subcommand_can_be_built_alone() -> None:
    for name in MODULES:
        command = typer.main.get_command(build([name]))
        assert isinstance(command, TyperGroup)
        assert set(command.commands) == {name, "version"}


def test_completion_imports_only_the_completed_subcommand() -> None:
    bash = {"_MILLSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "millstream topic describe o"}
    assert completed_words(bash)[1] == "topic"
    fish = {"_MILLSTREAM_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "millstream "}
    assert completed_words(fish) == ["millstream"]
    assert completed_words({"COMP_WORDS": "millstream topic"}) == []


def test_start_up_imports_nothing_heavy() -> None:
    program = "import sys, millstream.cli.main as cli; cli.build(); print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert not set(output.split()) & set(HEAVY)


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_imports_no_subcommand(word: str) -> None:
    program = f"""
import sys
import millstream.cli.main as cli
sys.argv = ["millstream", {word!r}]
try:
    cli.main()
except SystemExit as end:
    assert not end.code
print(*(set(sys.modules) & set(cli.MODULES.values())), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("millstream ")
    assert done.stderr.split() == []
