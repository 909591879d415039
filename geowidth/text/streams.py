"""Token ids that lie in files: memory maps, one a file, read as one sequence. Only what is asked for is in memory."""

from collections.abc import Sequence

import numpy as np
import torch

DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


class TokenStream:
    """The ids of one split, in order.

    parts: (n_i,) arrays of one unsigned dtype, as a rule memory maps. It is indexed by slices without a step, as a
    tensor is, and gives int64.
    """

    def __init__(self, parts: Sequence[np.ndarray], item_bytes: int) -> None:
        self.parts = [part for part in parts if len(part)]
        self.ends = np.cumsum([0, *map(len, self.parts)])
        self.dtype = DTYPES[item_bytes]

    def numel(self) -> int:
        """How many ids there are."""
        return int(self.ends[-1])

    def __len__(self) -> int:
        return self.numel()

    def __getitem__(self, span: slice) -> torch.Tensor:
        """The ids of a slice, int64 (k,), in memory."""
        start, stop, step = span.indices(self.numel())
        if step != 1:
            raise IndexError("a stream of tokens is sliced without a step")
        found = np.empty(max(0, stop - start), np.int64)
        part = int(np.searchsorted(self.ends, start, "right")) - 1
        while start < stop:
            own = self.parts[part][start - self.ends[part] : stop - self.ends[part]]
            place = len(found) - (stop - start)
            found[place : place + len(own)] = own
            start, part = start + len(own), part + 1
        return torch.from_numpy(found)

    def gather(self, starts: torch.Tensor, length: int) -> torch.Tensor:
        """The windows (len(starts), length + 1) int64 that begin at `starts`."""
        found = torch.empty((len(starts), length + 1), dtype=torch.int64)
        for row, start in enumerate(starts.tolist()):
            found[row] = self[start : start + length + 1]
        return found


Stream = torch.Tensor | TokenStream
