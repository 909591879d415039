"""From clouds to a work profile: layers one by one, side by side, or overlapping with a GPU; resumable."""

import hashlib
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from geowidth import records
from geowidth.artifacts.clouds import Clouds
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.devices import device_named
from geowidth.errors import UserError, choose_several, number, shown, whole
from geowidth.files import PathLike
from geowidth.geometry import BUILT_IN, GEOMETRIES, HYPERBOLIC_RADIUS
from geowidth.measure.kept import KeptLayers, fingerprint
from geowidth.measure.layers import LayerWork, measure_layer, part_bytes
from geowidth.measure.overlap import jobs_ahead, staged
from geowidth.measure.states import capture
from geowidth.measure.statistics import DEFAULT_STATISTICS, STATISTICS, revisions
from geowidth.ops.threads import thread_count, torch_threads
from geowidth.ops.transfers import Transfer
from geowidth.progress import Progress
from geowidth.ranks import Ranks
from geowidth.text.corpus import Corpus
from geowidth.text.sequences import draw_tokens, windows_of

# Above this many tokens one layer's matrices fill the caches and the kernels' own threads do better than two layers.
SIDE_BY_SIDE_TOKENS = 1024


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured and how; written into every result.

    geometries, statistics   names, in the order of the tables; a statistic is measured in those geometries that it is
                             defined for
    radius                   of the hyperbolic geometry's Poincare ball
    neighbours               k of the Levina-Bickel estimators, at least 3; fewer where there are fewer distinct states
    bootstrap                subsamples of half the tokens for the bands; 0 for none
    seed                     of the drawing of tokens (by `measure`) and of the subsamples
    device                   where distances and Gromov-Wasserstein are computed: "cpu", "cuda" or "cuda:N"; None: where
                             the clouds lie. Topology and dimension are the CPU's
    """

    geometries: tuple[str, ...] = BUILT_IN
    statistics: tuple[str, ...] = DEFAULT_STATISTICS
    radius: float = HYPERBOLIC_RADIUS
    neighbours: int = 20
    bootstrap: int = 0
    seed: int = 0
    device: str | None = None

    def __post_init__(self):
        if self.device is not None:
            device_named(self.device)
        checked = {
            "geometries": choose_several("geometry", self.geometries, GEOMETRIES),
            "statistics": choose_several("statistic", self.statistics, STATISTICS),
            "radius": number(
                "the radius of the hyperbolic geometry", self.radius, "numbers between 0 and 1", lambda r: 0 < r < 1
            ),
        }
        for name, least in (("neighbours", 3), ("bootstrap", 0), ("seed", 0)):
            checked[name] = whole(name, getattr(self, name), least, 2**31 - 1)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in self.statistics:
            if not STATISTICS[name].among(self.geometries):
                allowed = ", ".join(STATISTICS[name].geometries) or "none"
                raise UserError(
                    f"statistic {name!r} is defined in none of {', '.join(self.geometries)}; it is in: {allowed}"
                )

    def statistics_in(self, geometry: str) -> list[str]:
        """Names of the statistics asked for that are defined in a geometry; none where that is not asked for."""
        asked = [geometry] if geometry in self.geometries else []
        return [name for name in self.statistics if STATISTICS[name].among(asked)]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def measure(
    model: PathLike,
    *,
    corpus: PathLike = "stdlib",
    tokens: int = 512,
    seed: int | None = None,
    context: int | None = None,
    windows: int | None = None,
    out: PathLike | None = None,
    settings: MeasureSettings | None = None,
    save_clouds: PathLike | None = None,
    download: bool = False,
    cache: PathLike | None = None,
    ranks: Ranks | None = None,
) -> WorkProfile:
    """Measure a model on held-out text: the test split, which no training or validation loss of ours has seen.

    model          a folder that `geowidth train` wrote, a Hugging Face folder or name, a .gguf file, or smollm2
    corpus         whatever geowidth.text.corpus.load_corpus opens; tokens only with the tokenizer of the model
    seed           of the drawing of tokens and of the bands' subsamples (default: that of `settings`)
    context        tokens a window (default: the whole context of a model of bytes, 256 where text is tokenised)
    windows        draw the tokens from so many windows (default: all, or an eighth as many as tokens where text is
                   tokenised, at least 16: the model then runs over far less text)
    out            path of work.json; measured layers are kept beside it, and a second call goes on from there
    download       whether a Hugging Face name may be fetched
    cache          folder for converted models
    settings       MeasureSettings; on its device (default: cpu) the model runs, and its clouds are measured
    ranks          the processes that share the work (geowidth.ranks.joined; default: this one alone); their number
                   changes no bit, and the first writes
    returns        WorkProfile
    """
    from geowidth.measure.opening import open_model
    from geowidth.text.corpus import load_corpus

    ranks = ranks or Ranks()
    if out is not None and ranks.is_first:
        records.check_writable(out)
    settings = settings or MeasureSettings()
    settings = replace(settings, device=settings.device or "cpu", seed=settings.seed if seed is None else seed)
    tokens = whole("tokens", tokens, 4)
    context = None if context is None else whole("context", context, 2)
    windows = None if windows is None else whole("windows", windows, 1)
    opened = ranks.in_turn(lambda: open_model(model, download=download, cache=cache))
    if context is not None and opened.longest is not None and context > opened.longest:
        raise UserError(f"context is {context}; this model takes at most {opened.longest} tokens")
    text = ranks.in_turn(lambda: load_corpus(corpus))
    if windows is None and opened.tokenizer is not None:
        windows = fewer_windows(tokens)
    clouds = capture(
        opened.model.to(settings.device),
        opened.held_out(text, context),
        tokens,
        seed=settings.seed,
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
        ranks=ranks,
    )
    del opened  # the model's memory is free for the matrices
    if save_clouds is not None and ranks.is_first:
        clouds.write(save_clouds)
    return measure_clouds(clouds, settings, out=out, ranks=ranks)


def check_enough_text(text: Corpus, context: int, tokens: int) -> None:
    """Refuse a Corpus whose test split has not `tokens` distinct contexts, as `measure` would.

    context: of the model, which was trained on this corpus.
    """
    from geowidth.measure.opening import TOKENISED_CONTEXT, in_memory

    windows = None
    if text.tokenizer_files:
        context, windows = min(context, TOKENISED_CONTEXT), fewer_windows(tokens)
    most = text.test.numel() // context * (context - 1)
    if tokens > most:
        raise UserError(
            f"{tokens} tokens asked for, but the corpus's test split has at most {most} with a context of "
            f"{context}; ask for fewer or give more text"
        )
    draw_tokens(windows_of(in_memory(text.test), context), tokens, seed=0, windows=windows)


def fewer_windows(tokens: int) -> int:
    """From how many windows tokens are drawn where text is tokenised: the model then runs over far less of it."""
    return max(16, tokens // 8)


def measure_clouds(
    clouds: Clouds,
    settings: MeasureSettings | None = None,
    *,
    out: PathLike | None = None,
    threads: int | None = None,
    ranks: Ranks | None = None,
) -> WorkProfile:
    """Measure clouds that `capture` or Clouds.read gave.

    clouds     Clouds, on the CPU or a GPU
    settings   MeasureSettings
    out        path of work.json, or None to write nothing
    threads    of the CPU (default: torch's)
    ranks      the processes that share the layers (default: this one alone); each gets the whole profile
    returns    WorkProfile

    On a GPU (the settings' device, or where the clouds lie) layers follow one another there, while the persistence of
    earlier ones runs in as many threads of the CPU. n tokens then take about 12 float64 matrices (n, n) of device
    memory, 96 n^2 bytes, and at most 4 GiB of pinned host memory for matrices in flight, or those of two layers where
    that is more (four a layer for the nine signals: 32 n^2 bytes). Numbers agree with the CPU's to about 1e-9.
    """
    settings = MeasureSettings() if settings is None else settings
    _refuse_others(clouds, settings)
    device = torch.device(settings.device or clouds.before.device)
    settings = replace(settings, device=str(device))
    threads = thread_count(threads)
    if not clouds.layers:
        raise UserError("the clouds hold no layer; at least 1 is needed")
    if clouds.tokens < 4:
        raise UserError(f"{clouds.tokens} tokens make no cloud; at least 4 are needed, 256 or more are sensible")
    ranks = ranks or Ranks()
    kept = KeptLayers(out if ranks.is_first else None, fingerprint(clouds, settings))
    kept.layers = ranks.of_first(lambda: kept.layers)
    todo = [layer for layer in range(clouds.layers) if layer not in kept.layers]
    measured = _side_by_side if device.type == "cpu" else _overlapping
    with Progress(clouds.layers, "measure", unit="layer") as progress:
        progress.resume_at(clouds.layers - len(todo))
        with closing(measured(clouds, ranks.dealt(todo), settings, threads)) as results:
            for layer, result in _of_all(results, ranks, len(todo)):
                kept.add(layer, result)
                progress.step(text=f"layer {layer}")
    profile = _assemble(clouds, settings, [kept.layers[layer] for layer in range(clouds.layers)])
    if out is not None and ranks.is_first:
        profile.write(out)
        kept.remove()
    return profile


def _of_all(results, ranks, layers):
    """Yield the (layer, result) of all processes, round by round, in every process."""
    for _ in range(0, layers, ranks.size):
        yield from filter(None, ranks.gather(ranks.together(lambda: next(results, None))))


def _refuse_others(clouds, settings):
    for name, value, kind in (("clouds", clouds, Clouds), ("settings", settings, MeasureSettings)):
        if not isinstance(value, kind):
            raise UserError(f"{name} is {shown(value)}; needed: {kind.__name__}")


def _side_by_side(clouds, todo, settings, threads):
    """Yield (layer, result) in order: whole layers in threads of the CPU."""
    workers = min(threads, clouds.layers) if clouds.tokens <= SIDE_BY_SIDE_TOKENS else 1
    each = max(1, threads // workers)

    def work(layer):
        return layer, measure_layer(clouds, layer, settings, threads=each)

    with torch_threads(each):
        yield from staged(todo, lambda layer: layer, work, workers, ahead=max(1, len(todo)))


def _overlapping(clouds, todo, settings, threads, transfer=Transfer):
    """Yield (layer, result) in order: first steps on the device one by one, second ones in threads of the CPU."""
    finished = []

    def parts():
        for layer in todo:
            work = LayerWork(clouds, layer, settings, threads=1, transfer=transfer)
            yield from ((work, part) for part in work.parts)

    def begin(job):
        work, part = job
        return work, work.begin(part)

    def finish(job):
        work, begun = job
        return work, work.finish(begun)

    with torch_threads(1):
        ahead = jobs_ahead(part_bytes(clouds.tokens, settings, clouds.before.shape[-1]), threads)
        with closing(staged(parts(), begin, finish, threads, ahead)) as results:
            for work, found in results:
                finished.append(found)
                if len(finished) == len(work.parts):
                    yield work.layer, work.result(finished)
                    finished = []


def _assemble(clouds, settings, layers):
    work = {g: {s: [r["work"][g][s] for r in layers] for s in settings.statistics_in(g)} for g in settings.geometries}
    dimension = {name: [r["dimension"][name] for r in layers] for name in layers[0]["dimension"]}
    environment = records.environment()
    if settings.device.startswith("cuda"):
        environment["gpu"] = torch.cuda.get_device_name(settings.device)
    return WorkProfile(
        work=work,
        dimension=dimension,
        widths=tuple(clouds.widths),
        model_dimension=clouds.before.shape[-1],
        projections=clouds.projections,
        experts=tuple(clouds.experts),
        details=[r["details"] for r in layers],
        settings={**settings.to_json(), **_origin(clouds, settings)},
        environment=environment,
        raw_without_large_norms={
            name: [r["details"]["raw_without_large_norms"][name] for r in layers]
            for name in settings.statistics_in("raw")
        },
    )


def _origin(clouds, settings):
    """What else the numbers hang on: the clouds, their precision, and the revision of every statistic."""
    return {"clouds": clouds.settings, "precision": clouds.precision, "revisions": revisions(settings.statistics)}


def _digest_of_model(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
