"""How many requests are in flight: halved when the server cannot write fast enough, then slowly raised again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Limiter:
    """Additive increase, multiplicative decrease between 1 and ``ceiling``."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling, self.width, self.active = ceiling, float(ceiling), 0
        self._changed = asyncio.Condition()
        self._halved_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until one more request may be sent; hold its place inside the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.active < int(self.width))
            self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            async with self._changed:
                self._changed.notify_all()

    def slow_down(self, sent_at: float) -> bool:
        """Halve, unless that happened since ``sent_at`` (monotonic): requests that stall together count once."""
        if self._halved_at > sent_at:
            return False
        self.width = max(1.0, self.width / 2)
        self._halved_at = time.monotonic()
        return True

    def speed_up(self) -> None:
        """After a sample that went well: one more request in flight after as many such samples as there are now."""
        self.width = min(float(self.ceiling), self.width + 1 / self.width)
