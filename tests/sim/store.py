"""A simulated link between a broker and the metadata store. It has a delay and can be cut."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from millstream.metadata.store.port import UnavailableError, UncertainError

_DELAY_S: Final = (0.0005, 0.004)
#: Time after which a call of the store times out.
_TIMEOUT_S: Final = 0.3


class SimLink:
    """One broker's link. While it is cut, calls fail after a timeout, and watch events wait."""

    __slots__ = ("_healed", "_random", "is_cut")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.is_cut = False
        self._healed: list[asyncio.Future[None]] = []

    def cut(self) -> None:
        self.is_cut = True

    def heal(self) -> None:
        self.is_cut = False
        healed, self._healed = self._healed, []
        for waiter in healed:
            if not waiter.done():
                waiter.set_result(None)

    async def request(self) -> None:
        await self._delay()
        if self.is_cut:
            await asyncio.sleep(_TIMEOUT_S)
            raise UnavailableError("the store can't be reached")

    async def respond(self, changed: bool) -> None:
        await self._delay()
        if self.is_cut and changed:
            await asyncio.sleep(_TIMEOUT_S)
            raise UncertainError("the store was lost during the call")
        while self.is_cut:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._healed.append(waiter)
            await waiter

    async def _delay(self) -> None:
        low, high = _DELAY_S
        await asyncio.sleep(low + (high - low) * self._random.random())
