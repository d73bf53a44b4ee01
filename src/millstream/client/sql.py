"""Runs statements on an application's database handle, inside the application's transaction.

A handle is a SQLAlchemy `Session` or `Connection`, or a DB-API cursor or connection of sqlite3,
psycopg or psycopg2. Statements use `%(name)s`, PostgreSQL's form of parameters, and are converted
for the others. This module never begins, commits or rolls back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from millstream.model.error import MillstreamError, UsageError

Dialect: TypeAlias = Literal["postgresql", "sqlite"]

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
#: Lower case, so that the name means the same with and without quotes.
_NAME: Final = re.compile(r"([a-z_][a-z0-9_]{0,40}\.)?[a-z_][a-z0-9_]{0,40}")


class DatabaseUseError(MillstreamError):
    """The handle cannot be used for this. The message says why and what to do."""


def checked_name(name: str) -> str:
    """Return `name` if it can be part of a statement: lower-case words, with an optional schema."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid table name: use up to 41 lower-case letters, digits and"
            " underscores, with an optional schema before it (app.outbox)."
        )
    return name


def dialect_of(handle: Any) -> Dialect:
    """Return the dialect of a handle's database."""
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
        f"{type(handle).__module__}.{type(handle).__qualname__} is not a supported database handle:"
        " pass a SQLAlchemy Session or Connection, or a cursor of sqlite3 or psycopg."
    )


def execute(handle: Any, statement: str, parameters: Mapping[str, Any]) -> Any:
    """Run `statement` in the handle's transaction. The result has `fetchone()` and `rowcount`."""
    if _is_sqlalchemy(handle):
        from sqlalchemy import text

        return handle.execute(text(_converted(statement, r":\1")), dict(parameters))
    if dialect_of(handle) == "sqlite":
        return handle.execute(_converted(statement, r":\1"), dict(parameters))
    result = handle.execute(statement, dict(parameters))
    # psycopg2 returns None; the cursor itself has the result.
    return handle if result is None else result


def require_transaction(handle: Any) -> None:
    """Raise if the handle would commit each statement on its own."""
    if _is_autocommit(handle):
        raise DatabaseUseError(
            "this connection commits each statement on its own, so the write would not be part"
            " of your transaction: begin one first, or use a connection without autocommit."
        )


def _is_autocommit(handle: Any) -> bool:
    driver = _driver_connection(handle)
    name = type(driver).__module__.partition(".")[0]
    if name == "sqlite3":
        # `autocommit` exists since Python 3.12. It is -1 if `isolation_level` applies.
        mode = getattr(driver, "autocommit", -1)
        is_autocommit = driver.isolation_level is None if mode == -1 else bool(mode)
        return is_autocommit and not driver.in_transaction
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
def _converted(statement: str, parameter: str) -> str:
    return _PARAMETER.sub(parameter, statement)
