"""A picture of a calibration: loss against width for every layer, points of every seed and the fitted curve."""

import numpy as np

from geowidth import records
from geowidth.diagnose.calibration import fitted_curve
from geowidth.picture import picture_bytes
from geowidth.train.evidence import LOSS_UNIT


def plot_calibration(calibration, path):
    """Draw one panel a layer into `path`, an .svg file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layers = len(calibration.widths)
    columns = min(4, layers)
    rows = -(-layers // columns)
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(2.6 * columns, 2.2 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for layer, axes in enumerate(grid.flat):
        if layer >= layers:
            axes.set_visible(False)
            continue
        points = [row for row in calibration.curves if row["layer"] == layer]
        widths = np.array([row["width"] for row in points])
        base = calibration.widths[layer]
        span = np.geomspace(min(widths.min(), base), max(widths.max(), base), 100)
        axes.plot(span, fitted_curve(calibration, layer, span), color="#4477aa", linewidth=1.5)
        axes.scatter(widths, [row["difference"] for row in points], s=12, color="#222222", zorder=3)
        axes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
        fit = calibration.layers[layer]
        axes.set(xscale="log", title=f"layer {layer}: e {fit['difficulty']:.3g}, a {fit['exponent']:.2g}")
        axes.title.set_fontsize(8)
        axes.tick_params(labelsize=7)
    figure.supxlabel("FFN width of that layer", fontsize=9)
    figure.supylabel(f"loss minus base, {calibration.settings.get('unit', LOSS_UNIT)}", fontsize=9)
    data = picture_bytes(figure, "svg")
    pyplot.close(figure)
    records.write_bytes(path, data)
