"""The syntax of patterns: the subset of RE2 that is useful for topic names and similar texts.

A pattern is parsed into a tree of the tuples below, over an alphabet: the 65 legal characters of
topic names (`ALPHABET`), or printable ASCII and one character for all others (`TEXT_ALPHABET`).
Characters outside the alphabet are removed from sets, and `.` matches the whole alphabet. Syntax
that needs more than one pass over the name (back references, lookaround) is rejected, as in RE2. So
are word boundaries and Unicode classes, which RE2 has and topic names do not need. Laziness,
captures and the flags m, s and U are accepted without effect, because a name matches as a whole.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

#: Every character of legal topic names.
ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
#: Stands for every character that is not printable ASCII; see `as_text`.
_OTHER: Final = "\x7f"
#: Characters of any text, such as a client id.
TEXT_ALPHABET: Final = frozenset(map(chr, range(0x20, 0x7F))) | {_OTHER}
#: RE2 has the same limit.
REPEAT_MAX: Final = 1000
#: The limit for nested groups.
DEPTH_MAX: Final = 100

_DIGIT: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset(" ")
_NONE: Final[frozenset[str]] = frozenset()
_Classes: TypeAlias = dict[str, frozenset[str]]
_CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_FLAGS: Final = frozenset("imsU")


@lru_cache(maxsize=2)
def _perl_classes(alphabet: frozenset[str]) -> _Classes:
    return {
        "d": _DIGIT,
        "D": alphabet - _DIGIT,
        "w": _WORD,
        "W": alphabet - _WORD,
        "s": alphabet & _SPACE,
        "S": alphabet - _SPACE,
    }


@lru_cache(maxsize=2)
def _posix_classes(alphabet: frozenset[str]) -> _Classes:
    ascii_only = alphabet - {_OTHER}
    return {
        "alnum": frozenset(string.ascii_letters + string.digits),
        "alpha": frozenset(string.ascii_letters),
        "ascii": ascii_only,
        "blank": alphabet & _SPACE,
        "cntrl": _NONE,
        "digit": _DIGIT,
        "graph": ascii_only - _SPACE,
        "lower": frozenset(string.ascii_lowercase),
        "print": ascii_only,
        "punct": alphabet & frozenset(string.punctuation),
        "space": alphabet & _SPACE,
        "upper": frozenset(string.ascii_uppercase),
        "word": _WORD,
        "xdigit": frozenset(string.hexdigits),
    }


def as_text(value: str) -> str:
    """Return `value` in TEXT_ALPHABET: each character outside printable ASCII is replaced by the
    one that stands for all of them."""
    if value.isascii() and value.isprintable():
        return value
    return "".join(each if " " <= each <= "~" else _OTHER for each in value)


class PatternError(ValueError):
    """The text is not a valid pattern; the message says why."""


class Chars(NamedTuple):
    chars: frozenset[str]


class Begin(NamedTuple):
    """Matches at the start of the name."""


class End(NamedTuple):
    """Matches at the end of the name."""


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    options: tuple[Node, ...]


class Repeat(NamedTuple):
    part: Node
    least: int
    #: None if unbounded.
    most: int | None


Node: TypeAlias = Chars | Begin | End | Sequence | Choice | Repeat


def parse(pattern: str, alphabet: frozenset[str] = ALPHABET) -> Node:
    """Parse a pattern over the characters of `alphabet`; raise PatternError."""
    parser = _Parser(pattern, alphabet)
    node = parser.choice()
    if parser.position < len(pattern):
        raise PatternError("unexpected )")
    return node


class _Parser:
    """A recursive descent parser; `position` is the index of the next character."""

    __slots__ = ("alphabet", "depth", "ignore_case", "pattern", "position")

    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self.pattern = pattern
        self.alphabet = alphabet
        self.position = 0
        self.depth = 0
        self.ignore_case = False

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _next(self) -> str:
        char = self._peek()
        self.position += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.position)
        if found:
            self.position += len(text)
        return found

    def _until(self, end: str, what: str) -> str:
        at = self.pattern.find(end, self.position)
        if at < 0:
            raise PatternError(f"missing {end} after {what}")
        text = self.pattern[self.position : at]
        self.position = at + len(end)
        return text

    def choice(self) -> Node:
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (char := self._peek()) and char not in "|)":
            if self._skip("\\Q"):
                end = self.pattern.find("\\E", self.position)
                text = self.pattern[self.position : end if end >= 0 else None]
                self.position += len(text) + (2 if end >= 0 else 0)
                parts.extend(self._literal(each) for each in text)
                if parts:
                    parts[-1] = self._repeated(parts[-1])
                continue
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._skip("?")
        if self._peek() in {"*", "+", "?"}:
            raise PatternError("a repetition of a repetition needs parentheses")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._skip("*"):
            return 0, None
        if self._skip("+"):
            return 1, None
        if self._skip("?"):
            return 0, 1
        return self._counted() if self._peek() == "{" else None

    def _counted(self) -> tuple[int, int | None] | None:
        """Parse {n}, {n,} or {n,m}; any other brace is a literal."""
        end = self.pattern.find("}", self.position, self.position + 12)
        least, comma, most = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(least) or (most and not _is_number(most)):
            return None
        self.position = end + 1
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise PatternError(f"a repetition {{n,m}} needs n <= m <= {REPEAT_MAX}")
        return low, high

    def _atom(self) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return Chars(self._fold(self._set()))
            case ".":
                return Chars(self.alphabet)
            case "^":
                return Begin()
            case "$":
                return End()
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat before {char}")
            case "\\":
                return self._escape()
            case _:
                return self._literal(char)

    def _literal(self, char: str) -> Node:
        return Chars(self._fold(frozenset(char) & self.alphabet))

    def _fold(self, chars: frozenset[str]) -> frozenset[str]:
        if not self.ignore_case:
            return chars
        return chars | {each.swapcase() for each in chars}

    def _group(self) -> Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise PatternError(f"groups are nested more than {DEPTH_MAX} deep")
        ignored_case = self.ignore_case
        if self._skip("?") and self._opening():
            self.depth -= 1
            return Sequence(())
        node = self.choice()
        if not self._skip(")"):
            raise PatternError("missing )")
        self.ignore_case = ignored_case
        self.depth -= 1
        return node

    def _opening(self) -> bool:
        """Parse the text after `(?`. Return True if the group ends here: its flags apply to the
        rest of the enclosing group."""
        if self._skip("P<") or (self._peek() == "<" and not self._is_lookbehind()):
            self._skip("<")
            if not self._until(">", "the name of a group").isidentifier():
                raise PatternError("a group's name must be a word")
            return False
        value = True
        while (char := self._next()) not in (":", ")"):
            if char == "-" and value:
                value = False
            elif char in _FLAGS and char:
                self.ignore_case = value if char == "i" else self.ignore_case
            else:
                raise PatternError(f"(?{char} is not supported")
        return char == ")"

    def _is_lookbehind(self) -> bool:
        return self.pattern.startswith(("<=", "<!"), self.position)

    def _escape(self) -> Node:
        char = self._next()
        classes = _perl_classes(self.alphabet)
        if char in classes and char:
            return Chars(classes[char])
        if char == "A":
            return Begin()
        if char == "z":
            return End()
        return self._literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        """Return the character that an escape stands for; `char` follows the \\."""
        if not char:
            raise PatternError("a \\ at the end")
        if char == "x":
            braced = self._skip("{")
            digits = self._until("}", "\\x{") if braced else self._next() + self._next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise PatternError(f"\\x{digits[:10]} is not a character") from None
        if char in _CONTROL:
            return _CONTROL[char]
        if char.isalnum():
            raise PatternError(f"\\{char} is not supported")
        return char

    def _set(self) -> frozenset[str]:
        negated = self._skip("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if not self._peek():
                raise PatternError("missing ]")
            if self._skip("[:"):
                chars |= self._posix()
            else:
                chars |= self._range()
        self.position += 1
        found = self._fold(frozenset(chars))
        return self.alphabet - found if negated else found

    def _posix(self) -> frozenset[str]:
        name = self._until(":]", "[:")
        negated = name.startswith("^")
        found = _posix_classes(self.alphabet).get(name[negated:])
        if found is None:
            raise PatternError(f"[:{name[:20]}:] is not a class")
        return self.alphabet - found if negated else found

    def _range(self) -> frozenset[str]:
        """Parse one entry of a set: a class, a character, or a range."""
        low = self._next()
        if low == "\\":
            low = self._next()
            classes = _perl_classes(self.alphabet)
            if low in classes and low:
                return classes[low]
            low = self._escaped(low)
        after = self.pattern[self.position + 1 : self.position + 2]
        if self._peek() != "-" or after in ("]", ""):
            return frozenset(low) & self.alphabet
        self.position += 1
        high = self._next()
        if high == "\\":
            high = self._escaped(self._next())
        if high < low:
            raise PatternError(f"{low}-{high} is not a range")
        return frozenset(each for each in self.alphabet if low <= each <= high)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
