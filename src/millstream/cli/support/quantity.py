"""Durations, sizes and rates as users write them, and the options that take them.

    duration   500ms  10s  10m  1h30m  2d  1w     a number alone means seconds
    size       512B  50MB  1GiB                   a number alone means bytes
    rate       1000/s  60/m                       a number alone means per second
    byte rate  10MB/s  1GiB/h                     a number alone means bytes per second

kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024. An option is
declared with the type and its `..._option` function. A default is written like an argument:

    IntervalOption = Annotated[Duration, duration_option("--interval", help="Between batches.")]
    INTERVAL = Duration.parse("1m")

    def archive(interval: IntervalOption = INTERVAL) -> None: ...
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, Self, TypeVar

import typer

from millstream.cli.support.terminal import format_bytes

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_PART: Final = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)?\Z")
_PLAIN: Final = re.compile(rf"{_NUMBER}\Z")
#: The units of time after the slash of a rate.
_PER: Final = ("s", "m", "h", "d")


class Duration(float):
    """A duration in seconds. Its text has the form that users write."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the duration of `500ms`, `10m` or `1h30m`. Raises ValueError with a sentence."""
        given = text.strip()
        if _PLAIN.match(given):
            return cls(given)
        parts = _PART.findall(given)
        units = [list(_SECONDS).index(unit) for _, unit in parts]
        is_whole = "".join(number + unit for number, unit in parts) == given
        if not parts or not is_whole or units != sorted(set(units), reverse=True):
            raise ValueError(
                f"{text!r} is not a duration: write 500ms, 10s, 10m, 1h30m or 2d (units"
                f" {', '.join(_SECONDS)})"
            )
        return cls(sum(float(number) * _SECONDS[unit] for number, unit in parts))

    def __str__(self) -> str:
        if math.isinf(self) or self < 0:
            return repr(float(self))
        left = round(self * 1000)
        found = ""
        for unit in reversed(_SECONDS):
            count, left = divmod(left, round(_SECONDS[unit] * 1000))
            found += f"{count}{unit}" if count else ""
        return found or "0s"


class Size(int):
    """A number of bytes. Its text has the form that users write."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the bytes of `50MB` or `1GiB`. Raises ValueError with a sentence."""
        match = _SIZE.match(text.strip())
        unit = None if match is None else (match[2] or "B").lower()
        if match is None or unit not in _BYTES:
            raise ValueError(
                f"{text!r} is not a size: write 512B, 50MB or 1GiB (units B, kB, MB, GB, TB, KiB,"
                " MiB, GiB, TiB)"
            )
        return cls(round(float(match[1]) * _BYTES[unit]))

    def __str__(self) -> str:
        for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"):
            if self and not int(self) % _BYTES[unit.lower()]:
                return f"{int(self) // _BYTES[unit.lower()]}{unit}"
        return f"{int(self)}B"


class Rate(float):
    """A number of records, letters or requests per second."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rate of `1000/s` or `60/m`. Raises ValueError with a sentence."""
        number, seconds = _split_rate(text, "1000/s or 60/m")
        if _PLAIN.match(number):
            return cls(float(number) / seconds)
        raise ValueError(f"{text!r} is not a rate: write 1000/s or 60/m")

    def __str__(self) -> str:
        return f"{float(self):g}/s"


class ByteRate(float):
    """A number of bytes per second."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rate of `10MB/s` or `1GiB/h`. Raises ValueError with a sentence."""
        size, seconds = _split_rate(text, "10MB/s or 1GiB/h")
        return cls(Size.parse(size) / seconds)

    def __str__(self) -> str:
        return f"{format_bytes(self)}/s"


def _split_rate(text: str, examples: str) -> tuple[str, float]:
    """Return the part before the slash, and the seconds of the unit after it."""
    amount, slash, unit = (part.strip() for part in text.partition("/"))
    if slash and unit not in _PER:
        raise ValueError(
            f"{text!r} is not a rate: write {examples} (after the slash {', '.join(_PER)})"
        )
    return amount, _SECONDS[unit] if slash else 1.0


Quantity = TypeVar("Quantity", Duration, Size, Rate, ByteRate)


def _parser(kind: type[Quantity], minimum: str | None) -> Any:
    """Return the parser of an option. Typer calls it for text, and for a default as it is."""
    lowest = None if minimum is None else kind.parse(minimum)

    def parse(given: str | Quantity) -> Quantity:
        try:
            value = given if isinstance(given, kind) else kind.parse(str(given))
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None
        if lowest is not None and value < lowest:
            raise typer.BadParameter(f"{given} is less than {minimum}.")
        return value

    return parse


def duration_option(*names: str, minimum: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an option of type `Duration`."""
    return _option(Duration, "DURATION", names, minimum, settings)


def size_option(*names: str, minimum: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an option of type `Size`."""
    return _option(Size, "SIZE", names, minimum, settings)


def rate_option(*names: str, minimum: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an option of type `Rate`."""
    return _option(Rate, "RATE", names, minimum, settings)


def byte_rate_option(*names: str, minimum: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an option of type `ByteRate`."""
    return _option(ByteRate, "SIZE/s", names, minimum, settings)


def _option(
    kind: type[Quantity],
    metavar: str,
    names: tuple[str, ...],
    minimum: str | None,
    settings: dict[str, Any],
) -> Any:
    return typer.Option(*names, parser=_parser(kind, minimum), **{"metavar": metavar, **settings})
