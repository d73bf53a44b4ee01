"""The reference page of the command `millstream`, from its subcommands and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from scripts.docs.markdown import code, table

from millstream.cli.json_output.table import JSON_OUTPUTS
from millstream.cli.main import build


def page() -> str:
    """Return a section for each command, with its arguments and options."""
    return "\n".join(_sections(typer.main.get_command(build()), ()))


def _sections(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    names = (*path, command.name)
    if path:
        yield _section(command, names)
    for each in getattr(command, "commands", {}).values():
        if not each.hidden:
            yield from _sections(each, names)


def _section(command: Any, names: tuple[str, ...]) -> str:
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    parts = [f"{'#' * len(names)} {' '.join(names)}\n", f"{_help(command)}\n"]
    if not hasattr(command, "commands"):
        shown = " ".join(map(_usage, arguments))
        parts.append(f"    {' '.join(names)} [OPTIONS] {shown}".rstrip() + "\n")
    if described := [each for each in arguments if getattr(each, "help", None)]:
        parts.append(table(("argument", "meaning"), ((code(_name(e)), e.help) for e in described)))
    if options:
        parts.append(table(("option", "meaning"), map(_option_row, options)))
    if output := JSON_OUTPUTS.get(" ".join(names[1:])):
        parts.append(f"With `--json` it prints {output.form.value}.\n")
        parts.append(table(("key", "meaning"), map(_key_row, output.keys.items())))
    return "\n".join(parts)


def _help(command: Any) -> str:
    """Return the whole help text. Lines of a paragraph are joined, as in the terminal."""
    return inspect.cleandoc((command.help or "").partition("\f")[0])


def _usage(argument: Any) -> str:
    name = _name(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]{}.")


def _option_row(option: Any) -> tuple[str, str]:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag and (value := _value(option)):
        names += f" {code(value)}"
    return names, " ".join(filter(None, (option.help, _default(option), _environment(option))))


def _key_row(item: tuple[str, str]) -> tuple[str, str]:
    key, meaning = item
    is_optional = key.endswith("?")
    return code(key.removesuffix("?")), meaning + (" May be absent." if is_optional else "")


def _value(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    choices = getattr(option.type, "choices", None)
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    return str(option.type.name).upper()


def _default(option: Any) -> str:
    if option.is_flag:
        # Of a pair such as --follow/--no-follow, the one that is in force.
        names = option.opts if option.default else option.secondary_opts
        is_choice = option.secondary_opts and not option.required
        return f"Default: {code(names[0])}." if is_choice else ""
    if option.default is None or callable(option.default):
        return ""
    value = getattr(option.default, "value", option.default)
    if option.show_default is False or value in ("", (), []):
        return ""
    shown = option.show_default if isinstance(option.show_default, str) else str(value)
    return f"Default: {code(repr(shown)[1:-1])}."


def _environment(option: Any) -> str:
    return f"Environment: {code(str(option.envvar))}." if option.envvar else ""
