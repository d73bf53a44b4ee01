"""Notifications to systemd, for a unit with `Type=notify`. The protocol is that of sd_notify(3).

systemd names a datagram socket in NOTIFY_SOCKET. The broker sends READY=1 when it serves clients,
and STOPPING=1 when its shutdown starts. With WatchdogSec= it sends WATCHDOG=1 at half of that
interval, from the event loop: systemd restarts a broker whose loop no longer runs. Without
NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

_logger = logging.getLogger(__name__)

_SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
_WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
#: The process that the watchdog is for; absent if it is for every process of the unit.
_WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"


class Systemd:
    """The connection to systemd of this process. Event loop only."""

    __slots__ = ("_address", "_interval_s", "_timer")

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get(_SOCKET_VARIABLE, "")
        # A leading @ stands for the NUL byte of Linux's abstract sockets.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        #: Pause between two signs of life; 0 without a watchdog.
        self._interval_s = _watchdog_interval_s(environment) if address else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Report that the start is complete, with a `status` that `systemctl status` shows."""
        self._send(f"READY=1\nSTATUS={status}")
        self._keep_alive()

    def stopping(self) -> None:
        """Report that the shutdown has started. The watchdog is kept alive until `close`."""
        self._send("STOPPING=1\nSTATUS=shutting down")

    def close(self) -> None:
        """Send no further signs of life. May be called more than once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep_alive(self) -> None:
        if not self._interval_s:
            return
        self._send("WATCHDOG=1")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._keep_alive)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                # A full queue of systemd must not block the broker.
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            _logger.warning("systemd was not notified (%s): %s", text.splitlines()[0], error)


def _watchdog_interval_s(environment: Mapping[str, str]) -> float:
    """Return half of the time after which systemd restarts a silent process; 0 if it does not."""
    if environment.get(_WATCHDOG_PID_VARIABLE, str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get(_WATCHDOG_VARIABLE, "0")
    return int(text) / 2_000_000 if text.isdecimal() else 0.0
