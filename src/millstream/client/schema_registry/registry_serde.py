"""What the serdes of all formats share: frames, subjects, loading, and errors.

A serde makes one of confluent-kafka's serializers for each topic and part (key or value), because
such a serializer remembers the schema id of the last subject. Deserializers are shared: they depend
only on the ids that they read.

Loading, for asyncio: the first call of confluent-kafka's serializer or deserializer for a schema
asks the registry. `is_loaded` says whether that has happened, and `load` does it in advance; see
`LoadingSerde`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, TypedDict

from millstream.client.error import (
    RegistryError,
    RegistryUnavailable,
    SerializationError,
    UsageError,
)
from millstream.client.schema_registry.error import registry_errors
from millstream.client.schema_registry.frame import HEADERS, Frame, joined, parsed
from millstream.client.schema_registry.registry import SchemaRegistry, imported
from millstream.client.serde_context import Part, RecordContext, is_on_event_loop

_PACKAGE: Final = "confluent_kafka.schema_registry"
_STRATEGIES: Final = {
    "topic": "topic_subject_name_strategy",
    "record": "record_subject_name_strategy",
    "topic_record": "topic_record_subject_name_strategy",
}
#: A failed lookup is repeated after this time at the earliest.
_RETRY_S: Final = 1.0

SubjectStrategy = (
    Literal["topic", "record", "topic_record"] | Callable[[RecordContext, str | None], str]
)


class SerdeOptions(TypedDict):
    """The keywords that the serdes of all formats have."""

    subject: NotRequired[SubjectStrategy]
    schema_id_in: NotRequired[Literal["value", "headers"]]
    auto_register: NotRequired[bool]
    use_latest_version: NotRequired[bool]
    normalize: NotRequired[bool]
    config: NotRequired[Mapping[str, Any]]


@dataclass(frozen=True)
class SerdeSettings:
    """How a serde uses the registry."""

    #: How subjects are named: `<topic>-value`, `<record>`, `<topic>-<record>`, or by a function of
    #: the context and the record's name.
    subject: SubjectStrategy = "topic"
    schema_id_in: Literal["value", "headers"] = "value"
    #: Register the schema of the serializer. Without it, the schema must be in the registry.
    auto_register: bool = True
    #: Write with the latest schema of the subject, and convert to it when reading.
    use_latest_version: bool = False
    normalize: bool = False
    #: Further properties of confluent-kafka's serializer.
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: SerdeOptions) -> SerdeSettings:
        """Check the options."""
        known = cls.__dataclass_fields__.keys()
        if unknown := sorted(options.keys() - known):
            raise UsageError(
                f"The option {', '.join(unknown)} is unknown: use {', '.join(sorted(known))}."
            )
        settings = cls(**options)
        if settings.schema_id_in not in ("value", "headers"):
            raise UsageError(
                f"schema_id_in={settings.schema_id_in!r} is unknown: use 'value' or 'headers'."
            )
        if not callable(settings.subject) and settings.subject not in _STRATEGIES:
            raise UsageError(
                f"subject={settings.subject!r} is unknown: use {', '.join(_STRATEGIES)}, or a "
                "function of the context and the record's name."
            )
        return settings

    def reading(self) -> dict[str, Any]:
        """Return the properties of confluent-kafka's deserializers."""
        properties: dict[str, Any] = {"subject.name.strategy": self._strategy()}
        if self.use_latest_version:
            properties["use.latest.version"] = True
        return properties

    def writing(self) -> dict[str, Any]:
        """Return the properties of confluent-kafka's serializers."""
        package = imported("A serde", _PACKAGE)
        properties = self.reading()
        properties["auto.register.schemas"] = self.auto_register and not self.use_latest_version
        properties["normalize.schemas"] = self.normalize
        if self.schema_id_in == "headers":
            properties["schema.id.serializer"] = package.header_schema_id_serializer
        return properties | dict(self.config)

    def _strategy(self) -> Callable[[Any, str | None], str | None]:
        subject = self.subject
        if not callable(subject):
            name = _STRATEGIES[subject]
            strategy: Callable[[Any, str | None], str | None] = getattr(
                imported("A serde", _PACKAGE), name
            )
            return strategy

        def named(context: Any, record: str | None) -> str:
            return subject(RecordContext(context.topic, context.field, context.headers), record)

        return named


class RegistrySerde:
    """Serializes and deserializes through confluent-kafka's classes; see `registry_format.py`."""

    takes_context: Literal[True] = True

    def __init__(
        self,
        registry: SchemaRegistry | str,
        make_serializer: Callable[[Any], Any],
        make_deserializer: Callable[[Any], Any],
        check: Callable[[Frame], None] | None = None,
    ) -> None:
        self._registry = SchemaRegistry.of(registry)
        self._make_serializer = make_serializer
        #: Called with each frame before it is deserialized.
        self._check = check
        self._serializers: dict[tuple[str, str], Any] = {}
        #: Topics and parts that were serialized once.
        self._serialized: set[tuple[str, str]] = set()
        with _usage_errors():
            self._deserializer = make_deserializer(self._registry.client)
        #: Topics, parts and schema ids that were deserialized once, and those that failed.
        self._loaded: set[tuple[Any, ...]] = set()
        self._failed: dict[tuple[Any, ...], tuple[RegistryError, float]] = {}
        #: Topics, parts and schema ids that a thread is looking up for an event loop.
        self._asking: set[tuple[Any, ...]] = set()
        self._context: Any = imported(
            "A serde", "confluent_kafka.serialization"
        ).SerializationContext

    def serialize(self, value: Any, context: RecordContext | None = None, /) -> bytes:
        """Return the value in its frame. Asks the registry once for each topic."""
        topic, part, headers = _checked(context)
        key = (topic, part)
        serializer = self._serializers.get(key)
        if serializer is None:
            with _usage_errors():
                serializer = self._make_serializer(self._registry.client)
            self._serializers[key] = serializer
        _drop_header(headers, HEADERS[part])
        with registry_errors(self._registry.url, f"Serializing the {part} for topic {topic!r}"):
            data: bytes = serializer(value, self._context(topic, part, headers))
        self._serialized.add(key)
        return data

    def deserialize(self, data: bytes, context: RecordContext | None = None, /) -> Any:
        """Return the value in this frame. Asks the registry once for each schema id.

        On an event loop it asks in the background, and raises until there is a response.
        """
        topic, part, headers = _checked(context)
        framed = joined(data, headers, part)
        try:
            frame = parsed(framed)
        except ValueError as error:
            raise SerializationError(str(error)) from error
        key = (topic, part, frame.schema_id)
        if key not in self._loaded and is_on_event_loop():
            raise self._not_loaded(key, data, RecordContext(topic, part, headers))
        try:
            value = self._deserialized(frame, framed, topic, part)
        except RegistryError:
            raise
        except Exception:
            # The schema is known; the bytes do not fit it.
            self._loaded.add(key)
            raise
        self._loaded.add(key)
        return value

    def is_loaded(self, context: RecordContext, /) -> bool:
        """Whether `serialize` does no I/O for this topic and part."""
        return context[:2] in self._serialized and not self._registry.expires

    def load(self, data: bytes, context: RecordContext, /) -> None:
        """Ask the registry for the schema of these bytes, unless it is known. Blocks."""
        try:
            frame = parsed(joined(data, context.headers, context.part))
        except ValueError:
            # There is nothing to ask for. `deserialize` raises it.
            return
        key = (context.topic, context.part, frame.schema_id)
        if key in self._loaded or self._has_just_failed(key):
            return
        self._ask(key, data, context)

    def _ask(self, key: tuple[Any, ...], data: bytes, context: RecordContext) -> None:
        """Look up the schema, and keep an error of the registry for `deserialize`."""
        try:
            self.deserialize(data, context)
        except RegistryError as error:
            self._failed[key] = error, time.monotonic()
        except Exception:  # noqa: BLE001 - the application gets it from `deserialize`
            self._failed.pop(key, None)
        else:
            self._failed.pop(key, None)
        finally:
            self._asking.discard(key)

    def _deserialized(self, frame: Frame, framed: bytes, topic: str, part: Part) -> Any:
        with registry_errors(self._registry.url, f"Deserializing a {part} of topic {topic!r}"):
            if self._check is not None:
                self._check(frame)
            return self._deserializer(framed, self._context(topic, part, []))

    def _has_just_failed(self, key: tuple[Any, ...]) -> bool:
        failed = self._failed.get(key)
        return failed is not None and time.monotonic() - failed[1] < _RETRY_S

    def _not_loaded(
        self, key: tuple[Any, ...], data: bytes, context: RecordContext
    ) -> RegistryError:
        """Return the error for a schema that is not known yet, and ask for it on a thread."""
        if key not in self._asking and not self._has_just_failed(key):
            self._asking.add(key)
            threading.Thread(target=self._ask, args=(key, data, context), daemon=True).start()
        failed = self._failed.get(key)
        if failed is not None:
            return failed[0].with_traceback(None)
        return RegistryUnavailable(
            f"Schema {key[2]} is being looked up at {self._registry.url}: retry in a moment."
        )


def _checked(context: RecordContext | None) -> RecordContext:
    if context is None:
        raise UsageError(
            "A schema registry's serde needs the topic of the record: pass "
            "RecordContext(topic, 'value', []) as second argument."
        )
    return context


def _drop_header(headers: list[Any], name: str) -> None:
    """Remove the schema id of a value that these headers belonged to before."""
    if any(key == name for key, _ in headers):
        headers[:] = [each for each in headers if each[0] != name]


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Raise the errors of confluent-kafka's constructors as UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(f"The settings of the serde are wrong: {error}.") from error
