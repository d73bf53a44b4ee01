"""`faststream_program.py SERVERS TOPIC COUNT default|ack`: FastStream on confluent-kafka.

`default` commits on a timer, before messages are processed. `ack` acknowledges each message after
its handler, as Millstream's worker does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from faststream import AckPolicy, FastStream  # type: ignore[import-not-found]
from faststream.confluent import KafkaBroker  # type: ignore[import-not-found]

from bench.worker_program.timing import Timing


def main() -> None:
    servers, topic, count, kind = sys.argv[1:]
    timing = Timing(int(count))
    broker = KafkaBroker(servers, logger=None, log_level=logging.CRITICAL)

    async def handle(message: bytes) -> None:
        timing.count()

    options = {} if kind == "default" else {"ack_policy": AckPolicy.ACK}
    broker.subscriber(topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest", **options)(
        handle
    )
    asyncio.run(FastStream(broker, logger=None).run())


if __name__ == "__main__":
    main()
