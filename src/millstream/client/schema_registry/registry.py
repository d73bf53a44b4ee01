"""A connection to a schema registry that has Confluent's REST API.

`SchemaRegistry` wraps confluent-kafka's client: it names settings as the other clients do, adds
timeouts, and raises Millstream's errors. Its methods block. Schemas are cached without a limit of
time, because an id never changes its schema.
"""

from __future__ import annotations

import importlib
import threading
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NotRequired, Self, TypedDict, Unpack
from urllib.parse import urlsplit, urlunsplit

from millstream.client.error import UsageError
from millstream.client.schema_registry.error import registry_errors

_TIMEOUT_S: Final = 10.0
_RETRIES: Final = 2
_RETRY_WAIT_MS: Final = 200


class RegistryOptions(TypedDict):
    """The keywords of `SchemaRegistry`."""

    username: NotRequired[str | None]
    password: NotRequired[str | None]
    ssl_cafile: NotRequired[str | Path | None]
    ssl_certfile: NotRequired[str | Path | None]
    ssl_keyfile: NotRequired[str | Path | None]
    ssl_password: NotRequired[str | None]
    timeout: NotRequired[float]
    config: NotRequired[Mapping[str, Any]]


_PROPERTIES: Final = {
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
_OPTIONS: Final = frozenset({*RegistryOptions.__annotations__})


class RegisteredSchema(NamedTuple):
    """A schema as the registry stores it. `kind` is AVRO, JSON or PROTOBUF."""

    kind: str
    text: str
    #: confluent-kafka's object, which also has the references to other schemas.
    source: Any


class SchemaRegistry:
    """A schema registry, by its URL. Several URLs of one registry are separated by commas.

    The URL `mock://` stands for a registry in this process, for tests.

    `username` and `password` are for HTTP's basic authentication, `ssl_...` for https. `timeout` is
    in seconds, for each request. `config` takes further properties of confluent-kafka's
    `SchemaRegistryClient`, such as `bearer.auth.token`. Needs `millstream[schema-registry]`.

    Registries pickle: a copy connects by itself.
    """

    def __init__(self, url: str, **options: Unpack[RegistryOptions]) -> None:
        if unknown := sorted(options.keys() - _OPTIONS):
            raise UsageError(
                f"SchemaRegistry has no option {', '.join(unknown)}: use "
                f"{', '.join(sorted(_OPTIONS))}."
            )
        self._arguments = (url, options)
        package = imported("SchemaRegistry", "confluent_kafka.schema_registry")
        try:
            self.client: Any = package.SchemaRegistryClient.new_client(_properties(url, options))
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(f"The settings of the schema registry are wrong: {error}.") from error
        #: The URL without credentials, for messages.
        self.url = ",".join(map(_public, url.split(",")))
        self._lock = threading.Lock()
        # Before version 2.11, confluent-kafka's registry client has no `close`.
        self._finalizer = weakref.finalize(self, getattr(self.client, "close", _nothing))
        self._texts: dict[int | uuid.UUID, RegisteredSchema] = {}

    @classmethod
    def of(cls, given: SchemaRegistry | str | Mapping[str, Any]) -> SchemaRegistry:
        """Return a registry from itself, a URL, or a mapping of `url` and other options."""
        if isinstance(given, SchemaRegistry):
            return given
        if isinstance(given, str):
            return cls(given)
        if "url" not in given:
            raise UsageError("The settings of the schema registry have no 'url'.")
        return cls(**given)

    def __reduce__(self) -> tuple[Any, ...]:
        url, options = self._arguments
        return _rebuilt, (url, dict(options))

    @property
    def expires(self) -> bool:
        """Whether the latest version of a subject is looked up again after a while."""
        return self.client.config().get("cache.latest.ttl.sec") is not None

    def schema(self, schema_id: int | uuid.UUID, kind: str | None = None) -> RegisteredSchema:
        """Return the schema with this id or GUID."""
        found = self._texts.get(schema_id)
        if found is None:
            form = "serialized" if kind == "PROTOBUF" else None
            with self._lock, registry_errors(self.url, f"Looking up schema {schema_id}"):
                if isinstance(schema_id, int):
                    schema = self.client.get_schema(schema_id, fmt=form)
                else:
                    schema = self.client.get_schema_by_guid(str(schema_id), fmt=form)
            found = self._texts[schema_id] = _registered(schema)
        return found

    def latest(self, subject: str, kind: str | None = None) -> RegisteredSchema:
        """Return the latest version of a subject."""
        form = "serialized" if kind == "PROTOBUF" else None
        with registry_errors(self.url, f"Looking up the latest schema of subject {subject!r}"):
            return _registered(self.client.get_latest_version(subject, form).schema)

    def close(self) -> None:
        """Close the connections. The end of the program and the garbage collector do, too."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SchemaRegistry {self.url}>"


def imported(who: str, module: str) -> Any:
    """Import a module of confluent-kafka's registry client, or say which extra has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{who} needs packages that are not installed ({error}): "
            "pip install 'millstream[schema-registry]'."
        ) from error


def _properties(url: str, options: RegistryOptions) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "url": url,
        "timeout": options.get("timeout", _TIMEOUT_S),
        "max.retries": _RETRIES,
        "retries.wait.ms": _RETRY_WAIT_MS,
    }
    given: Mapping[str, Any] = options
    for option, name in _PROPERTIES.items():
        if given.get(option) is not None:
            properties[name] = str(given[option])
    username, password = options.get("username"), options.get("password")
    if (username is None) != (password is None):
        raise UsageError("A schema registry needs both username and password, or neither.")
    if username is not None:
        properties["basic.auth.user.info"] = f"{username}:{password}"
    return properties | dict(options.get("config", {}))


def _registered(schema: Any) -> RegisteredSchema:
    return RegisteredSchema(schema.schema_type or "AVRO", schema.schema_str or "", schema)


def _public(url: str) -> str:
    parts = urlsplit(url.strip())
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _nothing() -> None:
    return None


def _rebuilt(url: str, options: dict[str, Any]) -> SchemaRegistry:
    return SchemaRegistry(url, **options)
