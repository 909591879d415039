"""CascadeFormer's models on a GPU: logits with keys and values kept, first token, a token alone and as a graph."""

import torch

from benchmarks.cascade import SAME, SMALL, Caches, Mode, built, configs
from benchmarks.device_stages.session import median, quantiles, race
from geowidth.models.generation import cache_of, cached_logits
from geowidth.models.presets import M128


def _models(session):
    config, quantum = session.pick((M128.model, 64), (SMALL, 8))
    dtype = session.pick(torch.bfloat16, torch.float32)  # Triton's interpreter has no bfloat16 products
    return built(configs(config, 0.8, quantum), dtype, 0, session.device)


@torch.inference_mode()
def correctness(session):
    """Every model reads a text in pieces: the logits of the whole text."""
    length = session.pick(131, 13)
    for name, model in _models(session).items():
        tokens = torch.arange(2 * length, device=session.device).view(2, -1) % model.config.vocabulary
        cache, whole = cache_of(model, 2, length), model(tokens)
        parts = tokens.split([length // 2, *[1] * (length - length // 2)], 1)
        found = torch.cat([cached_logits(model, part, cache, every=True) for part in parts], 1)
        error = float((found - whole).abs().max() / whole.abs().max())
        session.judge("cascade", name, "logits with a cache", length, error, SAME[whole.dtype])


@torch.inference_mode()
def timings(session):
    """Seconds of every mode and model; a token also as a CUDA graph, which leaves out the time of launching."""
    models = _models(session)
    caches = Caches(session.pick(1024, 64))
    texts = session.pick((1, 8, 64), (1,))
    modes = [Mode("first token", b, session.pick(256, 8)) for b in texts]
    modes += [Mode("a token", b, read) for b in texts for read in session.pick((256, 960), (8,))]
    for mode in modes:
        calls = {name: mode.function(model, caches) for name, model in models.items()}
        times = race(session, calls, seconds=2.0)
        if mode.what == "a token" and session.device == "cuda":
            times |= race(session, {f"{name}, graph": graph_of(call) for name, call in calls.items()}, seconds=2.0)
        for name, values in times.items():
            session.add("cascade", name, mode.name, "wall", "read", mode.read, **quantiles(values))
        words = ", ".join(f"{name} {1e3 * median(values):.3g}" for name, values in times.items())
        session.note(f"cascade, {mode.name}, read {mode.read}, ms: {words}")


def graph_of(call):
    """A function that replays `call`, recorded as a CUDA graph on its first use."""
    recorded = []

    def replay():
        if not recorded:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            recorded.append(graph)
        recorded[0].replay()

    return replay
