"""Tokens of very large norm (attention sinks): flagged, and the raw signals told with and without them."""

import pytest
import torch

from geowidth.artifacts.clouds import Clouds
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.measure.pipeline import MeasureSettings, measure_clouds
from geowidth.measure.statistics import DEFAULT_STATISTICS


def clouds_with_sink(tokens=24, sink=None, layers=2):
    generator = torch.Generator().manual_seed(4)
    before = torch.randn(layers, tokens, 6, generator=generator)
    after = before + 0.3 * torch.randn(layers, tokens, 6, generator=generator)
    if sink is not None:
        before[1, sink] *= 150
        after[1, sink] *= 160
    ids = torch.arange(tokens)
    return Clouds(before, after, ids, ids, (8,) * layers, 2, {})


def test_raw_signals_with_and_without_the_sink(tmp_path):
    """Layer 1 has a sink at token 7: without it, raw equals the measurement of the cloud that lacks it."""
    profile = measure_clouds(clouds_with_sink(sink=7), out=tmp_path / "work.json")
    assert profile.details[1]["large_norm_tokens"] == {"before": [7], "after": [7]}
    rest = torch.arange(24) != 7
    whole = clouds_with_sink(sink=7)
    part = Clouds(
        whole.before[:, rest], whole.after[:, rest], whole.token_ids[rest], whole.positions[rest], (8, 8), 2, {}
    )
    alone = measure_clouds(part, MeasureSettings(geometries=("raw",)))
    for name in DEFAULT_STATISTICS:
        with_sink, without = profile.signal(name, "raw"), profile.raw_without_large_norms[name]
        assert without[0] == with_sink[0]  # nothing is flagged in layer 0
        assert without[1] == pytest.approx(alone.signal(name, "raw")[1], rel=1e-9)
    assert profile.signal("gw", "raw")[1] > 5 * profile.raw_without_large_norms["gw"][1]
    assert WorkProfile.read(tmp_path / "work.json").raw_without_large_norms == profile.raw_without_large_norms


def test_no_sink_and_no_raw():
    profile = measure_clouds(clouds_with_sink())
    assert profile.raw_without_large_norms == {name: profile.signal(name, "raw") for name in DEFAULT_STATISTICS}
    spherical = measure_clouds(clouds_with_sink(), MeasureSettings(geometries=("spherical",)))
    assert spherical.raw_without_large_norms == {}


def test_files_of_earlier_versions_are_read(tmp_path):
    import json

    measure_clouds(clouds_with_sink(), out=tmp_path / "work.json")
    record = json.loads((tmp_path / "work.json").read_text())
    del record["raw_without_large_norms"]
    (tmp_path / "work.json").write_text(json.dumps(record))
    assert WorkProfile.read(tmp_path / "work.json").raw_without_large_norms == {}
