"""Dead letters on a real data folder, with a clock that does not advance by itself."""

from __future__ import annotations

from pathlib import Path

from broker.lag.lag_home import World, run
from millstream.broker.metrics.dead_letter_gauges import DeadLetters


class DeadLetterWorld(World):
    """The topic t, and its dead-letter topic with two partitions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.image = self.picture(**{"t": 1, "t.dlq": 2})

    def begin(self) -> None:
        super().begin()
        self.letters = DeadLetters(self.replicas, self.clock)
        self.produce("t", count=3)

    async def refresh(self) -> tuple[dict[str, float], dict[str, float]]:
        """Refresh, and return counts and ages by topic."""
        await self.letters.refresh()
        counts, ages = self.letters.counts(), self.letters.ages()
        return {topic: value for (topic,), value in counts}, {
            topic: value for (topic,), value in ages
        }


def test_letters_are_counted_and_the_oldest_tells_the_age(tmp_path: Path) -> None:
    async def body(world: DeadLetterWorld) -> None:
        assert await world.refresh() == ({"t.dlq": 0}, {"t.dlq": 0})
        world.produce("t.dlq", 0, count=3)
        world.produce("t.dlq", 1, count=5)
        world.clock.now_ms += 10_000
        assert await world.refresh() == ({"t.dlq": 8}, {"t.dlq": 14})
        world.partition_of("t.dlq", 1).log.advance_start(5)
        assert await world.refresh() == ({"t.dlq": 3}, {"t.dlq": 12})
        world.partition_of("t.dlq", 0).log.advance_start(3)
        assert await world.refresh() == ({"t.dlq": 0}, {"t.dlq": 0})

    run(DeadLetterWorld(tmp_path), body)
