"""A training by the command line in which one process fails: torchrun starts it with the fault, then the arguments.

"refuse": the last process finds bad input in the middle of a step; "die": it is gone without a word.
"""

import functools
import os
import signal
import sys

from ranked_training import UNEVEN

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.models.presets import PRESETS
from geowidth.train import loop, losses

STEP = 20  # in which it happens, counted from 0

if __name__ == "__main__":
    passes, usual = [], losses.summed_loss

    def failing(*arguments):
        passes.append(1)
        if len(passes) > 2 * STEP and os.environ["RANK"] == "1":  # two microbatches a step
            if sys.argv[1] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("the disk of this process is gone")
        return usual(*arguments)

    losses.summed_loss = failing
    loop.train = functools.partial(loop.train, save_seconds=0)  # a state after every step
    PRESETS.register(UNEVEN)
    sys.exit(main(sys.argv[2:]))
