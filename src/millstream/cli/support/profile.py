"""Profiles: connections with names, in a file of the user.

    current = "prod"

    [profiles.prod]
    bootstrap_servers = "broker-1:9092,broker-2:9092"
    schema_registry = "https://registry:8081"

    [profiles.prod.properties]
    "security.protocol" = "SASL_SSL"

`properties` are librdkafka client properties. The file can hold passwords: only its owner may read
it. `Command` (`command.py`) fills the options of a command from the profile that `selected`
returns. An option on the command line wins over its environment variable, which wins over the
profile, which wins over the default.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from millstream.cli.support.failure import CommandError, ExitCode

PROFILE_VARIABLE: Final = "MILLSTREAM_PROFILE"
#: Names the file, instead of the one in the user's config directory.
FILE_VARIABLE: Final = "MILLSTREAM_PROFILE_FILE"
MASK: Final = "********"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SECRET: Final = re.compile(
    r"pass(?:word|phrase)|secret|\.pem\Z|\.key\Z|oauthbearer\.config|jaas", re.IGNORECASE
)
#: Properties that name the location of a key and not the key.
_PATH: Final = re.compile(r"\.location\Z")


@dataclass(frozen=True, slots=True)
class Profile:
    """One connection. A field that is None leaves the default of the command."""

    bootstrap_servers: str | None = None
    schema_registry: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def masked(self) -> dict[str, Any]:
        """Return the fields for output, without passwords."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "schema_registry": _masked_url(self.schema_registry),
            "properties": {
                name: MASK if is_secret(name) else value
                for name, value in sorted(self.properties.items())
            },
        }


def is_secret(name: str) -> bool:
    """Whether the value of a property must not be shown."""
    return _SECRET.search(name) is not None and _PATH.search(name) is None


def _masked_url(url: str | None) -> str | None:
    """Replace the password of `https://user:password@host`."""
    return None if url is None else re.sub(r"(//[^/@:]*):[^/@]*@", rf"\1:{MASK}@", url)


def profile_file() -> Path:
    """Return the path of the user's file."""
    if chosen := os.environ.get(FILE_VARIABLE):
        return Path(chosen)
    import platformdirs

    return platformdirs.user_config_path("millstream") / "profiles.toml"


@dataclass(slots=True)
class Profiles:
    """The content of the file."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    #: The profile that commands use by default. None for no profile.
    current: str | None = None

    @classmethod
    def load(cls) -> Self:
        """Read the file; no file means no profiles. Raises CommandError for a wrong file."""
        path = profile_file()
        try:
            content = tomllib.loads(path.read_text())
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise CommandError(
                ExitCode.USAGE, f"cannot read the profiles in {path}: {error}."
            ) from None
        found = {
            name: Profile(
                row.get("bootstrap_servers"),
                row.get("schema_registry"),
                {key: str(value) for key, value in row.get("properties", {}).items()},
            )
            for name, row in content.get("profiles", {}).items()
        }
        return cls(found, content.get("current"))

    def save(self, path: Path | None = None) -> None:
        """Replace the user's file, or the file `path`. Only its owner can read it, also while it
        is written."""
        path = path or profile_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp creates files with mode 0600.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(self._toml())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def names(self) -> list[str]:
        return sorted(self.profiles)

    def find(self, name: str) -> Profile:
        """Return a profile. Raises CommandError if there is none with this name."""
        if name in self.profiles:
            return self.profiles[name]
        known = f"there are {', '.join(self.names())}" if self.profiles else "there are none"
        raise CommandError(
            ExitCode.NOT_FOUND,
            f"there is no profile {name!r}: {known}. Create it with `millstream profile create"
            f" {name}`.",
        )

    def _toml(self) -> str:
        lines = [f"current = {_quoted(self.current)}", ""] if self.current else []
        for name in self.names():
            profile = self.profiles[name]
            lines.append(f"[profiles.{_quoted(name)}]")
            for key in ("bootstrap_servers", "schema_registry"):
                value = getattr(profile, key)
                if value is not None:
                    lines.append(f"{key} = {_quoted(value)}")
            lines += ["", f"[profiles.{_quoted(name)}.properties]"]
            lines += [
                f"{_quoted(key)} = {_quoted(value)}"
                for key, value in sorted(profile.properties.items())
            ]
            lines.append("")
        return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a TOML string. JSON's escapes are valid in TOML, except for the one of DEL."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def check_name(name: str) -> None:
    """Raise CommandError if `name` cannot be the name of a profile."""
    if _NAME.match(name) is None:
        raise CommandError(
            ExitCode.USAGE,
            f"{name!r} is not a name for a profile: use letters, digits, '.', '_' and '-'.",
        )


def selected(name: str | None) -> Profile | None:
    """Return the profile with this name, or the current one; None if neither is set.

    `name` is the option or its environment variable."""
    # An empty name turns the current profile off.
    if name == "":
        return None
    if name is not None:
        return Profiles.load().find(name)
    if not profile_file().exists():
        return None
    profiles = Profiles.load()
    return None if profiles.current is None else profiles.find(profiles.current)
