"""Definitions of settings: type, default, limits, parsing and formatting, for all configs.

A config class is a frozen slotted dataclass whose fields are declared with `setting`. The field's
name with its underscores as dots is the setting's name: `segment_bytes` is `segment.bytes`.
`definitions_of` collects the table from the class, so type, default, limits and the sentence about
them are written once. Values travel as text, as in the protocol; `Definition.parse` and
`Definition.format` are the two directions.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from millstream.model.sentinel import INT32_MAX, INT64_MAX

#: A number between these two is written without an exponent.
_PLAIN_FLOAT_MIN: Final = 1e-3
_PLAIN_FLOAT_MAX: Final = 1e7

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}\Z")


class ConfigType(IntEnum):
    """A setting's type; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    #: Text that is never shown: not in logs, errors, or responses.
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value in force comes from; the numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class ConfigScope(Enum):
    """How a broker's setting may be changed while it runs, in Kafka's terms."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default, after multiplying by `factor`."""

    name: str
    factor: int = 1


_INTEGER_RANGE: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT32_MAX),
    ConfigType.LONG: (-(2**63), INT64_MAX),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One setting: its name, type, default and allowed values."""

    name: str = ""
    kind: ConfigType
    default: Any
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    #: The only values allowed (of each element, for a list).
    choices: tuple[str, ...] = ()
    #: Broker settings that give the default; the first one that is set wins.
    synonyms: tuple[Synonym, ...] = ()
    scope: ConfigScope = ConfigScope.READ_ONLY
    #: The type in DescribeConfigs, if Kafka's differs.
    shown_kind: ConfigType | None = None
    #: Whether DescribeConfigs omits it while it is not set, as Kafka does.
    is_shown_if_set: bool = False
    #: Whether `listener.name.<listener>.<name>` sets it for one listener.
    is_per_listener: bool = False
    #: Whether `listener.name.<listener>.<mechanism>.<name>` sets it for one SASL mechanism.
    is_per_mechanism: bool = False
    #: Builds the field's own type from a LIST's elements.
    container: Callable[[Iterable[str]], Any] = tuple
    #: Raises ValueError with the allowed values, for rules beyond ranges and choices.
    check: Callable[[Any], None] | None = None

    @property
    def attribute(self) -> str:
        """Name of the config class's field."""
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret."""
        return self.kind is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of a sentence."""
        match self.kind:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.PASSWORD:
                return "text"
            case ConfigType.STRING:
                return "one of " + ", ".join(self.choices) if self.choices else "text"
            case ConfigType.LIST:
                elements = " of " + ", ".join(self.choices) if self.choices else ""
                return f"a comma-separated list{elements}"
            case ConfigType.DOUBLE:
                return "a number" + self._range_text()
        return "a whole number" + self._range_text()

    def parse(self, text: str) -> Any:
        """Return the value of `text`; ValueError with the allowed values if it is invalid."""
        text = text.strip()
        value: Any
        match self.kind:
            case ConfigType.BOOLEAN:
                value = {"true": True, "false": False}.get(text.lower())
            case ConfigType.PASSWORD:
                value = text
            case ConfigType.STRING:
                value = text if not self.choices or text in self.choices else None
            case ConfigType.LIST:
                value = self._parse_list(text)
            case ConfigType.DOUBLE:
                value = self._within(_parse_float(text))
            case _:
                value = self._within(int(text) if _WHOLE_NUMBER.match(text) else None)
        if value is None:
            raise ValueError(self.allowed)
        if self.check is not None:
            self.check(value)
        return value

    def format(self, value: Any) -> str | None:
        """Return the text form of a value, as in the protocol; None if it is not set."""
        if value is None:
            return None
        if self.kind is ConfigType.BOOLEAN:
            return "true" if value else "false"
        if self.kind is ConfigType.LIST:
            return ",".join(sorted(value) if isinstance(value, frozenset) else value)
        if self.kind is ConfigType.DOUBLE:
            return _format_float(float(value))
        return str(value)

    def normalize(self, text: str) -> str:
        """Return `text` as `format` would write its value; lists keep their order."""
        if self.kind is ConfigType.LIST:
            return ",".join(element.strip() for element in text.split(","))
        return self.format(self.parse(text)) or ""

    def _parse_list(self, text: str) -> Any:
        elements = [element.strip() for element in text.split(",")] if text else []
        if self.choices and not set(elements) <= set(self.choices):
            return None
        return self.container(elements)

    def _limits(self) -> tuple[float, float]:
        low, high = _INTEGER_RANGE.get(self.kind, (-math.inf, math.inf))
        return (
            low if self.minimum is None else self.minimum,
            high if self.maximum is None else self.maximum,
        )

    def _within(self, value: float | None) -> float | None:
        low, high = self._limits()
        return value if value is not None and low <= value <= high else None

    def _range_text(self) -> str:
        low, high = self._limits()
        if math.isinf(low):
            return "" if math.isinf(high) else f" of at most {high}"
        return f" of at least {low}" if math.isinf(high) else f" from {low} to {high}"


def _parse_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _format_float(value: float) -> str:
    """Format a float as Java does: 0.5, and 1.0E10 from ten million on."""
    if value == 0 or _PLAIN_FLOAT_MIN <= abs(value) < _PLAIN_FLOAT_MAX:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    power = exponent + len(rest)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{power}"


def setting(kind: ConfigType, default: Any, doc: str, **options: Any) -> Any:
    """Return a dataclass field with its `Definition`; `options` are fields of the definition."""
    definition = Definition(kind=kind, default=default, doc=doc, **options)
    return dataclasses.field(
        default=default,
        # A secret is not part of the text of its section, which may be logged.
        repr=not definition.is_sensitive,
        metadata={"definition": definition},
    )


def definitions_of(config_class: type) -> Mapping[str, Definition]:
    """Return every setting that `config_class` declares, by name, in alphabetical order."""
    found = {}
    for field in dataclasses.fields(config_class):
        if (definition := field.metadata.get("definition")) is not None:
            name = field.name.replace("_", ".")
            found[name] = dataclasses.replace(definition, name=name)
    return dict(sorted(found.items()))
