"""Creates the first users of a cluster, from the file that `bootstrap.users.file` names.

A secure cluster starts without users, so no client could log in to create one. The file has a line
`NAME:PASSWORD` for each user; empty lines and lines that start with `#` are skipped. A user gets
credentials for both SCRAM mechanisms. A user that exists is not changed, so a password that was
changed later stays, and the file may be removed after the first start.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from millstream.broker.config.config_source import ConfigError
from millstream.env.disk import Disk
from millstream.env.random import Random
from millstream.metadata.catalog import Catalog
from millstream.metadata.security_record import encode_credentials, user_key
from millstream.security.sasl.exchange import SCRAM_MECHANISMS
from millstream.security.sasl.scram import ITERATIONS_DEFAULT, make_credential, make_salt

_logger = logging.getLogger(__name__)


async def create_bootstrap_users(
    path: Path, disk: Disk, catalog: Catalog, random: Random, *, has_threads: bool
) -> None:
    """Create the users of a file that do not exist yet. Raises ConfigError."""
    for name, password in parse_users(_read(path, disk), str(path)).items():
        if name in catalog.image.users:
            continue
        derive = partial(_credentials, password, random)
        value = await asyncio.to_thread(derive) if has_threads else derive()
        await catalog.alter_key(user_key(name), partial(_keep_or, value))
        _logger.info("created the user %s from bootstrap.users.file", name)


def parse_users(text: str, origin: str) -> dict[str, str]:
    """Return passwords by user name. Raises ConfigError, without the text."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        name = name.strip()
        if not name or not password:
            raise ConfigError(f"{origin}: line {number}: expected NAME:PASSWORD")
        if name in users:
            raise ConfigError(f"{origin}: line {number}: the user is listed twice")
        users[name] = password
    return users


def _keep_or(made: bytes, found: bytes | None) -> bytes:
    return made if found is None else found


def _read(path: Path, disk: Disk) -> str:
    try:
        return disk.read(path).decode()
    except OSError as error:
        raise ConfigError(f"bootstrap.users.file = {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"bootstrap.users.file = {path}: it is not UTF-8") from None


def _credentials(password: str, random: Random) -> bytes:
    return encode_credentials(
        {
            mechanism.value: make_credential(
                mechanism, password, make_salt(random.getrandbits), ITERATIONS_DEFAULT
            )
            for mechanism in SCRAM_MECHANISMS
        }
    )
