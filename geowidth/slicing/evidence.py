"""Evidence: what rules for widths may look at, each part made once and shared by all rules that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth.errors import UserError
from geowidth.slicing.targets import Sizes, sizes_of

if TYPE_CHECKING:
    import numpy as np

    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.cascade.held_out import HeldOut
    from geowidth.slicing.draws import Ideal, Settled
    from geowidth.slicing.layer_losses import LayerLosses

LOSSES_FILE = "layer_losses.json"


@dataclass
class Evidence:
    """What a rule may look at. One object serves many rules and targets: what one of them had made is there for all.

    ffns         FFNs of the whole model (geowidth.slicing.ffns_of); Sizes alone for rules that look at nothing else
    text         calibration windows; never those that models are judged by
    neurons      the rule by which neurons are scored (geowidth.slicing.NEURON_RULES)
    scores       scores of the neurons of every layer, float64 (width,) each; None: computed when asked for
    profiles     work profiles of several token draws; None: measured on `text` when asked for
    kept_in      folder in which long measurements are kept, so that they go on after a stop; None: only in memory
    seed         of what is drawn
    batch        windows in a forward pass
    skip, tail   tokens at the beginning and end of a window that are no text of it
    """

    ffns: Any
    text: HeldOut | None = None
    neurons: str = "activation"
    scores: list[np.ndarray] | None = None
    profiles: Sequence[WorkProfile] | None = None
    kept_in: Path | None = None
    seed: int = 0
    batch: int = 8
    skip: int = 1
    tail: int = 0
    looked_at: Settled | None = field(default=None, init=False, repr=False)
    _measured: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def sizes(self) -> Sizes:
        """The Sizes of the model."""
        return self.ffns if isinstance(self.ffns, Sizes) else sizes_of(self.ffns)

    def windows(self) -> HeldOut:
        """The calibration windows; UserError where none came."""
        if self.text is None:
            raise UserError("this rule for widths looks at calibration text, and none came; give windows of text")
        return self.text

    def neuron_scores(self) -> list[np.ndarray]:
        """Scores of the neurons of every layer, float64 (width,) each."""
        if self.scores is None:
            from geowidth.slicing.scores import neuron_scores

            self.scores = neuron_scores(self._model(), self.text, self.neurons, seed=self.seed)
        return self.scores

    def losses(self, shares: Sequence[float], windows: int | None = None) -> LayerLosses:
        """The LayerLosses at these shares (others may be there too), on the first `windows` windows (None: all)."""
        from geowidth.slicing.layer_losses import check_predicts, measured_losses

        text = self.windows()
        check_predicts(self._model())
        if windows is not None and windows < len(text.tokens):
            facts = {**text.settings, "windows": windows}
            text = replace(text, tokens=text.tokens[:windows], targets=text.targets[:windows], settings=facts)
        known = self._measured.get(("losses", len(text.tokens)))
        if known is None or known.missing(shares):
            known = measured_losses(
                self._model(), text, self.neuron_scores(), shares,
                settings={"neurons": self.neurons, "seed": self.seed},
                known=known, path=self._losses_path(len(text.tokens)), batch=self.batch,
            )  # fmt: skip
            self._measured["losses", len(text.tokens)] = known
        return known

    def work(
        self, signals: Sequence[tuple[str, str]], ideal: Ideal, tokens: int, tolerance: float, most: int
    ) -> Settled:
        """The work of these (statistic, geometry), settled; see geowidth.slicing.draws. Profiles that were given are
        taken as they are."""
        from geowidth.slicing.draws import TokenDraws, settled, summarised

        if self.profiles is not None:
            if not self.profiles:
                raise UserError("profiles is empty; give one or more work profiles, or None to measure")
            self.looked_at = summarised(self.profiles, ideal)
            return self.looked_at
        settings = self._settings(signals)
        key = ("draws", settings, tokens)
        if key not in self._measured:
            given = {"batch": self.batch, "skip": self.skip, "tail": self.tail}
            self._measured[key] = TokenDraws(self._model().model, self.windows(), settings, tokens, **given)
        self.looked_at = settled(self._measured[key], ideal, tolerance, most)
        return self.looked_at

    def _settings(self, signals):
        from geowidth.measure.pipeline import MeasureSettings

        statistics, geometries = (tuple(dict.fromkeys(part)) for part in zip(*signals, strict=True))
        return MeasureSettings(geometries=geometries, statistics=statistics, seed=self.seed)

    def each_draw(self) -> list[Evidence]:
        """This Evidence with one of the draws alone that `work` gave last, for each of them."""
        profiles = () if self.looked_at is None else self.looked_at.profiles
        return [replace(self, profiles=[profile]) for profile in profiles]

    def _losses_path(self, windows):
        if self.kept_in is None:
            return None
        every = self.text is None or windows == len(self.text.tokens)
        return Path(self.kept_in) / (LOSSES_FILE if every else f"{Path(LOSSES_FILE).stem}-{windows}.json")

    def _model(self):
        if isinstance(self.ffns, Sizes):
            raise UserError("this rule for widths looks at the model, and only its sizes came; give its FFNs")
        return self.ffns


class Measures(Exception):
    """A rule has come to what takes long."""


class Unmeasured(Evidence):
    """Evidence with which rules refuse what they would refuse, and raise Measures where they begin to measure."""

    def neuron_scores(self) -> list[np.ndarray]:
        raise Measures

    def losses(self, shares: Sequence[float], windows: int | None = None) -> LayerLosses:
        from geowidth.slicing.layer_losses import check_predicts

        check_predicts(self._model())
        raise Measures

    def work(
        self, signals: Sequence[tuple[str, str]], ideal: Ideal, tokens: int, tolerance: float, most: int
    ) -> Settled:
        from geowidth.slicing.draws import check_draws

        self._settings(signals)
        check_draws(tokens, tolerance, most)
        raise Measures
