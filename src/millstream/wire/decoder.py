"""Compiles the decode function of one message class in one version.

The function is straight-line code. Adjacent fixed-size fields, together with the length of the
field after them, are one `struct` call; nested structs are inlined as nested loops. Only tag
sections that are not empty, and varints above 127, call other functions.

Names in the generated code: `b` buffer, `p` position, `e` end of the buffer, `n` the length or
count just read, `q` end of the value being read, `o<k>` objects, `a<k>` arrays.

Every length is compared with the remaining bytes before it is used. Other reads past the end of the
buffer raise struct.error or IndexError, which the function translates into DecodeError.
"""

from __future__ import annotations

from codecs import utf_8_decode
from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Any, Final

from millstream.wire import primitive
from millstream.wire.field import Array, Bytes, Fixed, Kind, Spec, String, Struct, specs_of
from millstream.wire.source import Source

_NAMES: Final[dict[str, object]] = {
    "new": object.__new__,
    "utf8": utf_8_decode,
    "unpack_from": unpack_from,
    "StructError": StructError,
    "DecodeError": primitive.DecodeError,
    "finish_uvarint": primitive.finish_uvarint,
    "finish_string_length": primitive.finish_string_length,
    "read_uvarint": primitive.read_uvarint,
    "skip_tags": primitive.skip_tags,
    "fail_length": primitive.fail_length,
    "fail_tag": primitive.fail_tag,
    "fail_trailing": primitive.fail_trailing,
}


def compile_decoder(shape: type, version: int, flexible_from: int, is_open: bool) -> Any:
    """Return `decode(buffer, position=0) -> shape` for one version.

    With `is_open` it ignores bytes after the last field.
    """
    writer = _DecodeWriter(version, is_flexible=version >= flexible_from)
    writer.write_message(shape, is_open)
    return writer.source.compile("decode", f"decode {shape.__name__} v{version}")


class _DecodeWriter:
    """Writes a decode function, and a function for each struct with known tagged fields."""

    __slots__ = ("_borrows", "_count", "_is_flexible", "_run", "_version", "source")

    def __init__(self, version: int, is_flexible: bool) -> None:
        self.source = Source(_NAMES)
        self._version = version
        self._is_flexible = is_flexible
        self._borrows = False
        self._count = 0
        #: Pending fixed-size reads: letter, size, target.
        self._run: list[tuple[str, int, str]] = []

    def write_message(self, shape: type, is_open: bool) -> None:
        source = self.source
        self._borrows = _has_records(shape)
        with source.block("def decode(b, p=0):"):
            with source.block("try:"):
                view = "memoryview" if self._borrows else "bytes"
                source.line(f"if type(b) is not {view}: b = {view}(b)")
                source.line("e = len(b)")
                target = self._write_struct(shape)
                if not is_open:
                    source.line("if p != e: fail_trailing(p, e)")
                source.line(f"return {target}")
            with source.block("except (StructError, IndexError, UnicodeDecodeError) as problem:"):
                label = f"{shape.__name__} version {self._version}"
                source.line(f"raise DecodeError(f'not a valid {label}: {{problem}}') from problem")

    def _write_struct(self, shape: type) -> str:
        target = self._fresh("o")
        self.source.line(f"{target} = new({self.source.bind('C', shape)})")
        tagged: list[tuple[str, Spec]] = []
        for name, spec in specs_of(shape):
            if spec.is_in(self._version) and spec.tag is None:
                self._write_value(spec.kind, f"{target}.{name}", self._is_nullable(spec))
                continue
            self.source.line(f"{target}.{name} = {self._default(spec)}")
            if spec.is_in(self._version):
                tagged.append((name, spec))
        if self._is_flexible:
            self._read("B", 1, "n")
            self._flush()
            skip = self._write_tags(tagged) if tagged else "skip_tags(b, p, n)"
            self.source.line(f"if n: p = {skip.replace('OBJECT', target)}")
        self._flush()
        return target

    def _write_tags(self, tagged: list[tuple[str, Spec]]) -> str:
        """Write a function that reads a tag section with known fields; return the call to it."""
        function = self._fresh("tags")
        source = self.source
        with source.at_top(), source.block(f"def {function}(b, p, n, e, o):"):
            source.line("if n > 127: n, p = finish_uvarint(b, p, n)")
            with source.block("for _ in range(n):"):
                source.line("t, p = read_uvarint(b, p)")
                source.line("n, p = read_uvarint(b, p)")
                source.line("z = p + n")
                source.line("if z > e: fail_length(n, p, e)")
                for name, spec in tagged:
                    with source.block(f"if t == {spec.tag}:"):
                        is_nullable = self._is_nullable(spec)
                        self._write_value(spec.kind, f"o.{name}", is_nullable, null_mark="n == 0")
                        self._flush()
                        source.line("if p != z: fail_tag(t, p, z)")
                        source.line("continue")
                source.line("p = z")
            source.line("return p")
        return f"{function}(b, p, n, e, OBJECT)"

    def _write_value(
        self, kind: Kind, target: str, is_nullable: bool, null_mark: str = "n > 127"
    ) -> None:
        """Write the read of one value. `null_mark` tests the byte before a nullable struct for
        null."""
        match kind:
            case Fixed(letter, size):
                self._read(letter, size, target)
            case String() | Bytes():
                self._write_sized(kind, target, is_nullable)
            case Array(element):
                self._write_array(element, target, is_nullable)
            case Struct(shape):
                self._write_nested(shape, target, is_nullable, null_mark)

    def _write_sized(self, kind: String | Bytes, target: str, is_nullable: bool) -> None:
        """Write the read of a string or bytes: the length, then the bytes."""
        is_string = isinstance(kind, String)
        self._read_length("h" if is_string else "i", is_string)
        if is_nullable:
            with self.source.block(f"if {self._null_test()}:"):
                self.source.line(f"{target} = None")
            with self.source.block("else:"):
                self._write_slice(kind, target)
        else:
            self._write_slice(kind, target)

    def _write_slice(self, kind: String | Bytes, target: str) -> None:
        line = self.source.line
        line("q = p + n - 1" if self._is_flexible else "q = p + n")
        line("if not p <= q <= e: fail_length(q - p, p, e)")
        if isinstance(kind, String):
            # The last argument makes an incomplete sequence at the end an error.
            line(f"{target} = utf8(b[p:q], 'strict', True)[0]")
        elif kind.borrowed or not self._borrows:
            line(f"{target} = b[p:q]")
        else:
            line(f"{target} = bytes(b[p:q])")
        line("p = q")

    def _write_array(
        self, element: Fixed | String | Bytes | Struct, target: str, is_nullable: bool
    ) -> None:
        self._read_length("i", is_string=False)
        if is_nullable:
            with self.source.block(f"if {self._null_test()}:"):
                self.source.line(f"{target} = None")
            with self.source.block("else:"):
                self._write_elements(element, target)
        else:
            self._write_elements(element, target)

    def _write_elements(self, element: Fixed | String | Bytes | Struct, target: str) -> None:
        source = self.source
        if self._is_flexible:
            source.line("n -= 1")
        element_bytes = _smallest(element, self._version, self._is_flexible)
        source.line(f"if not 0 <= n * {element_bytes} <= e - p: fail_length(n, p, e)")
        if isinstance(element, Fixed) and element.letter != "16s":
            source.line(f"{target} = list(unpack_from(f'>{{n}}{element.letter}', b, p))")
            source.line(f"p += n * {element.size}")
            return
        elements = self._fresh("a")
        source.line(f"{elements} = {target} = []")
        with source.block("for _ in range(n):"):
            if isinstance(element, Struct):
                item = self._write_struct(element.shape)
            else:
                item = self._fresh("o")
                self._write_value(element, item, is_nullable=False)
                self._flush()
            source.line(f"{elements}.append({item})")

    def _write_nested(self, shape: type, target: str, is_nullable: bool, null_mark: str) -> None:
        if not is_nullable:
            self.source.line(f"{target} = {self._write_struct(shape)}")
            return
        self._read("B", 1, "n")
        self._flush()
        with self.source.block(f"if {null_mark}:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.source.line(f"{target} = {self._write_struct(shape)}")

    def _read(self, letter: str, size: int, target: str) -> None:
        self._run.append((letter, size, target))

    def _read_length(self, letter: str, is_string: bool) -> None:
        """Write the read of a length into `n`, as on the wire: plus one in flexible versions."""
        if not self._is_flexible:
            self._read(letter, 2 if letter == "h" else 4, "n")
            self._flush()
            return
        self._read("B", 1, "n")
        self._flush()
        finish = "finish_string_length" if is_string else "finish_uvarint"
        self.source.line(f"if n > 127: n, p = {finish}(b, p, n)")

    def _flush(self) -> None:
        """Write all pending fixed-size reads as one `struct` call."""
        run, self._run = self._run, []
        if not run:
            return
        letters = "".join(letter for letter, _, _ in run)
        if letters == "B":
            self.source.line(f"{run[0][2]} = b[p]")
        else:
            targets = "".join(f"{target}, " for _, _, target in run)
            self.source.line(f"{targets}= {self.source.unpacker(letters)}(b, p)")
        self.source.line(f"p += {sum(size for _, size, _ in run)}")

    def _null_test(self) -> str:
        return "n == 0" if self._is_flexible else "n < 0"

    def _is_nullable(self, spec: Spec) -> bool:
        return spec.is_nullable(self._version)

    def _default(self, spec: Spec) -> str:
        """Return the source of the value of an absent field."""
        is_struct = spec.default is not None or spec.is_always_written
        if isinstance(spec.kind, Struct) and is_struct:
            return f"{self.source.bind('C', spec.kind.shape)}()"
        return repr(spec.default)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"


def _has_records(shape: type) -> bool:
    for _, spec in specs_of(shape):
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if isinstance(kind, Bytes) and kind.borrowed:
            return True
        if isinstance(kind, Struct) and _has_records(kind.shape):
            return True
    return False


def _smallest(kind: Kind, version: int, is_flexible: bool) -> int:
    """Return the minimum size of a value, at least 1, which limits the count of an array."""
    match kind:
        case Fixed(_, size):
            return size
        case String():
            return 1 if is_flexible else 2
        case Bytes() | Array():
            return 1 if is_flexible else 4
        case Struct(shape):
            total = 1 if is_flexible else 0
            for _, spec in specs_of(shape):
                if not spec.is_in(version) or spec.tag is not None:
                    continue
                is_marked = isinstance(spec.kind, Struct) and spec.is_nullable(version)
                total += 1 if is_marked else _smallest(spec.kind, version, is_flexible)
            return max(1, total)
