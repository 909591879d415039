"""Turn text into token shards that training reads without holding them in memory; look at such a folder.

  geowidth data prepare SOURCE... --out DIR    text to shards
  geowidth data check DIR                      what a folder holds, every hash checked

Reads   one or several SOURCEs: stdlib, a text file, a folder of text files, a .jsonl file (one object a line), a
        .parquet file or a folder of them, a dataset folder (save_to_disk of the library datasets), or hf:NAME or
        hf:NAME:CONFIG, a dataset in the local Hugging Face cache. Of a dataset with several splits, the one called
        train is read. Nothing is downloaded.
Writes  into --out: index.json, SPLIT-00000.bin ... of ids (1, 2 or 4 bytes each) and tokenizer.json

The folder is then a corpus: geowidth train --corpus DIR. So are folders of .bin files as nanoGPT (train.bin, val.bin)
and llm.c write them, as they are.

Documents are files, lines and rows. A hash of each one's name (of a record: its text) puts it into the training (90 %),
validation (5 %) or test split (5 %); with few documents each is cut in three instead. Each ends with an end-of-text
token. Copies of a record never stand on both sides of a split.

Tokenizers
  bytes     256 ids, nothing to install or train; losses are then in nats per byte
  bpe:N     a byte-level BPE of N tokens, trained here on training text; kept as tokenizer.json
  FILE      the tokenizer.json of a model, or the folder it is in

Memory does not grow with the text. A command that was stopped, or killed, goes on from its finished shards when it is
given again, and ends with the same bytes.

Examples
  geowidth data prepare articles.jsonl --field body --tokenizer bpe:8192 --out shards
  geowidth data prepare stdlib --tokenizer Llama-3.2-1B/tokenizer.json --out shards
  geowidth data check shards
"""

from geowidth.cli import words
from geowidth.errors import UserError

ACTIONS = ("prepare", "check")
OF_PREPARE = ("tokenizer", "field", "end_of_text", "shard_tokens", "sample_bytes")


def add_arguments(parser):
    """The options of `geowidth data`."""
    add = parser.add_argument
    add("action", metavar="ACTION", type=words.one_of(ACTIONS), help="prepare or check")
    add("sources", metavar="SOURCE", nargs="+", help="text to prepare; for check, the folder of shards")
    add("--out", metavar="DIR", help="folder of the shards; made if it does not exist")
    add("--tokenizer", metavar="NAME", help="how text becomes ids: bytes, bpe:N or FILE (default: bytes)")
    add("--field", metavar="NAME", help="field or column of records that holds their text (default: text)")
    add("--end-of-text", metavar="TOKEN", help="token of FILE that ends a document (default: the one it names)")
    add("--shard-tokens", metavar="N", type=words.whole(), help="ids in a shard (default: 67108864)")
    add(
        "--sample-bytes", metavar="N", type=words.whole(), help="training text bpe:N is trained on (default: 268435456)"
    )


def run(arguments):
    given = {name: value for name in OF_PREPARE if (value := getattr(arguments, name)) is not None}
    if arguments.action == "check":
        check(arguments, given)
        return
    from geowidth.text.preparation import prepare

    if arguments.out is None:
        raise UserError("geowidth data prepare needs --out DIR, the folder the shards are written to")
    index = prepare(arguments.sources, arguments.out, **given)
    print(table(index))
    print(f"corpus: {arguments.out}")


def check(arguments, given):
    """Print what a folder of shards holds, after every hash of it was checked."""
    from pathlib import Path

    from geowidth.text import shards

    option = next((name for name in ("out", *given) if getattr(arguments, name) is not None), None)
    if option is not None or len(arguments.sources) > 1:
        word = arguments.sources[1] if option is None else f"--{option.replace('_', '-')}"
        raise UserError(f"geowidth data check takes one folder of shards and nothing else; leave out {word}")
    folder = Path(arguments.sources[0])
    if not shards.is_prepared(folder):
        raise UserError(f"{folder} holds no {shards.INDEX_FILE}; name a folder that geowidth data prepare wrote")
    index = shards.read_index(folder)
    shards.open_splits(folder, index, again=True)
    shards.tokenizer_of(folder, index)
    found = shards.digest_of_folder(folder, index)
    if found != index["digest"]:
        raise UserError(
            f"{folder} has digest {found}, and its index states {index['digest']}; prepare the folder again"
        )
    print(table(index))
    print(f"every hash is as stated: {folder}")


def table(index):
    """The index as text: a row per split, then what holds for all."""
    lines = [f"{'split':10} {'documents':>12} {'tokens':>16} {'bytes of text':>16} {'shards':>7}"]
    for name, split in index["splits"].items():
        counts = f"{split['documents']:12,} {split['tokens']:16,} {split['bytes']:16,} {len(split['shards']):7,}"
        lines.append(f"{name:10} {counts}")
    tokenizer, vocabulary = index["tokenizer"]["name"], index["vocabulary"]
    lines.append(f"tokenizer {tokenizer}, vocabulary {vocabulary:,}, {index['item_bytes']} bytes an id")
    return "\n".join([*lines, f"digest {index['digest']}"])
