"""Training on equal terms: corpus, loop, resumable runs, many runs at once, and paired evidence."""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.text.corpus import Corpus as Corpus
    from geowidth.text.corpus import load_corpus as load_corpus
    from geowidth.train.compare import compare_folders as compare_folders
    from geowidth.train.evidence import Comparison as Comparison
    from geowidth.train.evidence import compare_arms as compare_arms
    from geowidth.train.loop import train as train
    from geowidth.train.parallel import TrainJob as TrainJob
    from geowidth.train.parallel import train_many as train_many

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
