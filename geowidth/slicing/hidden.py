"""Statistics of the hidden vector of every FFN over a text, in one pass and in float64."""

from dataclasses import dataclass
from functools import partial

import torch

from geowidth.cascade.held_out import HeldOut
from geowidth.progress import Progress
from geowidth.slicing.ffns import FFNs

AT_ONCE = 8  # windows that are added together


@dataclass
class HiddenStatistics:
    """Of one layer, added up over batches; arrays are float64 (width,) on the CPU.

    count       tokens
    mean        of h
    deviations  sum of squared deviations from the mean
    squared     sum over windows of the squared mean of |h| in a window
    """

    count: int
    mean: torch.Tensor
    deviations: torch.Tensor
    squared: torch.Tensor

    @classmethod
    def empty(cls, width: int) -> "HiddenStatistics":
        return cls(0, *(torch.zeros(width, dtype=torch.float64) for _ in range(3)))

    def add(self, hidden: torch.Tensor) -> None:
        """Add h (windows, length, width). Two parts join by the formula of Chan, Golub and LeVeque (1979)."""
        windows, length, _ = hidden.shape
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        flat, count = hidden.flatten(0, 1), windows * length
        mean = flat.mean(0, dtype=torch.float64)
        spread = torch.linalg.vector_norm(flat - mean.to(flat.dtype), dim=0, dtype=torch.float64).square()
        spread -= count * (mean.to(flat.dtype).double() - mean).square()  # the mean taken off was rounded
        sizes = torch.linalg.vector_norm(hidden, 1, dim=1, dtype=torch.float64) / length
        mean, spread, sizes = mean.cpu(), spread.cpu().clamp(min=0), sizes.cpu()
        total, step = self.count + count, mean - self.mean
        self.deviations += spread + step.square() * (self.count * count / total)
        self.mean += step * (count / total)
        self.squared += sizes.square().sum(0)
        self.count = total

    @property
    def root_mean_square(self) -> torch.Tensor:
        return (self.deviations / self.count + self.mean.square()).sqrt()

    @property
    def variance(self) -> torch.Tensor:
        """The sample variance."""
        return self.deviations / max(1, self.count - 1)

    @property
    def mean_size_norm(self) -> torch.Tensor:
        """Euclidean norm over windows of the mean of |h| over a window's tokens."""
        return self.squared.sqrt()


@torch.no_grad()
def hidden_statistics(ffns: FFNs, text: HeldOut, batch: int) -> list[HiddenStatistics]:
    """The HiddenStatistics of every layer over all tokens of the text, `batch` windows in a pass; with progress."""
    found = [HiddenStatistics.empty(width) for width in ffns.widths]
    with Progress(len(text.tokens), "hidden vectors", unit="window") as progress:
        for tokens, _ in text.batches(batch):
            ffns.run(tokens, partial(_add, found, tokens.shape))
            progress.step(len(tokens))
    return found


def _add(found, shape, layer, hidden):
    for part in hidden.reshape(*shape, hidden.shape[-1]).split(AT_ONCE):  # sums in float64 take copies of it
        found[layer].add(part)
