"""A picture of a schedule: FFN width of every layer over depth, with the uniform width of the same budget."""

from geowidth import records
from geowidth.picture import picture_bytes


def plot_schedule(schedule, path):
    """Draw `schedule` into `path`, which ends in .svg or .png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    axes.bar(range(schedule.layers), schedule.widths, color="#4477aa", width=0.8)
    if schedule.base_width:
        axes.axhline(schedule.base_width, color="#222222", linewidth=1, linestyle="--")
        axes.annotate("uniform", (1, schedule.base_width), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set(xlabel="layer", ylabel="FFN width", title=schedule.name)
    axes.spines[["top", "right"]].set_visible(False)
    data = picture_bytes(figure, str(path)[-3:], dpi=150)
    pyplot.close(figure)
    records.write_bytes(path, data)
