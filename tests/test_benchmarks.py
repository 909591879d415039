"""The benchmarks' common frame: the CSV schema, interleaved timing, the runner."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import cascade, run, tapering
from benchmarks.plot import draw
from benchmarks.schema import COLUMNS, Row, read_rows, table, write_rows
from benchmarks.timing import interleave, ratio
from geowidth.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def rows():
    return [
        Row("distances", "geowidth", "raw", "wall", "n", 512.0, 0.1, 0.2, 0.3, error=1e-7, threads=2, note="a, b"),
        Row("distances", "torch.cdist", "raw", "wall", "n", 512.0, 0.2, 0.3, 0.4, error=math.inf),
        Row("gromov", "POT", "entropic", "cpu", "n", 2048.0, note="did not finish in 60 s"),
    ]


def test_rows_read_back_as_they_were_written(tmp_path):
    write_rows(tmp_path / "new" / "a.csv", rows())
    assert [str(r) for r in read_rows(tmp_path / "new" / "a.csv")] == [str(r) for r in rows()]
    assert (tmp_path / "new" / "a.csv").read_text().splitlines()[0] == ",".join(COLUMNS)


def test_table_and_plot(tmp_path):
    assert "torch.cdist" in table(rows()) and "did not finish" in table(rows())
    assert draw(rows(), tmp_path / "a.svg", "wall") and (tmp_path / "a.svg").stat().st_size > 1000
    assert not draw(rows(), tmp_path / "b.svg", "ratio")


def test_candidates_take_turns_and_slow_ones_sit_out():
    order = []
    samples = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert order == ["a", "b"] + ["a", "b"] * 3
    assert len(samples["a"].wall) == 3 and samples["a"].result is None
    once = interleave({"slow": lambda: sum(range(2000))}, rounds=5, seconds=0.0, keep=True)
    assert len(once["slow"].wall) == 1 and once["slow"].result == 1999000
    quantiles = ratio(samples, "a", "a")
    assert quantiles == {"p20": 1.0, "p50": 1.0, "p80": 1.0}


@pytest.mark.parametrize("name", list(run.BENCHMARKS))
def test_every_benchmark_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        run.main([name, "--help"])
    assert stop.value.code == 0 and "--quick" in capsys.readouterr().out


def test_the_runner_writes_what_it_measured(tmp_path):
    command = [sys.executable, "-m", "benchmarks.run", "precision", "--quick", "--d", "16", "--out", tmp_path / "p.csv"]
    words = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = read_rows(tmp_path / "p.csv")
    assert f"{len(found)} rows" in words
    ours = [r for r in found if r.provider == "geowidth" and r.mode != "opposite"]
    assert len(ours) == 18 and all(r.error < 1e-6 for r in ours)
    assert run.main(["unknown"]) == 2 and run.main(["--help"]) == 0


def micro(folder, *options):
    """Run one file of benchmarks/micro as the README says, its storage in `folder`; returns what it prints."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "benchmarks/micro/test_assignment.py"), "--benchmark-only"]
    command += ["--benchmark-max-time=0.001", "--benchmark-min-rounds=1", f"--benchmark-storage=file://{folder}"]
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }  # not a worker of ours
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=ROOT, env=alone, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_micro_benchmarks_group_ours_with_its_peers_and_compare(tmp_path):
    first = micro(tmp_path, "--benchmark-autosave")
    assert "benchmark 'assignment, random': 2 tests" in first and "[random-scipy]" in first
    second = micro(tmp_path, "--benchmark-compare")
    assert "(0001_" in second and "(NOW)" in second


def test_tapered_models_have_the_uniform_one_s_parameters_and_are_timed_beside_it(tmp_path):
    for config in tapering.configs(512, 8).values():
        assert 0 <= 1 - config.parameters / tapering.configs(512, 8)["uniform"].parameters < tapering.UNEQUAL
        assert all(width % 64 == 0 for width in config.widths)
    options = ["--quick", "--rounds", "1", "--batch", "1", "--out", str(tmp_path / "t.csv")]
    assert run.main(["tapering", *options]) == 0
    found = read_rows(tmp_path / "t.csv")
    assert len(found) == 4 * (5 * 2 + 4) and all(r.p50 > 0 for r in found)
    assert {r.provider for r in found if r.metric == "ratio"} == set(tapering.SCHEDULES) - {"uniform"}


def test_models_of_unequal_size_are_not_timed(monkeypatch):
    monkeypatch.setattr(tapering, "widths", lambda name, _: (64 if name == "uniform" else 128,) * tapering.LAYERS)
    with pytest.raises(UserError, match="equal ones are needed"):
        tapering.configs(64, 8)


def test_cascade_models_have_equal_counts_and_are_timed_beside_uniform_ones(tmp_path):
    words = ["--quick", "--rounds", "1", "--batches", "1", "3", "--prompts", "5", "9", "--first", "9"]
    out = tmp_path / "c.csv"
    assert run.main(["cascade", *words, "--most-read", "9", "--out", str(out)]) == 0
    rows = read_rows(out)
    models = cascade.configs(cascade.SMALL, 0.8, 8)
    models["uniform, again"] = models["uniform"]
    assert len(models) == 8 and list(models)[:5] == ["uniform", "A", "F", "AF", "AF 0.8"]

    def found(metric, mode, read):
        return {r.provider: r.p50 for r in rows if (r.metric, r.mode, r.x_value) == (metric, f"{mode}, float32", read)}

    token, first = "a token, batch 3", "first token, batch 1"
    for mode, read in ((token, 5), (token, 9), (first, 9)):
        flops, size, floor = (found(metric, mode, read) for metric in ("flops", "bytes", "floor"))
        assert set(flops) == set(models) and all(value > 0 for value in floor.values())
        assert len({flops[name] for name in ("uniform", "A", "F", "AF")}) == 1
        assert len({size[name] for name in ("uniform", "A", "F", "AF")}) == 1
        assert abs(flops["AF 0.8"] / flops["uniform, 4 layers"] - 1) < 0.01
        assert found("ratio", mode, read).keys() == models.keys() - {"uniform"}
    grown = found("bytes", token, 9)["uniform"] - found("bytes", token, 5)["uniform"]
    assert grown == 3 * 4 * 2 * sum(models["uniform"].key_heads_by_layer) * 16 * 4
    assert not found("wall", "first token, batch 3", 9)  # 27 tokens, more than were asked for
    seconds, rates = found("cpu", token, 9), found("tokens a second", token, 9)
    assert all(rates[name] * seconds[name] == pytest.approx(3, rel=1e-4) for name in models)
    request = found("cpu", "request, batch 1", 9)
    parts = found("cpu", first, 9)["AF"] + 63 * found("cpu", "a token, batch 1", 9)["AF"]
    assert request["AF"] == pytest.approx(parts, rel=1e-4)


def test_counted_multiplications_of_a_token_are_those_of_its_products():
    config = cascade.SMALL
    flops, size = cascade.Mode("a token", 2, 10).counts(config, 4)
    weights = config.attention_parameters + config.ffn_parameters + config.vocabulary * config.dimension
    assert flops == 2 * (2 * weights + 5 * 2 * 2 * 64 * 11)
    assert size == 4 * weights + 2 * 5 * 2 * 64 * 11 * 4
    flops, _ = cascade.Mode("first token", 1, 1).counts(config, 4)
    assert flops == cascade.Mode("a token", 1, 0).counts(config, 4)[0]


def test_a_cache_that_gives_other_logits_is_not_timed(monkeypatch):
    models = cascade.built(cascade.configs(cascade.SMALL, 0.8, 8), torch.float32, 0)
    cascade.check(models, torch.zeros(1, 7, dtype=torch.int64))
    monkeypatch.setattr(cascade, "cached_logits", lambda model, tokens, cache, every: model(tokens))
    with pytest.raises(UserError, match="nothing was timed"):
        cascade.check(models, torch.arange(12)[None])
