"""Pictures: losses over blocks removed; importance beside gradient shares."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from geowidth import records
from geowidth.cascade.correlation import Correlation, why_no_interval
from geowidth.files import PathLike
from geowidth.picture import picture_bytes

COLOURS = ("#4477aa", "#cc6677", "#228833", "#aa7700", "#882288", "#222222")
MARKERS = "osD^vP"


def plot_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: PathLike) -> None:
    """Draw {rule: points}, as `geowidth prune --curve` writes them, into `path`, an .svg file.

    Bars are standard errors over windows; a band reaches from the smallest to the largest loss of a rule's seeds.
    """
    figure, axes = _figure(1, (5.2, 3.4))
    for i, (rule, points) in enumerate(curves.items()):
        losses = [point["loss"]["mean"] for point in points]
        errors = [point["difference"]["standard_error"] for point in points]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        seeds = [[one["loss"]["mean"] for one in point.get("by_seed", ())] for point in points]
        label = f"{rule}, mean and range of {len(seeds[0])} seeds" if seeds[0] else rule
        axes[0].errorbar(range(len(points)), losses, errors, label=label, linewidth=1.2, capsize=2, **look)
        if seeds[0]:
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axes[0].fill_between(range(len(points)), [min(s) for s in seeds], [max(s) for s in seeds], **band)
    axes[0].set(xlabel="blocks removed", ylabel="loss on held-out text, nats per token")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend(fontsize=8, frameon=False)
    _write(figure, path)


def plot_importance(
    importance: np.ndarray, errors: np.ndarray, shares: np.ndarray, found: Mapping[str, Correlation], path: PathLike
) -> None:
    """Draw importance and accumulated gradient shares (blocks,) over depth, and against each other, into an .svg file.

    errors: standard errors of the importance. found: what `correlate(shares, importance)` gave.
    """
    figure, (depth, pairs) = _figure(2, (8.0, 3.4))
    blocks = np.arange(len(importance))
    depth.errorbar(blocks, importance, errors, color=COLOURS[0], marker="o", markersize=4, capsize=2, linewidth=1.2)
    depth.set(xlabel="block", ylabel="importance: loss without it, minus the whole model's")
    depth.yaxis.label.set_color(COLOURS[0])
    other = depth.twinx()
    other.plot(blocks, shares, color=COLOURS[1], marker="s", markersize=4, linewidth=1.2)
    other.set_ylabel("accumulated gradient share", color=COLOURS[1])
    other.set_ylim(bottom=0)
    pairs.errorbar(shares, importance, errors, linestyle="none", color="#222222", marker="o", markersize=4, capsize=2)
    for block in blocks:
        pairs.annotate(str(block), (shares[block], importance[block]), (3, 3), textcoords="offset points", fontsize=7)
    pairs.set(xlabel="accumulated gradient share", ylabel="importance")
    pairs.set_title("\n".join(sentence(name, one) for name, one in found.items()), fontsize=8)
    _write(figure, path)


def sentence(name: str, found: Correlation) -> str:
    """A correlation in words, such as "Spearman 0.81 (95 % interval 0.30 to 0.96)"."""
    if found.value is None:
        return f"{name.capitalize()}: none, one side has no spread"
    interval = why_no_interval(found.value)
    if found.interval is not None:
        interval = f"{100 * found.confidence:g} % interval {found.interval[0]:.2f} to {found.interval[1]:.2f}"
    return f"{name.capitalize()} {found.value:.2f} ({interval})"


def _figure(columns, size):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, grid[0]


def _write(figure, path):
    from matplotlib import pyplot

    data = picture_bytes(figure, "svg")
    pyplot.close(figure)
    records.write_bytes(path, data)
