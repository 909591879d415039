"""`geowidth cascade importance` as a user meets it."""

import pytest
import torch

from geowidth import cli, records
from geowidth.artifacts.ledger import Ledger
from geowidth.models import ModelConfig, TaperedTransformer, save_model


@pytest.fixture
def folder(tmp_path):
    model = TaperedTransformer(ModelConfig(256, 5, 16, 2, (24, 8, 0, 30, 16), 16), seed=1)
    with torch.no_grad():
        for parameter in model.blocks[4].parameters():
            parameter.zero_()
    save_model(model, tmp_path / "model")
    Ledger(tuple("abcde"), 5, 0, [4, 1, 3, 2, 0], [2, 1, 1, 1, 0]).write(tmp_path / "model" / "ledger.json")
    return tmp_path / "model"


def test_importance_beside_shares(folder, text, tmp_path, capsys):
    out, picture = tmp_path / "i.json", tmp_path / "i.svg"
    given = ["--corpus", str(text), "--windows", "4", "--out", str(out), "--plot", str(picture)]
    assert cli.main(["cascade", "importance", str(folder), *given]) == 0
    said, record = capsys.readouterr().out, records.read_json(out, "geowidth.importance", 1)
    assert "Spearman " in said and "(95 % interval" in said and f"picture: {picture}" in said
    assert record["shares"] == [0.4, 0.1, 0.3, 0.2, 0] and record["fan_in"] == [5, 4, 3, 2, 1]
    assert record["importance"][4] == 0 and record["standard_errors"][4] == 0
    assert f"{record['importance'][0]:.4f}" in said
    low, high = record["correlations"]["pearson"]["interval"]
    assert low <= record["correlations"]["pearson"]["value"] <= high
    assert picture.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["studies", "MODEL"], "ACTION is 'studies'; allowed: importance, study, models"),
        (["importance", "nothing"], "nothing/ledger.json does not exist"),
        (["importance", "MODEL", "--confidence", "1"], "--confidence is 1"),
        (["importance", "MODEL", "--ledger", "OTHER"], "the ledger has 2 blocks, the model 5"),
        (["importance", "MODEL", "--context", "17"], "context is 17; the model takes at most 16"),
    ],
)
def test_bad_input_is_one_line_and_code_2(folder, text, tmp_path, capsys, arguments, words):
    Ledger(("a", "b"), 1, 0, [1, 1], [1, 1]).write(tmp_path / "other.json")
    places = {"MODEL": str(folder), "OTHER": str(tmp_path / "other.json")}
    given = [places.get(word, word) for word in arguments]
    code = cli.main(["cascade", *given, "--corpus", str(text), "--out", str(tmp_path / "i.json")])
    said = capsys.readouterr().err
    assert code == 2 and words in said and said.count("\n") == 1, said
    assert not (tmp_path / "i.json").exists()
