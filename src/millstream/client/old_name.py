"""The keywords with another name since version 1.0, and the errors that name the new one. Pure.

Constructors call `reject_unknown` through `Checked.of`. Methods take `**unknown: Never` and pass it
on if it is not empty: type checkers reject such a call, and Python does not reject it first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millstream.client.error import UsageError

#: Old keywords of all clients, and their new names.
RENAMED: Final[Mapping[str, str]] = {
    "servers": "bootstrap_servers",
    "group": "group_id",
    "start": "auto_offset_reset",
    "instance_id": "group_instance_id",
    "compression": "compression_type",
    "batch_bytes": "batch_size",
    "idempotence": "enable_idempotence",
    "timeout_s": "timeout",
    "delivery_timeout_s": "delivery_timeout",
    "buffer_timeout_s": "buffer_timeout",
    "transaction_timeout_s": "transaction_timeout",
    "session_timeout_s": "session_timeout",
    "commit_interval_s": "commit_interval",
    "backoff_s": "backoff",
    "backoff_s_max": "backoff_max",
    "visibility_s": "visibility_timeout",
    "drain_s": "drain_timeout",
    "catch_up_s": "catch_up",
    "rest_s": "rest",
    "ttl_s": "ttl",
    "lease_s": "lease",
    "wait_s": "wait",
}
#: Old keywords of consumers only: producers still have serializers.
RENAMED_FOR_CONSUMERS: Final[Mapping[str, str]] = {
    "key_serializer": "key_deserializer",
    "value_serializer": "value_deserializer",
}
_ALL: Final = {**RENAMED_FOR_CONSUMERS, **RENAMED}


def reject_unknown(unknown: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Raise a UsageError for the first keyword that is not known, with the name to use."""
    names = tuple(known)
    for name in unknown:
        if name not in names:
            raise UsageError(f"There is no option {name!r}: {_hint(name, names)}")


def _hint(name: str, known: tuple[str, ...]) -> str:
    new = _ALL.get(name)
    if new is not None and (not known or new in known):
        return f"since version 1.0 it is called {new!r}."
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known options are {', '.join(known)}." if known else "remove it."


def key_is_keyword(topic: object) -> UsageError:
    """Return the error for a call of `send` or `write` with the key as a positional argument."""
    return UsageError(
        f"send({topic!r}, ...) takes the topic and the value, and since version 1.0 the key is a "
        f"keyword: send({topic!r}, value, key=key)."
    )
