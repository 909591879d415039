"""From clouds to a work profile: layers one by one or side by side, resumable, with bands when asked for."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from geowidth import records
from geowidth.errors import UserError, choose
from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS
from geowidth.measure.capture import capture
from geowidth.measure.dimension import intrinsic_dimension
from geowidth.measure.kept import KeptLayers, fingerprint
from geowidth.measure.profile import WorkProfile
from geowidth.measure.sequences import draw_tokens, windows_of
from geowidth.measure.statistics import DEFAULT_STATISTICS, STATISTICS, LayerCloud, large_norm_tokens
from geowidth.progress import Progress

# Above this many tokens one layer's matrices fill the caches and the kernels' own threads do better than two layers.
SIDE_BY_SIDE_TOKENS = 1024


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured and how; written into every result.

    geometries, statistics   names, in the order of the tables
    radius                   of the hyperbolic geometry's Poincare ball
    neighbours               k of the Levina-Bickel estimators
    bootstrap                subsamples of half the tokens for the bands; 0 for none
    seed                     of the subsamples
    """

    geometries: tuple[str, ...] = tuple(GEOMETRIES)
    statistics: tuple[str, ...] = DEFAULT_STATISTICS
    radius: float = HYPERBOLIC_RADIUS
    neighbours: int = 20
    bootstrap: int = 0
    seed: int = 0

    def __post_init__(self):
        for what, names, known in (
            ("geometry", self.geometries, GEOMETRIES),
            ("statistic", self.statistics, STATISTICS),
        ):
            for name in names:
                choose(what, name, list(known))
            if not names or len(set(names)) != len(names):
                raise UserError(f"{what} names are {' '.join(names) or 'none'}; one or more are needed, each once")
        if not 0 < self.radius < 1:
            raise UserError(f"the radius of the hyperbolic geometry is {self.radius}; it must lie between 0 and 1")
        for name, least in (("neighbours", 2), ("bootstrap", 0), ("seed", 0)):
            if not least <= getattr(self, name) < 2**31:
                raise UserError(f"{name} is {getattr(self, name)}; allowed: whole numbers from {least} to {2**31 - 1}")

    def to_json(self):
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def measure(
    model,
    *,
    corpus="stdlib",
    tokens=512,
    seed=0,
    context=None,
    windows=None,
    out=None,
    settings=None,
    save_clouds=None,
    download=False,
    cache=None,
):
    """Measure a model on held-out text: the test split, which no training or validation loss of ours has seen.

    model          a folder that `geowidth train` wrote, a Hugging Face folder or name, a .gguf file, or smollm2
    corpus         "stdlib", a file, a folder or a JSONL file
    context        tokens a window (default: the whole context of a model of bytes, 256 where text is tokenised)
    windows        draw the tokens from so many windows (default: all, or an eighth as many as tokens where text is
                   tokenised, at least 16: the model then runs over far less text)
    out            path of work.json; measured layers are kept beside it, and a second call goes on from there
    download       whether a Hugging Face name may be fetched
    cache          folder for converted models
    returns        WorkProfile
    """
    from geowidth.models.exchange.opening import open_model
    from geowidth.train.corpus import load_corpus

    if out is not None:
        records.check_writable(out)
    opened = open_model(model, download=download, cache=cache)
    if context is not None and context > opened.longest:
        raise UserError(f"context is {context}; this model takes at most {opened.longest} tokens")
    text = load_corpus(corpus)
    if windows is None and opened.tokenizer is not None:
        windows = max(16, tokens // 8)
    clouds = capture(
        opened.model,
        opened.sequences(text.test, context),
        tokens,
        seed=seed,
        skip=max(1, len(opened.prefix)),
        tail=len(opened.suffix),
        windows=windows,
        settings={
            "source": opened.source,
            "model": _digest_of_model(opened.model),
            "corpus": text.digest,
            "corpus_source": text.description,
            "split": "test",
        },
    )
    if save_clouds is not None:
        clouds.write(save_clouds)
    return measure_clouds(clouds, settings or MeasureSettings(), out=out)


def check_enough_text(text, context, tokens):
    """Refuse a Corpus whose test split has not `tokens` distinct contexts for a model of bytes, as `measure` would."""
    most = text.test.numel() // context * (context - 1)
    if tokens > most:
        raise UserError(
            f"{tokens} tokens asked for, but the corpus's test split has at most {most} with a context of "
            f"{context}; ask for fewer or give more text"
        )
    draw_tokens(windows_of(text.test, context), tokens, seed=0)


def measure_clouds(clouds, settings=None, *, out=None, threads=None):
    """Measure clouds that `capture` or Clouds.read gave.

    clouds     Clouds
    settings   MeasureSettings
    out        path of work.json, or None to write nothing
    threads    of the CPU (default: torch's)
    returns    WorkProfile
    """
    settings = settings or MeasureSettings()
    threads = threads or torch.get_num_threads()
    if clouds.tokens < 4:
        raise UserError(f"{clouds.tokens} tokens make no cloud; at least 4 are needed, 256 or more are sensible")
    kept = KeptLayers(out, fingerprint(clouds, settings))
    side_by_side = min(threads, clouds.layers) if clouds.tokens <= SIDE_BY_SIDE_TOKENS else 1
    todo = [layer for layer in range(clouds.layers) if layer not in kept.layers]

    def work(layer):
        return layer, measure_layer(clouds, layer, settings, threads=max(1, threads // side_by_side))

    with Progress(clouds.layers, "measure", unit="layer") as progress:
        progress.resume_at(clouds.layers - len(todo))
        with _torch_threads(max(1, threads // side_by_side)), ThreadPoolExecutor(side_by_side) as pool:
            futures = [pool.submit(work, layer) for layer in todo]
            try:
                for future in futures:
                    layer, result = future.result()
                    kept.add(layer, result)
                    progress.step(text=f"layer {layer}")
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    profile = _assemble(clouds, settings, [kept.layers[layer] for layer in range(clouds.layers)])
    if out is not None:
        profile.write(out)
        kept.remove()
    return profile


def measure_layer(clouds, layer, settings, threads=1):
    """All statistics of one layer: {"work": {geometry: {statistic: value}}, "dimension": {...}, "details": {...}}."""
    before, after = clouds.before[layer], clouds.after[layer]
    cloud = LayerCloud(before, after, settings.geometries, settings.radius, threads)
    work, details = {}, {}
    try:
        for geometry in settings.geometries:
            found = {name: STATISTICS[name](cloud, geometry) for name in settings.statistics}
            work[geometry] = {name: value for name, (value, _) in found.items()}
            details[geometry] = {name: more for name, (_, more) in found.items() if more}
        dimension, facts = _dimension(cloud, settings)
    except UserError as error:
        raise UserError(f"layer {layer}: {error}") from error
    details["dimension"] = facts
    details["large_norm_tokens"] = {"before": large_norm_tokens(before), "after": large_norm_tokens(after)}
    details["raw_without_large_norms"] = _without_large_norms(cloud, details["large_norm_tokens"], work, settings)
    if settings.bootstrap:
        details["bands"] = _bands(clouds, layer, settings, threads)
    return {"work": work, "dimension": dimension, "details": details}


def _without_large_norms(cloud, flagged, work, settings):
    """The raw statistics of a layer without the tokens of very large norm; None where raw was not asked for."""
    if "raw" not in settings.geometries:
        return None
    large = sorted({*flagged["before"], *flagged["after"]})
    if not large:
        return dict(work["raw"])
    keep = torch.ones(len(cloud.before), dtype=torch.bool)
    keep[large] = False
    rest = LayerCloud(cloud.before[keep], cloud.after[keep], ("raw",), cloud.radius, cloud.threads)
    return {name: STATISTICS[name](rest, "raw")[0] for name in settings.statistics}


def _dimension(cloud, settings):
    geometry = settings.geometries[0]
    result = intrinsic_dimension(cloud.distances[geometry][0], k=min(settings.neighbours, len(cloud.before) - 1))
    record = result.to_json()
    return record.pop("values"), {"geometry": geometry, **record}


def _bands(clouds, layer, settings, threads):
    """5 % and 95 % quantiles of every signal over subsamples of half the tokens, drawn without replacement.

    Resampling with replacement would plant duplicate points, which topology and dimension cannot take; the size of the
    subsample stands beside the band because some statistics change with it.
    """
    size = clouds.tokens // 2
    quiet = MeasureSettings(**{**settings.to_json(), "bootstrap": 0})
    draws = []
    for index in range(settings.bootstrap):
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
        rows = torch.randperm(clouds.tokens, generator=generator)[:size]
        sides = (clouds.before[layer][rows], clouds.after[layer][rows])
        part = LayerCloud(*sides, quiet.geometries, quiet.radius, threads)
        draws.append({g: {s: STATISTICS[s](part, g)[0] for s in quiet.statistics} for g in quiet.geometries})
    bands = {"subsample": size, "subsamples": settings.bootstrap, "quantiles": [0.05, 0.95]}
    for g in quiet.geometries:
        bands[g] = {s: np.quantile([d[g][s] for d in draws], [0.05, 0.95]).tolist() for s in quiet.statistics}
    return bands


def _assemble(clouds, settings, layers):
    work = {g: {s: [r["work"][g][s] for r in layers] for s in settings.statistics} for g in settings.geometries}
    dimension = {name: [r["dimension"][name] for r in layers] for name in layers[0]["dimension"]}
    return WorkProfile(
        work=work,
        dimension=dimension,
        widths=tuple(clouds.widths),
        model_dimension=clouds.before.shape[-1],
        projections=clouds.projections,
        details=[r["details"] for r in layers],
        settings={**settings.to_json(), "clouds": clouds.settings},
        raw_without_large_norms={
            name: [r["details"]["raw_without_large_norms"][name] for r in layers]
            for name in (settings.statistics if "raw" in settings.geometries else ())
        },
    )


class _torch_threads:
    """Sets torch's thread count inside a `with`, so that side-by-side layers do not fight over the cores."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.old = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_):
        torch.set_num_threads(self.old)


def _digest_of_model(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
