"""First steps on a device, second ones on the host: order, bounds, the same bits. Where there is no GPU, transfers that
take their time stand for one."""

import threading
import time
from contextlib import closing

import pytest
import torch
from test_pipeline import make_clouds

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.measure import MeasureSettings, measure_clouds, pipeline
from geowidth.measure.layer_cloud import LayerCloud
from geowidth.measure.layers import part_bytes, sent_matrices
from geowidth.measure.overlap import HOST_BYTES, jobs_ahead, staged


class SlowTransfer:
    """A copy that arrives when the host asks for it, late. Refuses to be waited for twice."""

    def __init__(self, tensor):
        self.tensor = tensor.clone()

    def wait(self):
        time.sleep(0.001)
        tensor, self.tensor = self.tensor, None
        assert tensor is not None
        return tensor


# ---- two steps side by side


@pytest.mark.parametrize("workers", (1, 3))
def test_results_come_in_order_and_not_too_many_are_under_way(workers):
    here, under_way, most = threading.get_ident(), set(), []

    def begin(job):
        assert threading.get_ident() == here
        under_way.add(job)
        most.append(len(under_way))
        return job

    def finish(job):
        assert threading.get_ident() != here
        time.sleep(0.002 * (job % 3))
        under_way.remove(job)
        return job * job

    assert list(staged(range(20), begin, finish, workers, ahead=4)) == [job * job for job in range(20)]
    assert max(most) <= 4


def test_the_next_job_begins_while_the_last_one_finishes():
    second_begun = threading.Event()

    def begin(job):
        if job == 1:
            second_begun.set()
        return job

    def finish(job):
        return job if second_begun.wait(20) else "alone"

    assert list(staged([0, 1], begin, finish, 1, ahead=2)) == [0, 1]


@pytest.mark.parametrize("step", ("begin", "finish"))
def test_an_error_ends_it(step):
    begun = []

    def fails(name):
        def run(job):
            if name == "begin":
                begun.append(job)
            if name == step and job == 2:
                raise ValueError("job 2")
            return job

        return run

    with pytest.raises(ValueError, match="job 2"):
        list(staged(range(1000), fails("begin"), fails("finish"), 1, ahead=2))
    assert len(begun) < 10


def test_closing_drops_what_has_not_started():
    started, go = [], threading.Event()

    def finish(job):
        started.append(job)
        go.wait(20)

    with closing(staged(range(3), lambda job: job, finish, 1, ahead=3)) as results:
        go.set()
        next(results)
    assert len(started) <= 3 and list(staged([], None, None, 1, 1)) == []


def test_how_many_jobs_are_ahead():
    assert jobs_ahead(1 << 20, 8) == 9 and jobs_ahead(HOST_BYTES, 8) == 2 and jobs_ahead(1 << 30, 8) == 4
    nine = MeasureSettings()
    assert part_bytes(4096, nine) == 4 * 8 * 4096**2
    assert sent_matrices(nine, "whole", nine.geometries) == {"raw": 2, "spherical": 2}
    assert sent_matrices(nine, "rest", ("raw",)) == {"raw": 2}
    shift = MeasureSettings(statistics=("shift",), geometries=("hyperbolic", "raw"))
    assert sent_matrices(shift, "whole", shift.geometries) == {"hyperbolic": 1}
    assert sent_matrices(shift, "draw", shift.geometries) == {}


# ---- layers


@pytest.fixture
def overlapping(monkeypatch):
    """measure_clouds as on a GPU, with slow transfers."""

    def run(clouds, todo, settings, threads):
        return pipeline_overlapping(clouds, todo, settings, threads, transfer=SlowTransfer)

    pipeline_overlapping = pipeline._overlapping
    monkeypatch.setattr(pipeline, "_side_by_side", run)


@pytest.mark.parametrize("threads", (1, 3))
def test_overlapping_changes_no_bit(monkeypatch, threads, request):
    clouds = make_clouds(layers=4)
    clouds.before[2, 5] *= 40  # a token of very large norm
    settings = MeasureSettings(bootstrap=3, statistics=("topology", "shift", "gw"))
    whole = measure_clouds(clouds, settings)
    request.getfixturevalue("overlapping")
    again = measure_clouds(clouds, settings, threads=threads)
    assert again.work == whole.work and again.dimension == whole.dimension and again.details == whole.details
    assert again.raw_without_large_norms == whole.raw_without_large_norms and again.settings == whole.settings
    assert list(again.work["raw"]) == ["topology", "shift", "gw"]


def test_an_overlapping_measurement_goes_on(tmp_path, monkeypatch, overlapping):
    clouds, out = make_clouds(layers=4), tmp_path / "work.json"
    whole = measure_clouds(clouds)
    real, begun = LayerCloud.send, []

    def breaks_at_layer_2(cloud, matrices):
        begun.append(cloud)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return real(cloud, matrices)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LayerCloud, "send", breaks_at_layer_2)
        measure_clouds(clouds, out=out, threads=1)
    assert not out.exists()
    resumed = measure_clouds(clouds, out=out)
    assert resumed.work == whole.work and resumed.details == whole.details
    assert [p.name for p in tmp_path.iterdir()] == ["work.json"]


def test_a_layer_lets_go_of_what_the_device_held(overlapping, monkeypatch):
    held = []
    real = pipeline.LayerWork.finish

    def finish(work, begun):
        held.append((work.sides, begun.cloud.before, "distances" in begun.cloud.__dict__))
        return real(work, begun)

    monkeypatch.setattr(pipeline.LayerWork, "finish", finish)
    measure_clouds(make_clouds())
    assert held == [(None, None, False)] * 3


def test_errors_name_the_layer(overlapping):
    clouds = make_clouds()
    clouds.before[1, 6] = 0
    with pytest.raises(UserError, match=r"layer 1: .*row 6"):
        measure_clouds(clouds)


# ---- devices


def test_results_say_where_they_were_computed():
    assert measure_clouds(make_clouds()).settings["device"] == "cpu"


@pytest.mark.parametrize(("name", "words"), [("tpu", "allowed: cpu, cuda"), ("mps", "allowed"), ("cuda:99", "use cpu")])
def test_devices_that_are_not_there_are_refused(tmp_path, name, words, capsys):
    with pytest.raises(UserError, match=words):
        MeasureSettings(device=name)
    assert main(["measure", "nothing", "--device", name, "--out", str(tmp_path / "w.json")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_cpus_numbers():
    clouds = make_clouds(layers=3, tokens=96)
    settings = MeasureSettings(bootstrap=2)
    cpu, gpu = measure_clouds(clouds, settings), measure_clouds(clouds, MeasureSettings(bootstrap=2, device="cuda"))
    for geometry, statistics in cpu.work.items():
        for name, values in statistics.items():
            assert gpu.work[geometry][name] == pytest.approx(values, rel=1e-8, abs=1e-12), (geometry, name)
    assert gpu.settings["device"] == "cuda" and gpu.environment["gpu"]
