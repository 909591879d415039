"""Draws a benchmark's CSV: one panel a mode, one line a provider, the median over x with its 20-80 % band."""

import math


def draw(rows, path, metric):
    """Write an image of `rows` with the given metric to `path` (.png or .svg); returns whether there was anything."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in rows if r.metric == metric and not math.isnan(r.p50)]
    modes = list(dict.fromkeys(r.mode for r in rows))
    if not modes:
        return False
    figure, axes = pyplot.subplots(1, len(modes), figsize=(4.6 * len(modes), 3.8), squeeze=False, layout="constrained")
    for axis, mode in zip(axes[0], modes, strict=True):
        _panel(axis, [r for r in rows if r.mode == mode])
        axis.set_title(mode)
        axis.set_ylabel({"wall": "seconds (wall)", "cpu": "seconds (CPU)"}.get(metric, metric))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _panel(axis, rows):
    for provider in dict.fromkeys(r.provider for r in rows):
        line = sorted((r for r in rows if r.provider == provider), key=lambda r: r.x_value)
        x = [r.x_value for r in line]
        (drawn,) = axis.plot(x, [r.p50 for r in line], marker="o", markersize=3, label=provider)
        axis.fill_between(x, [r.p20 for r in line], [r.p80 for r in line], alpha=0.2, color=drawn.get_color())
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel(rows[0].x_name)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=7)
