"""The one mapping of confluent-kafka's errors about schema registries to the client's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from millstream.client.error import (
    MillstreamError,
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
    SchemaRejected,
    SerializationError,
)

_NO_ACCESS: Final = (401, 403)
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_REJECTED: Final = (409, 422)
_SERVER_ERROR_MIN: Final = 500
_NO_GUID_HINT: Final = (
    " This registry has no GUIDs, which ids in headers need: set schema_id_in='value'."
)


@contextmanager
def registry_errors(url: str, what: str) -> Iterator[None]:
    """Raise confluent-kafka's errors in the block as Millstream's. `what` names the operation."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.serialization import SerializationError as ConfluentError

    try:
        yield
    except MillstreamError:
        raise
    except SchemaRegistryError as error:
        raise _of_response(error, url, what) from error
    except ConfluentError as error:
        # A rule or an association that asks the registry wraps the error of that request.
        cause = error.__cause__
        if isinstance(cause, SchemaRegistryError):
            raise _of_response(cause, url, what) from error
        hint = _NO_GUID_HINT if "GUID is not set" in str(error) else ""
        raise SerializationError(f"{what}: {error}.{hint}") from error
    except Exception as error:
        if not _is_transport_error(error):
            raise
        reason = str(error) or type(error).__name__
        raise RegistryUnavailable(
            f"{what}: the schema registry at {url} cannot be reached ({reason}). Check the URL, "
            "and that the registry runs."
        ) from error


def _of_response(error: Any, url: str, what: str) -> RegistryError:
    status, code = int(error.http_status_code), int(error.error_code or 0)
    reason = str(error.error_message).rstrip(".")
    place = f"the schema registry at {url}"
    if status in _NO_ACCESS:
        sentence = f"{place} denies access ({reason}). Check username and password."
        return RegistryUnavailable(f"{what}: {sentence}", status, code)
    if status >= _SERVER_ERROR_MIN or status == _TOO_MANY:
        sentence = f"{place} failed with status {status} ({reason}). Retry later."
        return RegistryUnavailable(f"{what}: {sentence}", status, code)
    if status == _NOT_FOUND:
        sentence = (
            f"{place} does not have it ({reason}). Register the schema, or check that the URL is "
            "that of the registry which the producer used."
        )
        return SchemaNotFound(f"{what}: {sentence}", status, code)
    if status in _REJECTED:
        sentence = (
            f"{place} rejects the schema ({reason}). Make the change compatible, for example give "
            "new fields a default, or change the compatibility level of the subject."
        )
        return SchemaRejected(f"{what}: {sentence}", status, code)
    return RegistryError(
        f"{what}: {place} responded with status {status} ({reason}).", status, code
    )


def _is_transport_error(error: Exception) -> bool:
    """Whether a request got no response. The HTTP package depends on confluent-kafka's version."""
    return isinstance(error, OSError) or any(
        each.__name__ == "TransportError" for each in type(error).__mro__
    )
