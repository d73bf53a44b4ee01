"""Maps an address to its database: `postgresql://...`, or `sqlite:///FILE`."""

from __future__ import annotations

from millstream.client.outbox.source import Database
from millstream.model.error import UsageError


def database_at(address: str, table: str) -> Database:
    """Return the outbox at this address. Drivers are imported when they are needed."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        try:
            from millstream.client.outbox.postgres import PostgresDatabase
        except ImportError as error:
            raise UsageError(
                "PostgreSQL needs its driver: pip install 'millstream[postgresql]'."
            ) from error

        return PostgresDatabase(address, table)
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        from millstream.client.outbox.sqlite import SqliteDatabase

        return SqliteDatabase(rest[1:], table)
    # The address may have a password.
    given = f"{scheme}://..." if separator else "without a scheme"
    raise UsageError(
        f"An address {given} is not a database address: use postgresql://USER@HOST/NAME, or"
        " sqlite:///FILE (sqlite:////FILE for a path from the root)."
    )
