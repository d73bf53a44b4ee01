"""The handler of a connection's frames: implemented by the broker's session."""

from __future__ import annotations

from typing import Protocol


class FrameHandler(Protocol):
    """Handles the frames of one connection."""

    def receive(self, frame: memoryview) -> None:
        """Handle one whole frame, without its length. The view is invalid after this returns.

        Raises RejectedRequestError for a malformed frame; the connection is then closed."""
        ...

    def is_idle(self) -> bool:
        """Return whether no request is in flight, so that an idle connection may be closed."""
        ...

    def closed(self) -> None:
        """Release what belongs to the connection, which is closed; called once."""
        ...
