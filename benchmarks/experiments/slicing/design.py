"""What is compared: texts, draws, kept shares, arms, and the order of the cells.

Every prefix of `cells()` is a study of its own: draw by draw, texts in turn, the arms of the question first.
"""

from dataclasses import dataclass, replace

MODEL = "smollm2"
TEXTS = ("code", "prose")  # Python's standard library; the King James Bible of benchmarks.experiments.prose
DRAWS = 5
CONTEXT = 128  # tokens a window: short windows are more independent ones for as many tokens
CALIBRATION, HELD_OUT = 32, 16  # windows of a draw; no window is in two draws
SIGNAL_TOKENS, SIGNAL_WINDOWS = 256, 16
SENSITIVITY_WINDOWS = 8  # calibration windows on which sensitivities are measured, other ones for each draw
MAIN, OUTER = (0.8, 0.6), (0.5, 0.7, 0.9, 0.4)
HALF = 0.5  # of its neurons that a layer alone keeps while its sensitivity is measured
RIDGE = 1e-2  # of the mean diagonal, as in the figures by hand

SIGNALS = tuple(f"{s}/{g}" for g in ("spherical", "hyperbolic", "raw") for s in ("topology", "shift", "gw"))
CONTROLS = ("sorted", "permuted", "reversed")
CONTROLLED = ("topology/spherical", "shift/spherical")


@dataclass(frozen=True)
class Arm:
    """How a model is made smaller.

    name        in tables
    widths      the rule for widths (geowidth.slicing.widths); None: blocks go instead
    neurons     the rule by which neurons stay (geowidth.slicing.scores)
    correction  "least squares"; "bias", FLAP's compensation; "none"; "own inputs", least squares of each layer on what
                the sliced layers below give it, as `geowidth slice` does: a pass a model in place of one a draw
    once        whether widths are those of draw 0 in all draws of a text: they come from losses, which are dear
    blocks      share of the parameters to remove that goes as whole blocks, the rest as neurons
    half        whether the losses are taken with products in bfloat16
    """

    name: str
    widths: str = "uniform"
    neurons: str = "activation"
    correction: str = "least squares"
    once: bool = False
    blocks: float = 0.0
    half: bool = True


def geometry(signal):
    """The rule of widths by the square root of a signal "statistic/geometry", smoothed over depth."""
    statistic, place = signal.split("/")
    return f"geometry:statistic={statistic},geometry={place}"


def control(name, signal):
    """The arm of a signal's widths in another order."""
    return Arm(f"{name} {signal}", f"{name}-{geometry(signal)}")


UNIFORM = Arm("uniform")
FIRST = (
    UNIFORM,
    Arm("cosine", "cosine"),
    *(Arm(signal, geometry(signal)) for signal in CONTROLLED),
    *(control(CONTROLS[0], signal) for signal in CONTROLLED),
    Arm("sensitivity", "sensitivity", once=True),
)
SECOND = (
    *(control(name, signal) for signal in CONTROLLED for name in CONTROLS[1:]),
    Arm("threshold", "threshold"),
    Arm("FLAP", "threshold:normalised=standard", "fluctuation", "bias"),
    Arm("Minitron", "uniform", "minitron", "none"),
    Arm("uniform, not corrected", correction="none"),
    Arm("linear", "linear"),
    Arm("depth", blocks=1.0),
    Arm("depth and width", blocks=0.5),
    Arm("curves", "curves", once=True),
    Arm("combined", "combined", once=True),
    *(Arm(signal, geometry(signal)) for signal in SIGNALS if signal not in CONTROLLED),
)
ARMS = {arm.name: arm for arm in (*FIRST, *SECOND)}
CHECKED = {"own inputs": {"correction": "own inputs"}, "float32": {"half": False}}
CHECKS = {  # what the study's two savings change
    f"{arm.name}, {name}": replace(arm, name=f"{arm.name}, {name}", **changes)
    for name, changes in CHECKED.items()
    for arm in (UNIFORM, ARMS[CONTROLLED[0]], ARMS["cosine"])
}
FEWER = ("uniform", "cosine", "topology/spherical", "shift/spherical", "sorted topology/spherical", "sensitivity")
# (arms, kept shares, draws), one after the other
PASSES = (
    (tuple(arm.name for arm in FIRST), MAIN, (0, 1, 2, 3, 4)),
    (tuple(arm.name for arm in SECOND), MAIN, (0, 1)),
    (tuple(CHECKS), MAIN[1:], (0,)),
    (FEWER, OUTER, (0,)),
    (tuple(arm.name for arm in SECOND), MAIN, (2, 3, 4)),
    (FEWER, OUTER, (1, 2, 3, 4)),
)


@dataclass(frozen=True)
class Cell:
    """One model to make and judge."""

    text: str
    draw: int
    kept: float
    arm: str

    @property
    def key(self):
        return self.text, self.draw, self.kept, self.arm


def cells(passes=PASSES, texts=TEXTS):
    """All Cells in the order in which they are run."""
    return [
        Cell(text, draw, kept, arm)
        for arms, shares, draws in passes
        for draw in draws
        for text in texts
        for kept in shares
        for arm in arms
    ]
