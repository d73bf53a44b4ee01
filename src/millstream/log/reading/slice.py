"""Byte ranges of segment files, as reads return them."""

from __future__ import annotations

from typing import Final, Protocol

from millstream.env.disk import File
from millstream.log.files import FileHandle
from millstream.log.reading.walk import read_exactly
from millstream.log.segment import Segment
from millstream.model.error import BrokerError
from millstream.model.sentinel import NO_OFFSET


class ReadFailureHandler(Protocol):
    """The part of a log that a slice notifies when the disk fails."""

    def read_failed(self, error: OSError) -> BrokerError:
        """Record that the disk failed. Returns the error to raise."""
        ...


class LogSlice:
    """Whole batches as a byte range of a segment's file. Nothing is read before `read`.

    The file may be closed or removed in the next turn of the event loop. A caller that sends the
    range over several turns uses `held`.
    """

    __slots__ = ("_length", "_segment", "end_offset", "log", "position")

    def __init__(
        self, segment: Segment | None, position: int, length: int, end_offset: int = NO_OFFSET
    ) -> None:
        self._segment = segment
        #: Notified when the file cannot be read.
        self.log: ReadFailureHandler | None = None
        self.position = position
        self._length = length
        #: The first offset after the range, or NO_OFFSET.
        self.end_offset = end_offset

    def __len__(self) -> int:
        return self._length

    def read(self) -> bytes:
        """Return the bytes. Raises KAFKA_STORAGE_ERROR where the disk fails."""
        if self._segment is None:
            return b""
        try:
            return read_exactly(self._segment.log.get(), self._length, self.position)
        except OSError as error:
            raise self._failed(error) from error

    def open(self) -> None:
        """Open the file, so that `held` need not open it unless it was closed since.

        Raises KAFKA_STORAGE_ERROR."""
        assert self._segment is not None
        try:
            self._segment.log.get()
        except OSError as error:
            raise self._failed(error) from error

    def held(self) -> HeldSlice:
        """Return the same range with its file pinned. Not for an empty slice.

        Raises KAFKA_STORAGE_ERROR where the file cannot be opened."""
        assert self._segment is not None
        handle = self._segment.log
        try:
            handle.pin()
        except OSError as error:
            raise self._failed(error) from error
        return HeldSlice(handle, self.position, self._length, self.log)

    def _failed(self, error: OSError) -> Exception:
        return error if self.log is None else self.log.read_failed(error)


class HeldSlice:
    """A range of a file that stays open until `release`, even if the file is renamed or removed.

    Takes over one pin of the handle. Its owner must release it, on the event loop.
    """

    __slots__ = ("_handle", "_length", "_log", "position")

    def __init__(
        self, handle: FileHandle, position: int, length: int, log: ReadFailureHandler | None
    ) -> None:
        #: None after `release`.
        self._handle: FileHandle | None = handle
        self._log = log
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        return self._file().fileno()

    def read(self) -> bytes:
        try:
            return read_exactly(self._file(), self._length, self.position)
        except OSError as error:
            self.failed(error)
            raise

    def _file(self) -> File:
        assert self._handle is not None, "the slice was released"
        return self._handle.get()

    def failed(self, error: OSError) -> None:
        """Notify the log that the disk failed while the range was being sent."""
        if self._log is not None:
            self._log.read_failed(error)

    def release(self) -> None:
        """Give the pin back. A second call has no effect."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin()


EMPTY_SLICE: Final = LogSlice(None, 0, 0)
