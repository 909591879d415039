"""`geowidth cascade study`: arms, the record of known numbers, a whole small study, going on, and refusals."""

import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
from made_studies import importance_of, make_study

from geowidth import cli, records
from geowidth.cascade.expected_paths import expected_fan_in, predicted_of
from geowidth.cascade.fan_in import predicted_fan_in
from geowidth.cascade.study import read_study, run_study
from geowidth.cascade.study_arms import ARMS, ChosenArm, StudyArm, parse_study_arms
from geowidth.cascade.study_cells import IMPORTANCE_FILE
from geowidth.cascade.study_design import cell_folder, read_settings, resolve_study
from geowidth.cascade.study_rates import best_rate, rate_words
from geowidth.cascade.study_record import late_measures, share_of
from geowidth.errors import UserError
from geowidth.report.cascade_tables import arms_csv
from geowidth.train.corrections import holm, paired_t_p
from tests.tiny_preset import TINY

SHORT = replace(
    TINY,
    model=replace(TINY.model, layers=3, widths=(24,) * 3),
    training=replace(TINY.training, steps=4, evaluations=1),
)


def test_arms_change_what_they_say_and_nothing_else():
    for name, arm in ARMS.items():
        model, training = ChosenArm.parse(name).of(SHORT.model, SHORT.training, 0.5)
        changed = {**model.to_json(), **training.to_json()}
        usual = {**SHORT.model.to_json(), **SHORT.training.to_json()}
        found = {key: value for key, value in changed.items() if usual.get(key) != value}
        assert found == {"learning_rate": 0.5} | {k: v for k, v in arm.changes.items() if v != usual.get(k)}
    model, training = ChosenArm.parse("repeat:repeat_times=2,learning_rate=0.25").of(SHORT.model, SHORT.training)
    assert (model.repeat_last, model.repeat_times, training.learning_rate) == (2, 2, 0.25)


def test_every_arm_is_held_against_the_plain_one_of_its_optimiser():
    assert {arm.name: arm.against for arm in parse_study_arms()} == {
        "adamw": None, "equal-adamw": "adamw", "repeat": "adamw", "exits-equal": "adamw", "exits-layerskip": "adamw",
        "dropout": "adamw", "sgd": None, "equal-sgd": "sgd",
    }  # fmt: skip
    assert ChosenArm.parse("adamw:learning_rate=0.1").against == "adamw"


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (["adamw", "muon"], "arm is 'muon'; allowed: adamw, equal-adamw, "),
        (["adamw", "equal-sgd"], "equal-sgd is held against sgd, which is not among the arms"),
        (["adamw", "adamw"], "arm adamw stands there twice"),
        (["adamw", "repeat:width=3"], "option of arm repeat:width=3 is 'width'; allowed: learning_rate"),
        (["adamw", "repeat:repeat_last=9"], "arm repeat:repeat_last=9: repeat_last is 9"),
        (["adamw", "dropout:layer_dropout=2"], "arm dropout:layer_dropout=2: layer_dropout is 2"),
    ],
)
def test_arms_that_cannot_be_are_refused(arms, words):
    with pytest.raises(UserError, match=words):
        resolve_study(SHORT, arms=arms)


@pytest.mark.parametrize(("changes", "given"), [({}, "None"), ({"optimizer": "muon"}, "'muon'")])
def test_an_arm_from_outside_needs_the_optimizer_of_a_plain_one(changes, given, monkeypatch):
    monkeypatch.setitem(ARMS._items, "foreign", StudyArm("foreign", "from outside", changes))
    with pytest.raises(UserError, match=f"changes of arm foreign is {given}; allowed: adamw, sgd"):
        parse_study_arms(["adamw", "foreign"])


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("training", {"optimizer": "muon"}, "has optimizer 'muon'; .* need 'adamw'"),
        ("training", {"equal_gradients": True}, "has equal_gradients True"),
        ("training", {"exit_loss": 0.5}, "has exit_loss 0.5; .* need 0.0"),
        ("training", {"layer_dropout": 0.1}, "has layer_dropout 0.1"),
        ("model", {"repeat_last": 1, "repeat_times": 2}, "applies its last 1 blocks 2 times"),
    ],
)
def test_presets_with_interventions_are_refused(part, changes, words):
    with pytest.raises(UserError, match=words):
        resolve_study(replace(SHORT, **{part: replace(getattr(SHORT, part), **changes)}))


def walks(order, kept, block, head):
    """The expected number of gradient paths from a block's output to a head, every subset of what is there tried.

    A path is the identity from an application of the block to the head, or goes through one application in between.
    """
    total = 0.0
    for there in itertools.product((False, True), repeat=len(order)):
        probability = np.prod([p if t else 1 - p for p, t in zip(kept, there, strict=True)])
        own = [place for place in range(head + 1) if order[place] == block and there[place]]
        total += probability * sum(1 + sum(there[place + 1 : head + 1]) for place in own)
    return total


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 1, 2, 1, 2), (0, 0, 0)])
def test_expected_paths_are_those_that_are_counted(order):
    generator = np.random.default_rng(0)
    kept, weights = generator.random(len(order)), generator.random(len(order))
    counted = [
        sum(weights[head] * walks(order, kept, block, head) for head in range(len(order)))
        for block in range(max(order) + 1)
    ]
    assert expected_fan_in(order, weights, kept) == pytest.approx(counted, rel=1e-12)


def test_expected_paths_are_the_formulas_of_the_paper():
    last = np.eye(6)[-1]
    assert expected_fan_in(range(6), last) == pytest.approx(predicted_fan_in(6))
    assert expected_fan_in(range(6), np.ones(6)) == pytest.approx(predicted_fan_in(6, supervised=True))
    weights = np.arange(6.0)
    assert expected_fan_in(range(6), weights) == pytest.approx(predicted_fan_in(6, head_weights=weights))
    for name in ARMS:
        paths, words = predicted_of(*ChosenArm.parse(name).of(SHORT.model, SHORT.training))
        assert words and paths.shape == (3,) and (paths > 0).all()


def test_shares_of_the_late_blocks():
    found = late_measures([6, -1, 1, 3])
    assert found == {"late_half": 0.4, "late_quarter": 0.3, "late_rest": 1.0, "late_sum": 4.0}
    assert late_measures([1, 3]) == {"late_half": 0.75, "late_quarter": 0.75, "late_rest": 1.0, "late_sum": 3.0}
    assert share_of([-1, -2], [1]) is None and late_measures([-1.0, -2.0])["late_sum"] == -2.0


def test_the_best_rate_is_that_of_the_lowest_loss():
    assert best_rate([0.1, 0.3], [2.0, 1.0]) == 0.3 and best_rate([0.1, 0.3], [1.0, 1.0]) == 0.1
    assert best_rate([0.1, 0.3], [1.0, None]) is None and best_rate([0.1], [None]) == 0.1
    assert "is at the end" in rate_words([0.1, 0.3], [2, 1], 0.3, 9)
    assert "is at the end" not in rate_words([0.1, 0.3, 1], [2, 1, 3], 0.3, 9)


def test_rates_that_diverge_are_out(text, tmp_path):
    study = resolve_study(SHORT, text, ["sgd"], [0], windows=4, rates=[0.01, 0.02, 1e38])
    for folder in (tmp_path, tmp_path):  # the second time with what is finished
        record = run_study(study, folder, processes=2)
        assert record["rates"]["losses"][2] is None and record["rates"]["chosen"] in (0.01, 0.02)
        assert "1e+38 (diverged)" in record["rates"]["words"] and not record["missing"]
        assert read_study(folder)["rates"] == record["rates"]
    none = resolve_study(SHORT, text, ["sgd"], [0], windows=4, rates=[1e37, 1e38])
    with pytest.raises(UserError, match=r"diverged at every rate of 1e\+37 1e\+38; give lower --sgd-rates"):
        run_study(none, tmp_path / "none", processes=2)


def test_the_record_of_known_numbers(tmp_path):
    study = make_study(tmp_path)
    record = read_study(tmp_path)
    assert read_settings(tmp_path).to_json() == study.to_json()
    arms = {arm["arm"]: arm for arm in record["arms"]}
    shares = {name: [late_measures(importance_of(name, seed, 8))["late_half"] for seed in study.seeds] for name in arms}
    ps = []
    for name, arm in arms.items():
        if arm["against"] is None:
            assert arm["differences"] == {} and arm["verdict"] is None
            continue
        pairs = np.subtract(shares[name], shares[arm["against"]])
        found = arm["differences"]["late_half"]
        assert found["mean"] == pytest.approx(pairs.mean()) and found["t_p"] == pytest.approx(paired_t_p(pairs))
        assert list(found["by_seed"].values()) == pytest.approx(pairs)
        ps.append(found["t_p"])
    corrected = [arm["differences"]["late_half"]["holm_p"] for arm in arms.values() if arm["against"]]
    assert corrected == pytest.approx(holm(ps))
    assert [name for name, arm in arms.items() if arm["verdict"] == "regain"] == ["repeat"]
    assert record["headline"].startswith("Yes with repeat; ")
    assert record["rates"]["chosen"] == 0.03 and arms["sgd"]["learning_rate"] == 0.03
    assert not record["missing"] and len(record["sentences"]) == 6


def test_lines_hold_the_numbers_of_the_record(tmp_path):
    make_study(tmp_path, arms=["adamw", "repeat"])
    record = read_study(tmp_path)
    plain, repeat = record["arms"]
    line = record["sentences"][0]
    low, high = repeat["differences"]["late_half"]["interval"]
    for share in (plain["means"]["late_half"], repeat["means"]["late_half"]):
        assert f"{100 * share:.1f} %" in line
    assert f"{100 * low:+.1f} to {100 * high:+.1f}" in line and "6 seeds" in line and "regain" in line


def test_a_half_finished_study_says_what_is_missing(tmp_path):
    make_study(tmp_path, arms=["adamw", "repeat"], seeds=(0, 1, 2), unfinished=[("repeat", 1), ("repeat", 2)])
    record = read_study(tmp_path)
    assert record["missing"] == ["repeat: seeds 1, 2 not trained and judged to the end."]
    assert record["arms"][1]["verdict"] == "unknown" and "one seed" in record["sentences"][0]
    make_study(tmp_path / "none", arms=["adamw", "repeat"], seeds=(0,), unfinished=[("repeat", 0), ("adamw", 0)])
    assert "Nothing can be concluded" in read_study(tmp_path / "none")["headline"]


def test_means_are_over_the_pairs_and_seeds_without_a_share_are_left_out(tmp_path):
    make_study(tmp_path, arms=["adamw", "repeat"], seeds=(0, 1, 2, 3), unfinished=[("repeat", 1)])
    path = cell_folder(tmp_path, "adamw", 2) / IMPORTANCE_FILE
    records.write_json(path, records.read_json(path) | {"importance": [-1.0] * 8})
    record = read_study(tmp_path)
    shares = [
        [late_measures(importance_of(name, seed, 8))["late_half"] for seed in (0, 3)] for name in ("adamw", "repeat")
    ]
    plain, own = np.mean(shares, 1)
    found = record["arms"][1]["differences"]["late_half"]
    assert list(found["by_seed"]) == ["0", "3"] and found["mean"] == pytest.approx(own - plain)
    line = record["sentences"][0]
    assert f"hold {100 * own:.1f} % of the importance, {100 * plain:.1f} % in adamw" in line and "2 seeds" in line
    rows = [row.split(",") for row in arms_csv(record).splitlines()]
    row = next(row for row in rows if row[0] == "repeat" and row[2] == "late_half")
    assert row[3] == "2" and float(row[4]) == pytest.approx(own)
    none = cell_folder(tmp_path, "adamw", 0), cell_folder(tmp_path, "adamw", 3)
    for place in none:
        shutil.copy(path, place / IMPORTANCE_FILE)
    assert "no finished pair" in read_study(tmp_path)["sentences"][0]


def test_a_damaged_file_is_named(tmp_path):
    make_study(tmp_path, arms=["adamw"], seeds=(0,))
    path = cell_folder(tmp_path, "adamw", 0) / IMPORTANCE_FILE
    records.write_json(path, records.read_json(path) | {"importance": ["much"]})
    with pytest.raises(UserError, match=r"importance.json is damaged: importance\[0\] is 'much'"):
        read_study(tmp_path)
    with pytest.raises(UserError, match="holds no study.json"):
        read_study(tmp_path / "arms")


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A whole study of two arms and two seeds, and a twin that was stopped on the way and finished."""
    study = resolve_study(SHORT, text, ["adamw", "repeat"], windows=4)
    whole, stopped = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("stopped")
    record = run_study(study, whole, processes=2)
    shutil.copytree(whole, stopped, dirs_exist_ok=True)
    shutil.rmtree(cell_folder(stopped, "repeat", 1))
    (cell_folder(stopped, "adamw", 0) / IMPORTANCE_FILE).unlink()
    (stopped / "study.json").unlink()
    return study, whole, stopped, record


def same(record):
    """A record without what two runs may differ in."""
    for arm in record["arms"]:
        for cell in arm["cells"].values():
            cell["seconds"] = 0
    return record


def test_a_whole_study_and_one_that_goes_on_end_alike(finished):
    study, whole, stopped, record = finished
    assert read_study(stopped)["missing"] == ["adamw: seed 0 not trained and judged to the end.",
                                              "repeat: seed 1 not trained and judged to the end."]  # fmt: skip
    kept = (cell_folder(stopped, "repeat", 0) / "result.json").read_bytes()
    again = run_study(study, stopped, processes=1)
    assert same(again) == same(record) and not again["missing"]
    assert (cell_folder(stopped, "repeat", 0) / "result.json").read_bytes() == kept
    assert records.read_json(whole / "study.json")["arms"][0]["means"] == record["arms"][0]["means"]


def test_what_a_cell_says_is_what_other_commands_say(finished, text, tmp_path):
    from geowidth.cascade import compare_importance

    _, whole, _, record = finished
    found = compare_importance(cell_folder(whole, "adamw", 1), corpus=text, windows=4, context=SHORT.model.context)
    cell = record["arms"][0]["cells"]["1"]
    assert cell["importance"] == pytest.approx(found["importance"], rel=1e-5)
    assert cell["shares"] == pytest.approx(found["shares"]) and cell["judged_loss"] == pytest.approx(
        found["loss"]["mean"]
    )


def test_another_study_in_the_folder_is_refused(finished, text):
    _, whole, _, _ = finished
    with pytest.raises(UserError, match=r"holds a study with seeds \[0, 1\], not \[0, 1, 2\]"):
        run_study(resolve_study(SHORT, text, ["adamw", "repeat"], (0, 1, 2), windows=4), whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "MODEL"], "makes its own models; leave out MODEL"),
        (["study", "--ledger", "x"], "--ledger came with cascade study, which has no use for it"),
        (["importance", "MODEL", "--arms", "adamw"], "--arms came with cascade importance"),
        (["importance"], "needs MODEL"),
        (["importance", "MODEL", "--out", "x.txt"], "--out is 'x.txt'; allowed: a file whose name ends in .json"),
        (["study", "--arms", "adamw", "cosine"], "arm is 'cosine'; allowed: adamw"),
        (["study", "--seeds", "1", "1"], "--seeds is 1 1; allowed: each once"),
        (["study", "--windows", "1"], "--windows is 1; allowed: whole numbers from 2 up"),
        (["study", "--windows", "99999999"], "ask for fewer or give more text"),
        (["study", "--sgd-rates", "0"], "--sgd-rates is 0; allowed: finite numbers above 0"),
        (["study", "--processes", "0"], "--processes is 0"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, text, arguments, words):
    monkeypatch.chdir(tmp_path)
    given = [*arguments, *(["--preset", "pico", "--corpus", str(text)] if arguments[0] == "study" else [])]
    assert cli.main(["cascade", *given]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out, said
    assert not list(tmp_path.iterdir())


def test_a_dry_run_counts_and_writes_nothing(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    given = ["--preset", "pico", "--corpus", str(text), "--seeds", "0", "1", "--dry-run"]
    assert cli.main(["cascade", "study", *given]) == 0
    said = capsys.readouterr().out
    assert "20 (12 arms, 3 seeds): 0 finished, 0 begun, 20 missing" in said
    assert "repeat: seeds 0 1 missing" in said and "sgd at 0.03: seed 2 missing" in said
    assert not list(tmp_path.iterdir())
