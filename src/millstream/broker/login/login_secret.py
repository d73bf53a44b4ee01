"""The secret from which the challenges of unknown users are derived, in the metadata store.

It is the same on all brokers and after a restart. Otherwise the salt of an unknown user would
differ between brokers, and the salt of a known user would not.

Key and value: `login-secret`, 32 random bytes. The image of the metadata leaves it out.
"""

from __future__ import annotations

from typing import Final

from millstream.env.random import Random
from millstream.metadata.catalog import Catalog

_KEY: Final = "login-secret"
_BYTES: Final = 32


async def login_secret(catalog: Catalog, random: Random) -> bytes:
    """Return the secret of the cluster. The first broker creates it."""
    secret = b""

    def edit(value: bytes | None) -> bytes:
        nonlocal secret
        secret = value or random.randbytes(_BYTES)
        return secret

    await catalog.alter_key(_KEY, edit)
    return secret
