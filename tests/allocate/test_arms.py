"""Arms of a run, told by short texts: what they mean, and what is refused before anything is trained."""

import pytest

from geowidth.allocate.arms import Arm, parse_arms
from geowidth.allocate.schedules import find_rule, schedule_names
from geowidth.chain import allocate_arm, check_arms, resolve
from geowidth.errors import UserError

SHAPES = [n for n in schedule_names() if not find_rule(n).control and n != "calibrated"]
CONTROLS = [n for n in schedule_names() if find_rule(n).control]


@pytest.mark.parametrize("name", SHAPES)
def test_every_schedule_is_an_arm_and_so_is_every_control_of_it(name):
    arms = [name, *(f"{control}-{name}" for control in CONTROLS)]
    found = resolve("pico", arms=list(dict.fromkeys(["uniform", *arms]))).arms
    assert [(arm.schedule, arm.control) for arm in found if arm.text in arms] == [
        (name, None), *((name, control) for control in CONTROLS),
    ]  # fmt: skip
    assert all(arm.needs_work == (name == "geometry") for arm in found if arm.text != "uniform")


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_alone_is_that_of_geometry(control):
    short, long = Arm.parse(control), Arm.parse(f"{control}-geometry")
    assert short.what == long.what and short.name == control


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("cosine:start=1.6,end=0.4", {"start": 1.6, "end": 0.4}),
        ("fan_in:head_weights=[1,1,1,2]", {"head_weights": [1, 1, 1, 2]}),
        ("geometry:statistic=gw_entropic", {"statistic": "gw_entropic"}),
        ('geometry:mixture={"raw/shift":2,"raw/gw":1}', {"mixture": {"raw/shift": 2, "raw/gw": 1}}),
        ("sorted-crown:rising=true,middle=2", {"rising": True, "middle": 2}),
        ("permuted-crown:seed=3,floor=0.5x", {"seed": 3, "floor": "0.5x"}),
    ],
)
def test_options_stand_behind_a_colon(text, options):
    assert Arm.parse(text).options == options


def test_what_arms_read_is_measured_in_addition():
    arms = ["uniform", "geometry:statistic=gw_entropic", "cosine"]
    assert resolve("pico", arms=arms).signals()["statistics"] == ("shift", "gw", "topology", "gw_entropic")
    run = resolve("pico", arms=["uniform", "geometry"], statistic="gw_entropic")
    assert "gw_entropic" in run.signals()["statistics"]
    mixed = Arm.parse('geometry:mixture={"raw/shift":2,"spherical/gw_entropic":1}')
    assert mixed.signals({"geometry": "raw", "statistic": "gw"}) == {("shift", "raw"), ("gw_entropic", "spherical")}
    assert resolve("pico", arms=["uniform", "cosine"]).signals()["statistics"] == ("shift", "gw", "topology")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sideways", "arm is 'sideways'; allowed: a schedule \\(uniform, cosine"),
        ("reversed-reversed", "allowed: a schedule"),
        ("reversed-", "allowed: a schedule"),
        ("-cosine", "allowed: a schedule"),
        ("cosine-reversed", "allowed: a schedule"),
        ("", "arm is ''"),
        (3, "arm is 3"),
        ("cosine:", "has ''; allowed: NAME=VALUE"),
        ("cosine:start", "has 'start'; allowed: NAME=VALUE"),
        ("cosine:start=1,start=2", "gives start twice"),
        ("cosine:strat=1", "no option 'strat'; allowed: start, end"),
        ("reversed-cosine:rising=true", "no option 'rising'"),
        ("cosine:of=crown", "no option 'of'"),
        ("cosine:start=0", "arm cosine:start=0: start is 0"),
        ("cosine:start=wide", "start is 'wide'"),
        ("geometry:statistic=mass", "statistic is 'mass'; allowed: shift"),
        ("geometry:geometry=flat", "geometry is 'flat'; allowed: raw"),
        ("geometry:exponent=0", "arm geometry:exponent=0: exponent"),
        ("permuted:seed=-1", "seed is -1"),
        ("crown:floor=2x", "arm crown:floor=2x"),
        ("calibrated", "needs the option 'calibration'"),
        ("cascade:taper=both,heads=3", "attention heads in all"),
        ("crown:first=0.5" + "0" * 300, "is 315 letters long"),
    ],
)
def test_wrong_arms_are_refused_by_name_before_any_work(text, words):
    with pytest.raises(UserError, match=words):
        resolve("pico", arms=["uniform", text])


def test_arms_that_do_the_same_are_refused():
    for arms, words in (
        (["cosine", "cosine"], "cosine stands there twice"),
        (["reversed", "reversed-geometry"], "reversed-geometry is the same as reversed"),
        (["cosine:start=2,end=1", "cosine:end=1,start=2"], "is the same as"),
    ):
        with pytest.raises(UserError, match=words):
            parse_arms(arms)


def test_the_name_of_an_arm_can_be_that_of_a_folder():
    assert Arm.parse("calibrated:calibration=../a b/c.json").name == "calibrated:calibration=..-a-b-c.json"
    assert Arm.parse("permuted-crown:seed=3").name == "permuted-crown:seed=3"


def test_the_seed_of_a_run_reaches_its_permutations_and_an_arm_may_have_its_own():
    run = resolve("nano", arms=["uniform", "permuted-cosine", "permuted-cosine:seed=7"], seed=5)
    other = resolve("nano", arms=["uniform", "permuted-cosine:seed=5"])
    _, shared, own = (allocate_arm(run, arm, None) for arm in run.arms)
    assert shared.widths == allocate_arm(other, other.arms[1], None).widths
    assert shared.settings["seed"] == 5 and own.settings["seed"] == 7 and own.widths != shared.widths
    check_arms(run)
