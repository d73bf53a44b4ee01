"""Compiles the encode function of one message class in one version.

The counterpart of `decoder`: straight-line code, in which adjacent fixed-size fields and the length
after them are one `struct` call. All bytes are collected in one growing buffer. Only record batches
become segments of their own: they are not copied, and only their length is read.

Names in the generated code: `m` message, `w` buffer being filled, `out` finished segments, `s`
encoded string, `r` bytes, `n` length or count as on the wire, `a<k>` arrays, `o<k>` objects.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812
from struct import pack
from typing import Any, Final

from millstream.wire import primitive
from millstream.wire.field import Array, Bytes, Fixed, Kind, Spec, String, Struct, specs_of
from millstream.wire.source import Source

_NAMES: Final[dict[str, object]] = {
    "pack": pack,
    "StructError": StructError,
    "EncodeError": primitive.EncodeError,
    "encode_uvarint": primitive.encode_uvarint,
    "encode_string_length": primitive.encode_string_length,
    "fail_absent": primitive.fail_absent,
}


def compile_encoder(shape: type, version: int, flexible_from: int) -> Any:
    """Return `encode(message) -> list of segments` for one version."""
    writer = _EncodeWriter(version, is_flexible=version >= flexible_from)
    writer.write_message(shape)
    return writer.source.compile("encode", f"encode {shape.__name__} v{version}")


class _EncodeWriter:
    """Writes an encode function, and a function for each struct with known tagged fields."""

    __slots__ = ("_count", "_is_flexible", "_run", "_version", "source")

    def __init__(self, version: int, is_flexible: bool) -> None:
        self.source = Source(_NAMES)
        self._version = version
        self._is_flexible = is_flexible
        self._count = 0
        #: Pending fixed-size writes: letter and expression; the letter x has no expression.
        self._run: list[tuple[str, str]] = []

    def write_message(self, shape: type) -> None:
        source = self.source
        label = f"{shape.__name__} version {self._version}"
        problems = "(StructError, AttributeError, TypeError, UnicodeEncodeError)"
        with source.block("def encode(m):"):
            with source.block("try:"):
                source.line("out = []")
                source.line("w = bytearray()")
                self._write_struct(shape, "m")
                source.line("if w: out.append(w)")
                source.line("return out")
            with source.block(f"except {problems} as problem:"):
                source.line(
                    f"raise EncodeError(f'cannot encode {label}: {{problem}}') from problem"
                )

    def _write_struct(self, shape: type, owner: str) -> None:
        tagged: list[tuple[str, Spec]] = []
        for name, spec in specs_of(shape):
            value = f"{owner}.{name}"
            if not spec.is_in(self._version):
                if not spec.ignorable:
                    check = f"fail_absent({name!r}, {self._version})"
                    self.source.line(f"if {_differs(value, spec)}: {check}")
            elif spec.tag is None:
                self._write_value(spec.kind, value, spec.is_nullable(self._version))
            else:
                tagged.append((name, spec))
        if tagged:
            self._write_tags(owner, sorted(tagged, key=lambda each: each[1].tag or 0))
        elif self._is_flexible:
            self._run.append(("x", ""))
        self._flush()

    def _write_tags(self, owner: str, tagged: list[tuple[str, Spec]]) -> None:
        """Write the tag section: a zero if all fields have their defaults, otherwise a call."""
        function = self._fresh("tags")
        source = self.source
        run, self._run = self._run, []
        with source.at_top(), source.block(f"def {function}(o):"):
            source.line("count, section = 0, bytearray()")
            for name, spec in tagged:
                with source.block(f"if {_differs(f'o.{name}', spec)}:"):
                    source.line("w = bytearray()")
                    is_nullable = spec.is_nullable(self._version)
                    self._write_value(spec.kind, f"o.{name}", is_nullable, null_mark=0)
                    self._flush()
                    source.line("count += 1")
                    source.line(f"section += encode_uvarint({spec.tag}) + encode_uvarint(len(w))")
                    source.line("section += w")
            source.line("return encode_uvarint(count) + section")
        with source.block(f"if {' or '.join(_differs(f'{owner}.{n}', s) for n, s in tagged)}:"):
            self._run = list(run)
            self._flush()
            source.line(f"w += {function}({owner})")
        with source.block("else:"):
            self._run = [*run, ("x", "")]
            self._flush()

    def _write_value(
        self, kind: Kind, value: str, is_nullable: bool, null_mark: int = 0xFF
    ) -> None:
        match kind:
            case Fixed(letter, _):
                self._run.append((letter, value))
            case String():
                self._write_string(value, is_nullable)
            case Bytes(borrowed):
                self._write_bytes(value, is_nullable, borrowed)
            case Array(element):
                self._write_array(element, value, is_nullable)
            case Struct(shape):
                self._write_nested(shape, value, is_nullable, null_mark)

    def _write_string(self, value: str, is_nullable: bool) -> None:
        line = self.source.line
        line(f"s = {value}")
        self._write_length("s", "s.encode()", "b''", is_nullable)
        self._flush_length("h", "encode_string_length")
        line("w += s")

    def _write_bytes(self, value: str, is_nullable: bool, borrowed: bool) -> None:
        line = self.source.line
        line(f"r = {value}")
        self._write_length("r", "r", "b''", is_nullable)
        self._flush_length("i", "encode_uvarint")
        if not borrowed:
            line("w += r")
            return
        with self.source.block(f"if n > {1 if self._is_flexible else 0}:"):
            line("out.append(w)")
            line("out.append(r)")
            line("w = bytearray()")

    def _write_array(
        self, element: Fixed | String | Bytes | Struct, value: str, is_nullable: bool
    ) -> None:
        elements = self._fresh("a")
        source = self.source
        source.line(f"{elements} = {value}")
        self._write_length(elements, elements, "()", is_nullable)
        self._flush_length("i", "encode_uvarint")
        if isinstance(element, Fixed) and element.letter != "16s":
            letter = element.letter
            source.line(f"if {elements}: w += pack(f'>{{len({elements})}}{letter}', *{elements})")
            return
        item = self._fresh("o")
        with source.block(f"for {item} in {elements}:"):
            if isinstance(element, Struct):
                self._write_struct(element.shape, item)
            else:
                self._write_value(element, item, is_nullable=False)
                self._flush()

    def _write_nested(self, shape: type, value: str, is_nullable: bool, null_mark: int) -> None:
        owner = self._fresh("o")
        if not is_nullable:
            self.source.line(f"{owner} = {value}")
            self._write_struct(shape, owner)
            return
        self._flush()
        self.source.line(f"{owner} = {value}")
        with self.source.block(f"if {owner} is None:"):
            self.source.line(f"w.append({null_mark})")
        with self.source.block("else:"):
            self.source.line("w.append(1)")
            self._write_struct(shape, owner)

    def _write_length(self, name: str, present: str, absent: str, is_nullable: bool) -> None:
        """Write code that sets `n` to the length as on the wire, and `name` to the value to
        append."""
        line = self.source.line
        plus = " + 1" if self._is_flexible else ""
        if not is_nullable:
            if present != name:
                line(f"{name} = {present}")
            line(f"n = len({name}){plus}")
            return
        with self.source.block(f"if {name} is None:"):
            line(f"{name} = {absent}")
            line("n = 0" if self._is_flexible else "n = -1")
        with self.source.block("else:"):
            if present != name:
                line(f"{name} = {present}")
            line(f"n = len({name}){plus}")

    def _flush_length(self, letter: str, encode_long: str) -> None:
        """Write all pending fixed-size fields, and `n` after them, as one `struct` call."""
        if not self._is_flexible:
            self._run.append((letter, "n"))
            self._flush()
            return
        run = list(self._run)
        with self.source.block("if n < 128:"):
            self._run.append(("B", "n"))
            self._flush()
        with self.source.block("else:"):
            self._run = run
            self._flush()
            self.source.line(f"w += {encode_long}(n)")

    def _flush(self) -> None:
        """Write all pending fixed-size fields as one `struct` call."""
        run, self._run = self._run, []
        letters = "".join(letter for letter, _ in run)
        values = ", ".join(value for _, value in run if value)
        if letters == "B":
            self.source.line(f"w.append({values})")
        elif letters == "x":
            self.source.line("w.append(0)")
        elif letters:
            self.source.line(f"w += {self.source.packer(letters)}({values})")

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"


def _differs(value: str, spec: Spec) -> str:
    """Return the source of the test whether a field differs from its default."""
    if spec.is_always_written:
        return "True"
    if spec.default is None:
        return f"{value} is not None"
    if isinstance(spec.default, list):
        return value
    return f"{value} != {spec.default!r}"
