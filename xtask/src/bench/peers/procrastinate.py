# Jobs that do nothing, a second, through procrastinate's own worker.
# usage: python3 procrastinate.py DATABASE_URL COUNT, with the package on PYTHONPATH
import asyncio
import sys
import time
from pathlib import Path

# This file has the package's name, and must not be taken for it.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
import procrastinate  # noqa: E402

url, count = sys.argv[1], int(sys.argv[2])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=16))


@app.task(name="noop", queue="noop")
async def noop():
    pass


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for made in range(0, count, 1000):
            await noop.batch_defer_async(*({} for _ in range(min(1000, count - made))))
        begun = time.perf_counter()
        await app.run_worker_async(queues=["noop"], concurrency=16, wait=False, install_signal_handlers=False)
        print(count / (time.perf_counter() - begun))


asyncio.run(main())
