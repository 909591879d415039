"""Who is who among the processes of a job, and what one process alone makes of it."""

import pytest

from geowidth import ranks
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.progress import Progress

MANY = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_RANK": "1"}


@pytest.fixture
def second(monkeypatch):
    """This process looks like the second of three."""
    for name, value in MANY.items():
        monkeypatch.setenv(name, value)


def test_one_process_alone():
    assert ranks.launched() == 1 and ranks.is_first()
    with ranks.joined() as alone:
        assert list(alone.rows(5)) == [0, 1, 2, 3, 4] and alone.dealt("abc") == "abc"
        assert alone.gather(7) == [7] and alone.of_first(lambda: 3) == 3 and alone.in_turn(lambda: 2) == 2
        assert alone.most(4) == 4 and not alone.any(False) and alone.together(lambda: 1) == 1
        with pytest.raises(UserError, match="wrong"), ranks.joined():
            raise UserError("wrong")
    with pytest.raises(UserError, match="timeout is 0"), ranks.joined(timeout=0):
        pass


def test_every_row_is_exactly_one_process_s():
    for count in (0, 1, 2, 7, 12):
        parts = []
        for rank in range(3):
            one = ranks.Ranks()
            one.rank, one.size = rank, 3
            parts.append(list(one.rows(count)))
        assert sum(parts, []) == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_a_launcher_says(second, monkeypatch, capsys):
    assert ranks.launched() == 3 and not ranks.is_first()
    assert ranks.own_device("cpu") == "cpu" and ranks.own_device("cuda") == "cuda:1"
    with pytest.raises(UserError, match="3 processes would share; name cuda"):
        ranks.own_device("cuda:2")
    with Progress(1, "work") as progress:
        progress.step()
    assert capsys.readouterr().err == ""
    kept = ranks.without_ranks(MANY | {"HOME": "here", "TORCHELASTIC_RUN_ID": "x"})
    assert kept == {"HOME": "here"}
    for rank, size in (("3", "3"), ("one", "3"), ("-1", "3")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(UserError, match="start all processes with torchrun"):
            ranks.launched()


def nobody(_timeout):
    """A meeting place that no other process comes to."""
    raise UserError("nobody came")


def test_commands_of_one_process_refuse_many(second, monkeypatch, capsys):
    monkeypatch.setattr(ranks, "_meeting", nobody)
    monkeypatch.setattr(ranks, "said", lambda: None)
    assert main(["report", "somewhere"]) == 2
    assert "geowidth report is one process's work" in capsys.readouterr().err


def test_one_of_all_tells_a_fault_that_all_find(second, monkeypatch):
    from torch.distributed import HashStore

    store = HashStore()
    monkeypatch.setattr(ranks, "_meeting", lambda timeout: store)
    monkeypatch.setattr(ranks, "_first_fault", None)
    with pytest.raises(UserError, match="no such file"), ranks.elected():
        raise UserError("no such file")
    with pytest.raises(ranks.ElsewhereError, match="rank 1: no such file") as other, ranks.elected():
        raise UserError("no such file")
    assert other.value.code == 2
    ranks.said()
    ranks.wait_until_said()
    with pytest.raises(RuntimeError), ranks.elected():
        raise RuntimeError("a fault of ours")


def test_errors_that_come_of_a_lost_process():
    for words in ("Connection closed by peer [127.0.0.1]:1", "Timed out waiting 600ms for recv", "NCCL error"):
        assert ranks.is_of_connection(RuntimeError(words))
    assert not ranks.is_of_connection(RuntimeError("shapes do not agree"))
    assert not ranks.is_of_connection(ValueError("gloo"))
    assert ranks.fault_words(UserError("no  text\n"), 2) == ("rank 2: no text", 2)
    assert ranks.fault_words(KeyError("a"), 0) == ("rank 0: KeyError: 'a'", 1)
