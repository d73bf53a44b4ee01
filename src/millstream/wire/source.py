"""Writes Python source: indented lines and names bound to objects, compiled at the end.

`decoder` and `encoder` write their functions with it. This module knows nothing of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class Source:
    """The source of functions under construction, and the objects that they refer to."""

    __slots__ = ("_depth", "_lines", "names")

    def __init__(self, names: dict[str, object]) -> None:
        self.names = dict(names)
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Write `opening`, and indent the lines written inside the block."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def at_top(self) -> Iterator[None]:
        """Write a separate function, placed before the one under construction."""
        outer, depth = self._lines, self._depth
        self._lines, self._depth = [], 0
        yield
        self._lines, self._depth = self._lines + outer, depth

    def bind(self, stem: str, value: object) -> str:
        """Return a name by which the functions refer to `value`."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{stem}_{len(self.names)}"
        self.names[name] = value
        return name

    def unpacker(self, letters: str) -> str:
        """Return the name of the `unpack_from` of these `struct` letters."""
        return self._bind_struct("unpack", letters, lambda layout: layout.unpack_from)

    def packer(self, letters: str) -> str:
        """Return the name of the `pack` of these `struct` letters."""
        return self._bind_struct("pack", letters, lambda layout: layout.pack)

    def compile(self, function: str, origin: str) -> Any:
        """Compile the source and return `function`; tracebacks show `origin`."""
        namespace = dict(self.names)
        exec(compile(str(self), f"<{origin}>", "exec"), namespace)  # noqa: S102
        return namespace[function]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _bind_struct(self, verb: str, letters: str, pick: Callable[[Struct], object]) -> str:
        name = f"{verb}_{letters.replace('?', 'Z')}"
        if name not in self.names:
            self.names[name] = pick(Struct(">" + letters))
        return name
