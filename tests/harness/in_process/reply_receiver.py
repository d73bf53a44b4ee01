"""A receiver of replies that records them."""

from __future__ import annotations

from typing import Any

from millstream.model.reply import Reply, ReplyKind


class RecordedReplies:
    """The recorded replies. An error response is recorded as its error code."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.failures: list[tuple[str, Exception]] = []
        self.abandoned: list[Exception] = []

    def reply(self, kind: ReplyKind = ReplyKind.FETCH) -> Reply[Any]:
        return Reply(kind, self, lambda code: code)

    def receive(self, result: Any, /) -> None:
        self.results.append(result)

    def failed(self, kind: str, error: Exception, /) -> None:
        self.failures.append((kind, error))

    def abandon(self, kind: str, error: Exception, /) -> None:
        self.abandoned.append(error)
