"""Topic patterns: regular expressions that match whole topic names.

A pattern becomes a nondeterministic automaton whose state sets are cached as they occur: a
deterministic automaton that is built lazily. So matching a name takes time proportional to its
length for any pattern; nothing backtracks. Three limits bound the work that a client can cause: the
pattern's length, the automaton's size, and the uncached steps of one resolution.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from millstream.groups.subscription.pattern_syntax import (
    ALPHABET,
    Begin,
    Chars,
    Choice,
    End,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse,
)
from millstream.model.error import BrokerError, ErrorCode

PATTERN_BYTES_MAX: Final = 10_000
AUTOMATON_SIZE_MAX: Final = 20_000
#: Uncached steps of the automaton per resolution: well under a second.
RESOLUTION_STEPS_MAX: Final = 2_000_000
#: Cached state sets; the cache is cleared when there are more, as in RE2.
SETS_MAX: Final = 2_000

_MATCH: Final = "match"
_SPLIT: Final = "split"
_BEGIN: Final = "begin"
_END: Final = "end"

#: A set of automaton states, as the numbers of its instructions.
_States = frozenset[int]


def compile_pattern(text: str, alphabet: frozenset[str] = ALPHABET) -> TopicPattern:
    """Compile a pattern, by default for topic names; raise INVALID_REGULAR_EXPRESSION."""
    if len(text.encode()) > PATTERN_BYTES_MAX:
        raise _invalid(text, f"it has more than {PATTERN_BYTES_MAX} bytes")
    return _compile(text, alphabet)


@lru_cache(maxsize=256)
def _compile(text: str, alphabet: frozenset[str]) -> TopicPattern:
    try:
        return TopicPattern(text, alphabet)
    except PatternError as error:
        raise _invalid(text, str(error)) from None


def _invalid(text: str, reason: str) -> BrokerError:
    return BrokerError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"topic pattern {text[:80]!r} is not valid: {reason}",
    )


class TopicPattern:
    """A compiled pattern. Immutable except for its caches."""

    __slots__ = ("_accepting", "_moves", "_program", "_start", "_steps", "prefix", "text")

    def __init__(self, text: str, alphabet: frozenset[str] = ALPHABET) -> None:
        self.text = text
        self._program = _Program(parse(text, alphabet))
        self._steps = 0
        self._moves: dict[_States, dict[str, _States]] = {}
        self._accepting: dict[tuple[_States, bool], bool] = {}
        self._start = self._closure((0,), at_begin=True, at_end=False)
        #: Every matching name starts with this prefix.
        self.prefix = self._literal_prefix()

    def resolve(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match; raise INVALID_REGULAR_EXPRESSION if it takes too many
        steps."""
        self._steps = 0
        prefix = self.prefix
        return frozenset(name for name in names if name.startswith(prefix) and self._matches(name))

    def matches(self, name: str) -> bool:
        self._steps = 0
        return self._matches(name)

    def _matches(self, name: str) -> bool:
        states = self._start
        moves = self._moves
        for char in name:
            known = moves.get(states)
            following = known.get(char) if known is not None else None
            if following is None:
                following = self._move(states, char)
            if not following:
                return False
            states = following
        return self._accepts(states, not name)

    def _move(self, states: _States, char: str) -> _States:
        chars, following = self._program.chars, self._program.following
        after = [following[each] for each in states if (at := chars[each]) and char in at]
        found = self._closure(after, at_begin=False, at_end=False)
        self._steps += len(states)
        if self._steps > RESOLUTION_STEPS_MAX:
            raise _invalid(self.text, "it takes too long to match it with all topic names")
        if len(self._moves) > SETS_MAX:
            self._moves.clear()
            self._accepting.clear()
        self._moves.setdefault(states, {})[char] = found
        return found

    def _accepts(self, states: _States, is_empty: bool) -> bool:
        known = self._accepting.get((states, is_empty))
        if known is None:
            ended = self._closure(states, at_begin=is_empty, at_end=True)
            known = any(self._program.kinds[each] == _MATCH for each in ended)
            self._accepting[states, is_empty] = known
        return known

    def _closure(self, states: Iterable[int], *, at_begin: bool, at_end: bool) -> _States:
        """Return all states reachable without a character. States that wait for a character or the
        end of the name, and the final state, are kept; the others are only traversed."""
        program = self._program
        found: set[int] = set()
        kept: set[int] = set()
        waiting = list(states)
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            found.add(each)
            kind = program.kinds[each]
            if kind == _SPLIT:
                waiting += program.branches[each]
            elif (kind == _BEGIN and at_begin) or (kind == _END and at_end):
                waiting.append(program.following[each])
            elif kind != _BEGIN:
                kept.add(each)
        self._steps += len(found)
        return frozenset(kept)

    def _literal_prefix(self) -> str:
        prefix: list[str] = []
        states = self._start
        while len(states) == 1 and len(prefix) < PATTERN_BYTES_MAX:
            (state,) = states
            chars = self._program.chars[state]
            if self._program.kinds[state] or len(chars) != 1:
                break
            prefix += chars
            after = (self._program.following[state],)
            states = self._closure(after, at_begin=False, at_end=False)
        return "".join(prefix)


class _Program:
    """A syntax tree compiled to instructions: each has a kind ("" consumes a character) and a
    successor."""

    __slots__ = ("branches", "chars", "following", "kinds")

    def __init__(self, tree: Node) -> None:
        self.kinds: list[str] = []
        self.chars: list[frozenset[str]] = []
        self.following: list[int] = []
        self.branches: dict[int, list[int]] = {}
        self._emit(tree)
        self._add(_MATCH)

    def _add(self, kind: str, chars: frozenset[str] = frozenset()) -> int:
        number = len(self.kinds)
        if number >= AUTOMATON_SIZE_MAX:
            raise PatternError("it is too large with its repetitions written out")
        self.kinds.append(kind)
        self.chars.append(chars)
        self.following.append(number + 1)
        return number

    def _emit(self, node: Node) -> None:
        """Emit the instructions of a node; the next instruction follows them."""
        match node:
            case Chars(chars):
                self._add("", chars)
            case Begin():
                self._add(_BEGIN)
            case End():
                self._add(_END)
            case Sequence(parts):
                for part in parts:
                    self._emit(part)
            case Choice(options):
                self._emit_choice(options)
            case Repeat(part, least, most):
                self._emit_repeat(part, least, most)

    def _emit_choice(self, options: tuple[Node, ...]) -> None:
        split = self._add(_SPLIT)
        starts: list[int] = []
        ends: list[int] = []
        for option in options:
            starts.append(len(self.kinds))
            self._emit(option)
            ends.append(self._add(_SPLIT))
        self.branches[split] = starts
        for end in ends:
            self.branches[end] = [len(self.kinds)]

    def _emit_repeat(self, part: Node, least: int, most: int | None) -> None:
        for _ in range(least):
            self._emit(part)
        if most is None:
            split = self._add(_SPLIT)
            self._emit(part)
            back = self._add(_SPLIT)
            self.branches[back] = [split]
            self.branches[split] = [split + 1, back + 1]
            return
        splits: list[int] = []
        for _ in range(most - least):
            splits.append(self._add(_SPLIT))
            self._emit(part)
        for split in splits:
            self.branches[split] = [split + 1, len(self.kinds)]
