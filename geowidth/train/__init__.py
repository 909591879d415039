"""Training on equal terms: corpus, loop, resumable runs, many runs at once, and paired evidence."""

from importlib import import_module

_PLACES = {
    "Corpus": "corpus",
    "Comparison": "evidence",
    "TrainJob": "parallel",
    "compare_arms": "evidence",
    "compare_folders": "compare",
    "load_corpus": "corpus",
    "train": "loop",
    "train_many": "parallel",
}
__all__ = sorted(_PLACES)


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
