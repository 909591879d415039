"""Healing: the loss falls, distillation is a divergence, a stopped healing goes on with the same bits."""

import functools

import pytest
import torch
from sliced_folders import library_folder, own_folder
from torch.nn import functional

from geowidth.cascade.held_out import IGNORED, HeldOut, logits_of
from geowidth.errors import UserError
from geowidth.measure.opening import open_model
from geowidth.models.training import TrainingSettings
from geowidth.slicing import ffns_of, slice_in_place
from geowidth.slicing.healing import Healing, batch_rows, divergences, heal
from geowidth.train.optimise import learning_rate
from geowidth.train.state import saved_step


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)  # put back by a fixture of all tests


def text(windows=12, length=16, vocabulary=20):
    """Windows in which every token follows from the one before: something to learn."""
    starts = torch.randint(vocabulary, (windows, 1), generator=torch.Generator().manual_seed(5))
    tokens = (starts + 3 * torch.arange(length)) % vocabulary
    return HeldOut(tokens, functional.pad(tokens[:, 1:], (0, 1), value=IGNORED), {})


def models(path, kind):
    """(a model, it sliced to a third)."""
    source = own_folder(path, widths=(24, 24)) if kind == "ours" else library_folder(path, kind)
    whole, student = (open_model(source, causal=True).model for _ in range(2))
    ffns = ffns_of(student)
    slice_in_place(ffns, [torch.arange(8) for _ in ffns])
    return whole, student


@pytest.mark.parametrize("kind", ["ours", "llama", "gpt2"])
def test_the_loss_falls(kind, tmp_path):
    _, student = models(tmp_path / "whole", kind)
    told = heal(student, text(), Healing(30, batch=6, microbatch=4, learning_rate=2e-2), tmp_path / "states")
    assert told["last"] < 0.7 * told["first"] and told["steps"] == 30 and told["tokens"] == 30 * 6 * 15
    assert ffns_of(student).widths == (8,) * len(ffns_of(student))


@torch.no_grad()
def test_divergences_are_those_of_kullback_and_leibler(tmp_path):
    whole, student = models(tmp_path / "whole", "llama")
    some = text(3)
    found = divergences(student, whole, some.tokens, some.targets)
    p, q = (torch.softmax(logits_of(m, some.tokens)[:, :-1].double(), -1).flatten(0, 1) for m in (whole, student))
    torch.testing.assert_close(found.double(), (p * (p / q).log()).sum(-1), rtol=1e-4, atol=1e-7)
    assert (found > 0).all()
    assert divergences(whole, whole, some.tokens, some.targets).abs().max() == 0


@pytest.mark.parametrize("kind", ["ours", "llama"])
def test_distillation_comes_nearer_to_the_whole_model_and_leaves_it_alone(kind, tmp_path):
    whole, student = models(tmp_path / "whole", kind)
    before = [p.clone() for p in whole.parameters()]
    healing = Healing(30, batch=6, learning_rate=1e-2, distil=True)
    told = heal(student, text(), healing, tmp_path / "states", teacher=whole)
    assert told["last"] < 0.5 * told["first"]
    assert all(torch.equal(p, q) and p.requires_grad for p, q in zip(whole.parameters(), before, strict=True))


@pytest.mark.parametrize("distil", [False, True])
def test_a_stopped_healing_goes_on_with_the_same_bits(distil, tmp_path):
    finished = []
    for stops in (False, True):
        whole, student = models(tmp_path / f"whole-{stops}", "llama")
        healing, folder = Healing(6, batch=4, distil=distil, learning_rate=1e-2), tmp_path / f"states-{stops}"
        if stops:
            asked = iter([False, True])
            with pytest.raises(KeyboardInterrupt):
                heal(student, text(), healing, folder, teacher=whole, stop=functools.partial(next, asked))
            _, student = models(tmp_path / "again", "llama")
        told = heal(student, text(), healing, folder, teacher=whole)
        finished.append((told["first"], told["last"], [p.detach().clone() for p in student.parameters()]))
    plain, stopped = finished
    assert plain[:2] == stopped[:2] and all(map(torch.equal, plain[2], stopped[2]))


@pytest.mark.parametrize("save_seconds", [0.0, 1e9])
def test_the_last_step_ends_it_and_its_loss_is_told(tmp_path, save_seconds):
    """Whether it was asked to stop then or not: a state of all steps would not know the loss of the last one."""
    told = []
    for name, stop in (("plain", None), ("asked", functools.partial(next, iter([False, False, True])))):
        _, student = models(tmp_path / name, "llama")
        folder, healing = tmp_path / f"states-{name}", Healing(3, batch=4, learning_rate=1e-2)
        told.append(heal(student, text(), healing, folder, stop=stop, save_seconds=save_seconds))
        assert saved_step(folder) == (2 if save_seconds == 0 else 0)
    assert told[0]["last"] == told[1]["last"] != told[0]["first"]


def test_every_window_comes_once_before_any_comes_again():
    rows = torch.cat([batch_rows(7, 3, step, seed=4) for step in range(14)])
    assert all(sorted(rows[7 * k : 7 * k + 7].tolist()) == list(range(7)) for k in range(6))
    assert not torch.equal(rows[:7], rows[7:14])


def test_gradients_do_not_depend_on_the_pieces(tmp_path):
    finished = []
    for microbatch in (2, 6):
        _, student = models(tmp_path / f"whole-{microbatch}", "llama")
        heal(student, text(), Healing(2, batch=6, microbatch=microbatch), tmp_path / f"states-{microbatch}")
        finished.append(torch.cat([p.detach().flatten() for p in student.parameters()]))
    torch.testing.assert_close(*finished, rtol=1e-3, atol=1e-6)


def test_settings_are_those_of_training():
    settings = Healing(10, batch=2, microbatch=4).settings
    assert isinstance(settings, TrainingSettings) and settings.microbatch == 2 and settings.weight_decay == 0
    assert learning_rate(settings, 0) == pytest.approx(1e-4) and learning_rate(settings, 9) < 1e-5


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 1, "batch": 0}, {"steps": 1, "learning_rate": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UserError, match="heal"):
        Healing(**wrong)


def test_a_divergence_is_said(tmp_path):
    _, student = models(tmp_path / "whole", "llama")
    next(student.parameters()).data.fill_(float("inf"))
    with pytest.raises(UserError, match="healing diverged at step 1; lower --heal-rate"):
        heal(student, text(), Healing(2), tmp_path / "states")
    with pytest.raises(UserError, match="give it as teacher"):
        heal(student, text(), Healing(2, distil=True), tmp_path / "states")
