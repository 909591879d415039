"""Training on equal terms: corpus, loop, resumable runs, many runs at once, and paired evidence."""

from geowidth import lazy

_HOMES = {
    "Corpus": "geowidth.text.corpus",
    "Comparison": "geowidth.train.evidence",
    "TrainJob": "geowidth.train.parallel",
    "compare_arms": "geowidth.train.evidence",
    "compare_folders": "geowidth.train.compare",
    "load_corpus": "geowidth.text.corpus",
    "train": "geowidth.train.loop",
    "train_many": "geowidth.train.parallel",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
