"""Write a tapered model, or a schedule applied to an existing family, in a format that other tools load.

Reads   MODEL: a folder that `geowidth train` wrote, a Hugging Face folder of the Llama family, a .gguf file, smollm2;
        or --from-checkpoint DIR, whose FFN widths are taken from the tensors' shapes;
        or --schedule FILE with --family CONFIG, a config.json (or its folder), for training from scratch
Writes  the folder --out, whole or not at all

Formats
  hf            config with one FFN width per layer, a small modelling file, safetensors (trust_remote_code)
  hf-padded     the stock family, FFNs padded with zeros to the widest: same logits, loads anywhere
  gguf          model.gguf of architecture deci, for llama.cpp
  nemotron-nas  Llama-Nemotron's block_configs, for vLLM and SGLang; widths padded to multiples of 256
  megatron      the JSON of Megatron-LM's --heterogeneous-layers-config-path (no weights)
  geowidth      our own model, for geowidth measure and Python

Examples
  geowidth export runs/nano/arms/geometry/seed-0 --format hf --out exported
  geowidth export --schedule schedule.json --family Llama-3.2-1B/config.json --out tapered-llama
"""

from pathlib import Path

import torch

from geowidth.cli import words
from geowidth.errors import UserError, whole

DTYPES = {"keep": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def add_arguments(parser):
    parser.add_argument("model", nargs="?", help="folder, .gguf file or smollm2")
    parser.add_argument("--from-checkpoint", metavar="DIR", help="a folder whose tensors' shapes state the FFN widths")
    parser.add_argument("--schedule", metavar="FILE", help="schedule.json by geowidth allocate")
    parser.add_argument("--family", metavar="CONFIG", help="config.json that --schedule is applied to")
    parser.add_argument(
        "--format",
        default="hf",
        metavar="NAME",
        type=words.one_of(words.formats),
        help="one of the formats above, or of an extension's",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--dtype", default="keep", metavar="NAME", type=words.one_of(DTYPES), help=f"one of {', '.join(DTYPES)}"
    )
    parser.add_argument("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")


def run(arguments):
    from geowidth.exchange.folders import check_free
    from geowidth.exchange.formats import export

    sources = [name for name in ("model", "from_checkpoint", "schedule") if getattr(arguments, name) is not None]
    if len(sources) != 1:
        raise UserError("give exactly one of MODEL, --from-checkpoint DIR and --schedule FILE")
    if (arguments.schedule is None) != (arguments.family is None):
        raise UserError("--schedule and --family go together: the widths, and the config.json they are applied to")

    check_free(arguments.out)
    if arguments.schedule is not None:
        said = _export_schedule(arguments)
    else:
        checkpoint = _read(arguments)
        dtype = DTYPES[arguments.dtype]
        said = export(checkpoint if dtype is None else checkpoint.to(dtype), arguments.format, arguments.out)
        print(f"widths: {' '.join(map(str, checkpoint.shape.widths))}")
    for sentence in said:
        print(sentence)
    print(f"{arguments.format}: {arguments.out}")


def _read(arguments):
    from geowidth.exchange.carried import read_source
    from geowidth.exchange.checkpoint import read_checkpoint, tokenizer_files
    from geowidth.exchange.convert import checkpoint_from
    from geowidth.exchange.gguf_read import read_gguf
    from geowidth.measure.opening import PACKAGED, converted, packaged_path
    from geowidth.models import load_model
    from geowidth.models.storage import CONFIG_FILE

    if arguments.from_checkpoint is not None and not (Path(arguments.from_checkpoint) / CONFIG_FILE).is_file():
        return read_checkpoint(arguments.from_checkpoint, infer_widths=True)
    # In a model of ours the widths stand in model.json, and the tensors' shapes must agree.
    path = Path(arguments.from_checkpoint or arguments.model)
    if not path.exists() and arguments.model in PACKAGED:
        path = packaged_path(arguments.model)
        path = converted(path, arguments.cache) if path.suffix == ".gguf" else path
    if path.suffix == ".gguf":
        return read_gguf(path)
    if (path / CONFIG_FILE).is_file():
        source = read_source(path)
        return checkpoint_from(load_model(path), tokenizer_files(path), str(path), source)
    if not path.is_dir():
        raise UserError(f"{arguments.model} does not exist; give a model folder, a .gguf file or smollm2")
    return read_checkpoint(path)


def _export_schedule(arguments):
    from geowidth.artifacts.schedule import Schedule
    from geowidth.exchange.checkpoint import read_config, tokenizer_files
    from geowidth.exchange.formats import export_untrained
    from geowidth.exchange.shape import GATE_FIELD, HEADS_FIELD

    path = Path(arguments.family)
    folder = path.parent if path.name == "config.json" else path
    schedule, where = Schedule.read(arguments.schedule), str(folder / "config.json")
    config = read_config(folder)
    if schedule.heads is not None:
        heads = whole(f"{where}: num_attention_heads", config.get("num_attention_heads"), 1)
        config = {**config, HEADS_FIELD: schedule.heads_for("geowidth export", [heads] * schedule.layers)}
    widths = schedule.widths_for(
        "geowidth export",
        layers=config.get("num_hidden_layers"),
        dimension=config.get("hidden_size"),
        heads=None,
        projections=3 if config.get(GATE_FIELD, True) else 2,
        biases=bool(config.get("mlp_bias")),
    )
    return export_untrained(config, widths, arguments.out, arguments.format, where, tokenizer_files(folder))
