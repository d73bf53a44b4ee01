"""The keywords with another name since version 1.0 or in other clients, and the errors that name
the right one. Pure.

Constructors call `reject_unknown` through `Checked.of`. Functions with keywords of their own have
the decorator `rejects_old_names`, which leaves their signatures as they are.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from millstream.client.error import UsageError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

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
#: Keywords of aiokafka and kafka-python: the option to use here, and how.
_IN_OTHER_CLIENTS: Final[Mapping[str, tuple[str, str]]] = {
    "enable_auto_commit": ("commit_interval", "with commit_interval=0 only commit() commits."),
    "auto_commit_interval_ms": ("commit_interval", "pass commit_interval=..., in seconds."),
    "buffer_memory": ("buffer_bytes", "pass buffer_bytes=..."),
    "consumer_timeout_ms": ("auto_offset_reset", "pass a timeout to poll(), in seconds."),
    "max_poll_records": ("auto_offset_reset", "pass max_records to poll()."),
    "max_batch_size": ("batch_size", "pass batch_size=..."),
    "max_block_ms": ("buffer_timeout", "pass buffer_timeout=..., in seconds."),
    "isolation_level": (
        "auto_offset_reset",
        "read_committed is the default: config={'isolation.level': ...} changes it.",
    ),
    "sasl_plain_username": ("sasl_username", "pass sasl_username=..."),
    "sasl_plain_password": ("sasl_password", "pass sasl_password=..."),
    "ssl_context": (
        "ssl_cafile",
        "pass ssl_cafile, ssl_certfile and ssl_keyfile, which are files.",
    ),
}
_MILLISECONDS: Final = "_ms"


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
    in_seconds = name.removesuffix(_MILLISECONDS)
    if in_seconds != name and in_seconds in known:
        return f"pass {in_seconds}=..., in seconds."
    option, step = _IN_OTHER_CLIENTS.get(name, ("", ""))
    if option in known:
        return step
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not known:
        return "remove it."
    listed = f"known options are {', '.join(known)}."
    if "config" not in known:
        return listed
    property_name = name.replace("_", ".")
    return f"{listed} A property of librdkafka goes into config={{{property_name!r}: ...}}."


def rejects_old_names(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator: an unknown keyword raises a UsageError that has the name to use."""
    known = tuple(name for name in inspect.signature(function).parameters if name != "self")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Parameters.args, **keywords: Parameters.kwargs) -> Any:
            reject_unknown(keywords, known)
            return await function(*args, **keywords)

        return call_async  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if keywords:
            reject_unknown(keywords, known)
        return function(*args, **keywords)

    return call
