"""Running a statement on whatever database handle an application has, inside its own transaction.

A handle is a SQLAlchemy `Session` or `Connection`, or a DB-API cursor or connection of sqlite3,
psycopg or psycopg2. Statements are written with `%(name)s`, PostgreSQL's spelling, and respelled
for the others. Nothing here begins, commits or rolls back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

Dialect: TypeAlias = Literal["postgresql", "sqlite"]

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
#: Lower case, so that it means the same with and without quotes.
_NAME: Final = re.compile(r"([a-z_][a-z0-9_]{0,40}\.)?[a-z_][a-z0-9_]{0,40}")


class DatabaseUseError(Exception):
    """The handle can't be used for this; the message says why and what to do."""


def checked_name(name: str) -> str:
    """`name` if it can stand in a statement: lower-case words, perhaps with a schema before."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't be a table's name here: it needs lower-case letters, digits and"
            " underscores, at most 41, and may have a schema before it (app.outbox)."
        )
    return name


def dialect_of(handle: Any) -> Dialect:
    """Which database is behind a handle."""
    if _is_sqlalchemy(handle):
        bind = handle.get_bind() if hasattr(handle, "get_bind") else handle
        name = bind.dialect.name
    else:
        name = type(handle).__module__.partition(".")[0]
    if name == "postgresql" or name.startswith("psycopg"):
        return "postgresql"
    if name in ("sqlite", "sqlite3"):
        return "sqlite"
    raise DatabaseUseError(
        f"{type(handle).__module__}.{type(handle).__qualname__} is no database handle known here:"
        " pass a SQLAlchemy Session or Connection, or a cursor of sqlite3 or psycopg."
    )


def execute(handle: Any, statement: str, parameters: Mapping[str, Any]) -> Any:
    """Run `statement` in the handle's transaction; what comes back has `fetchone()`, `rowcount`."""
    if _is_sqlalchemy(handle):
        from sqlalchemy import text

        return handle.execute(text(_respelled(statement, r":\1")), dict(parameters))
    if dialect_of(handle) == "sqlite":
        return handle.execute(_respelled(statement, r":\1"), dict(parameters))
    result = handle.execute(statement, dict(parameters))
    # A cursor of psycopg2 returns nothing and holds the result itself.
    return handle if result is None else result


def require_transaction(handle: Any) -> None:
    """Refuse a handle whose statements would each be committed on their own."""
    if _is_autocommit(handle):
        raise DatabaseUseError(
            "this connection commits each statement on its own, so the write would not be part"
            " of your transaction: begin one first, or use a connection without autocommit."
        )


def _is_autocommit(handle: Any) -> bool:
    driver = _driver_connection(handle)
    name = type(driver).__module__.partition(".")[0]
    if name == "sqlite3":
        # `autocommit` came with Python 3.12, and is -1 where `isolation_level` counts.
        mode = getattr(driver, "autocommit", -1)
        by_itself = driver.isolation_level is None if mode == -1 else bool(mode)
        return by_itself and not driver.in_transaction
    if name.startswith("psycopg"):
        return bool(driver.autocommit) and driver.info.transaction_status == 0
    return False


def _driver_connection(handle: Any) -> Any:
    if _is_sqlalchemy(handle):
        connection = handle.connection() if hasattr(handle, "get_bind") else handle
        return connection.connection.driver_connection
    return getattr(handle, "connection", handle)


def _is_sqlalchemy(handle: Any) -> bool:
    return any(each.__module__.startswith("sqlalchemy.") for each in type(handle).__mro__)


@functools.cache
def _respelled(statement: str, parameter: str) -> str:
    return _PARAMETER.sub(parameter, statement)
