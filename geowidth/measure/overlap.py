"""Work in two steps side by side: the first one after another in this thread, the second in worker threads.

On a GPU machine the first step is a layer's distances and Gromov-Wasserstein on the device, the second its persistence
on the CPU, where its matrices arrive while the device is at the next layer's.
"""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HOST_BYTES = 4 << 30  # of matrices on their way to the second step


def staged(jobs, begin, finish, workers, ahead):
    """Yield finish(begin(job)) for every job of an iterable, in order.

    begin     called here, one job after another
    finish    called by `workers` threads
    ahead     so many jobs at most are begun and not finished: `begin` waits for one to end

    Close the generator to drop what has not started; what has is waited for, also when a step raises.
    """
    room = threading.Semaphore(ahead)
    waiting: deque[Any] = deque()

    def finish_one(begun):
        try:
            return finish(begun)
        finally:
            room.release()

    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in jobs:
                room.acquire()
                waiting.append(pool.submit(finish_one, begin(job)))
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def jobs_ahead(job_bytes, workers):
    """How many jobs of so many bytes each may be begun and not finished: one more than workers, within HOST_BYTES, and
    two at least, without which nothing would overlap."""
    return max(2, min(workers + 1, HOST_BYTES // max(1, job_bytes)))
