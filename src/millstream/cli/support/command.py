"""The class of every command: profiles, and errors for earlier spellings of options.

A command that connects has `--bootstrap-server` with its environment variable. It also gets
`--profile`. The profile fills these options of the command, as far as the command has them and
neither the command line nor the environment sets them:

    --bootstrap-server   the profile's bootstrap servers
    --schema-registry    the profile's schema registry
    --property           the profile's properties, before those of the command line

Typer's context has a map of defaults, which ranks below environment variables and above the
defaults of options.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperOption

from millstream.cli.support.completion import complete_profiles
from millstream.cli.support.failure import CommandError, ExitCode, say_error
from millstream.cli.support.option import renamed_option
from millstream.cli.support.profile import PROFILE_VARIABLE, Profile, Profiles, selected
from millstream.cli.support.terminal import note
from millstream.model.bootstrap import SERVERS_VARIABLE

_SERVERS: Final = "--bootstrap-server"
_PROPERTIES: Final = "--property"
_REGISTRY: Final = "--schema-registry"
#: The key of the profile's name in the context.
_NAME: Final = "millstream.profile.name"


class Command(TyperCommand):
    """A command of `millstream`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if any(param.envvar == SERVERS_VARIABLE for param in self.params):
            self.params.append(_profile_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Typer calls this for each run of the command."""
        if not ctx.resilient_parsing and (sentence := renamed_option(args, [*self._names()])):
            ctx.fail(sentence)
        left = super().parse_args(ctx, args)
        profile: Profile | None = ctx.meta.get(PROFILE_VARIABLE)
        name = self._names().get(_PROPERTIES)
        if profile is not None and name is not None:
            pairs = [f"{key}={value}" for key, value in profile.properties.items()]
            # The last of several values for the same property wins.
            ctx.params[name] = [*pairs, *(ctx.params[name] or ())]
        return left

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A profile may be why it has no connection."""
        try:
            return super().invoke(ctx)
        except typer.Exit as exit_:
            name: str | None = ctx.meta.get(_NAME)
            if exit_.exit_code == ExitCode.NO_CONNECTION and name is not None:
                note(f"The command used profile {name!r}: --profile '' connects without one.")
            raise

    def _names(self) -> dict[str, str]:
        """Return the parameter of each spelling of an option."""
        return {
            spelling: str(param.name)
            for param in self.params
            for spelling in (*param.opts, *param.secondary_opts)
        }


def _profile_option() -> TyperOption:
    return TyperOption(
        param_decls=["profile_name", "--profile"],
        type=str,
        envvar=PROFILE_VARIABLE,
        metavar="NAME",
        help="Connect with this profile (`millstream profile list`).",
        rich_help_panel="Connection",
        show_envvar=True,
        expose_value=False,
        # Eager: the profile is known before the options that it fills.
        is_eager=True,
        callback=_apply,
        autocompletion=lambda ctx, args, incomplete: complete_profiles(incomplete),
    )


def _apply(ctx: Any, _: object, name: str | None) -> None:
    """Let the profile fill the options of the command."""
    try:
        profile = selected(name)
    except CommandError as failure:
        if ctx.resilient_parsing:
            return
        say_error(str(failure))
        raise typer.Exit(failure.code) from None
    if profile is None:
        return
    ctx.meta[PROFILE_VARIABLE] = profile
    ctx.meta[_NAME] = name or Profiles.load().current
    names = ctx.command._names()  # noqa: SLF001
    values = {_SERVERS: profile.bootstrap_servers, _REGISTRY: profile.schema_registry}
    ctx.default_map = {
        **(ctx.default_map or {}),
        **{names[option]: value for option, value in values.items() if value and option in names},
    }


def use_command_class(app: typer.Typer) -> None:
    """Make every command of `app` and its groups a `Command`."""
    for info in app.registered_commands:
        info.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_command_class(group.typer_instance)
