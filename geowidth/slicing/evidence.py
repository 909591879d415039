"""Evidence: what rules for widths may look at, each part made once and shared by all rules that read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth.errors import UserError
from geowidth.slicing.targets import Sizes, sizes_of

if TYPE_CHECKING:
    import numpy as np

    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.cascade.held_out import HeldOut


@dataclass
class Evidence:
    """What a rule may look at. One object serves many rules and targets: what one of them had made is there for all.

    ffns         the FFNs of the whole model, one a layer (geowidth.slicing.ffns); only their sizes for rules that read
                 nothing else
    text         calibration windows; never those that models are judged by
    neurons      the rule by which neurons are scored (geowidth.slicing.scores)
    scores       scores of the neurons of every layer, float64 (width,) each; None: computed from `text` when asked for
    profiles     work profiles of several token draws; empty: measured on `text` when asked for
    kept_in      folder in which long measurements are kept, so that they go on after a stop; None: only in memory
    seed         of what is drawn
    batch        windows in a forward pass
    skip, tail   tokens at the beginning and end of a window that are no text of it
    """

    ffns: Any
    text: HeldOut | None = None
    neurons: str = "activation"
    scores: list[np.ndarray] | None = None
    profiles: list[WorkProfile] = field(default_factory=list)
    kept_in: Path | None = None
    seed: int = 0
    batch: int = 8
    skip: int = 1
    tail: int = 0

    @cached_property
    def sizes(self) -> Sizes:
        """The Sizes of the model."""
        return self.ffns if isinstance(self.ffns, Sizes) else sizes_of(self.ffns)

    def windows(self) -> HeldOut:
        """The calibration windows; UserError where none came."""
        if self.text is None:
            raise UserError("this rule for widths looks at calibration text, and none came; give windows of text")
        return self.text
