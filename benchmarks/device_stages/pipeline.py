"""A whole measurement of clouds on the GPU, its topology on the CPU at the same time, beside the same on the CPU."""

import dataclasses
import time

import torch

from benchmarks.clouds import language_model_cloud
from benchmarks.device_stages.session import wait
from geowidth.measure import Clouds, measure_clouds
from geowidth.measure.pipeline import MeasureSettings


def measurement(session):
    """Nine signals of a few layers: the same numbers on both devices, and the time of each."""
    layers, tokens, d = session.pick((8, 1024, 768), (2, 24, 8))
    pairs = [language_model_cloud(tokens, d, seed, work=0.1 + 0.05 * seed) for seed in range(layers)]
    before, after = (torch.stack([torch.from_numpy(p[i]).float() for p in pairs]) for i in range(2))
    ids = torch.arange(tokens)
    host = Clouds(before, after, ids, ids, (4 * d,) * layers, 2, {"model": "synthetic"})
    card = dataclasses.replace(host, before=before.to(session.device), after=after.to(session.device))
    settings = MeasureSettings()
    first = dataclasses.replace(card, before=card.before[:1], after=card.after[:1], widths=host.widths[:1])
    measure_clouds(first, settings)  # what is compiled or loaded on first use
    runs = {"cpu": (host, settings), "gpu": (card, settings)}
    names = set(settings.statistics)
    runs |= {"gpu, topology alone": (card, _only(settings, names & {"topology"}))}
    runs |= {"gpu, the rest alone": (card, _only(settings, names - {"topology"}))}
    found, seconds = {}, {}
    for name, (clouds, wanted) in runs.items():
        wait(session)
        begin = time.perf_counter()
        found[name] = measure_clouds(clouds, wanted)
        wait(session)
        seconds[name] = time.perf_counter() - begin
        session.add("measure", name, f"{layers} layers, d={d}", "wall", "n", tokens, p50=seconds[name])
    for geometry in settings.geometries:
        for statistic in settings.statistics:
            pair = zip(*(found[name].work[geometry][statistic] for name in ("cpu", "gpu")), strict=True)
            error = max(abs(a - b) / max(abs(a), 1e-12) for a, b in pair)
            session.judge("measure", "gpu", f"{statistic}, {geometry}", tokens, error, 1e-5)
    words = ", ".join(f"{name} {spent:.2f} s" for name, spent in seconds.items())
    session.note(f"measure, {layers} layers, n={tokens}, d={d}: {words}")


def _only(settings, statistics):
    names = tuple(name for name in settings.statistics if name in statistics)
    return dataclasses.replace(settings, statistics=names)
