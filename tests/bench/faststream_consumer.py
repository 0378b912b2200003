"""The consumer that ours is compared with: FastStream's stream subscriber in its documented mode, doing nothing.

    python -m tests.bench.faststream_consumer REDIS_URL

One group, one handler after another, entries fetched by the hundred and acknowledged one by one.
"""

import os
import sys
from typing import Any, Final

import uvloop
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

STREAM: Final = "jobs"
GROUP: Final = "g"
RECORDS_MAX: Final = 100


def main(url: str) -> None:
    """Consume until a signal comes."""
    broker = RedisBroker(url, logger=None)  # type: ignore[arg-type] # None is silence, and documented
    app = FastStream(broker, logger=None)

    @broker.subscriber(stream=StreamSub(STREAM, group=GROUP, consumer=f"c{os.getpid()}", max_records=RECORDS_MAX))
    async def job(message: dict[str, Any]) -> Any:
        return message["i"]

    uvloop.run(app.run())


if __name__ == "__main__":
    main(sys.argv[1])
