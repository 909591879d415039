"""Text of any size to a folder of token shards (geowidth.text.shards), in bounded memory.

Documents go to splits as in geowidth.text.splits; where they are cut in three, tokens are cut at a whole character.
Each ends with the tokenizer's end-of-text id. A document longer than PIECE is tokenised in pieces that end at a line's
end where there is one, so that no text file has to fit in memory; a record of JSONL or of a table does.

In memory are at most BATCH bytes of text with their ids, one record, and what is read ahead of a table: under 200 MB
beside Python and its libraries, whatever the size of the corpus. Training a BPE takes more, by the words that differ in
the `sample_bytes` it is trained on.

A process that is killed leaves its finished shards. The next one checks them by their hashes, reads past what they hold
without tokenising it, and ends with the same bytes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from geowidth import files, records
from geowidth.errors import UserError, whole
from geowidth.files import PathLike
from geowidth.progress import Progress, tell
from geowidth.text import binary_files, shards
from geowidth.text.documents import Document, Source
from geowidth.text.pieces import PIECE, Piece, pieces_of
from geowidth.text.sources import open_source
from geowidth.text.splits import BY_NAME, BY_POSITION, SPLITS, split_of
from geowidth.text.tokenisation import (
    BYTES,
    TOKENIZER_FILE,
    Tokeniser,
    bpe_size,
    read_tokenizer_files,
    tokeniser_from,
    tokeniser_of,
    tokenizer_digest,
    train_bpe,
)
from geowidth.text.writing import Entries, Journal, SplitWriter

BATCH = 2 * PIECE  # bytes of text that are tokenised side by side
SHARD_TOKENS = 1 << 26
SAMPLE_BYTES = 1 << 28
SETTINGS_KIND, SCHEMA = f"{shards.KIND}_settings", 1
MEGABYTE = 1_000_000


def prepare(
    sources: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    tokenizer: str = "bytes",
    field: str = "text",
    end_of_text: str | None = None,
    shard_tokens: int = SHARD_TOKENS,
    sample_bytes: int = SAMPLE_BYTES,
) -> dict[str, Any]:
    """Write the shards of `sources` into folder `out` and return their index (the content of index.json).

    sources: what `geowidth.text.sources.open_source` reads, one or several. tokenizer: "bytes", "bpe:N" (trained here
    on the first `sample_bytes` of training text) or the path of a tokenizer.json. field: where records have their text.
    end_of_text: the token of a tokenizer.json that ends documents. shard_tokens: ids in a shard.

    A finished folder is returned as it is, an unfinished one is gone on with. Raises UserError for bad input, before
    work wherever it can be told, and for a folder begun with other settings.
    """
    names = [str(sources)] if isinstance(sources, (str, os.PathLike)) else [str(source) for source in sources]
    if not names:
        raise UserError("no source was named; give a text file, a folder, a .jsonl or .parquet file, or stdlib")
    size, ready = _tokenizer(str(tokenizer), end_of_text)
    opened = [_opened(name, field) for name in names]
    settings = {
        "sources": names,
        "marks": [source.mark for source in opened],
        "tokenizer": str(tokenizer),
        "tokenizer_digest": ready and ready.digest,
        "field": field,
        "end_of_text": end_of_text,
        "shard_tokens": whole("shard tokens", shard_tokens, 1),
        "sample_bytes": whole("sample bytes", sample_bytes, 1) if size else None,
    }
    folder = Path(out)
    _check_apart(folder, names)
    record = {"kind": SETTINGS_KIND, "schema": SCHEMA, "settings": settings}
    records.claim_folder(folder / shards.SETTINGS_FILE, record, "shards")
    with files.holding(folder) as free:
        if not free:
            raise UserError(f"another process is preparing {folder}; wait for it, or name another folder")
        if shards.is_prepared(folder):
            return shards.read_index(folder)
        return Preparation(folder, opened, names, shard_tokens).run(ready, str(tokenizer), size or 0, sample_bytes)


def _check_apart(folder, names):
    """Refuse to write into a folder that is read: the next time it would be another source."""
    inside = next((n for n in names if os.path.isdir(n) and folder.resolve().is_relative_to(Path(n).resolve())), None)
    if inside is not None:
        raise UserError(f"{folder} lies in the source {inside}, which must stay as it is; name a folder outside it")


def _tokenizer(name, end_of_text):
    """(N, None) for bpe:N, else (None, its Tokeniser)."""
    size = bpe_size(name)
    if end_of_text is not None and (size or name == "bytes"):
        raise UserError(f"the tokenizer {name} has its own end of text; leave out {end_of_text!r}")
    return size, None if size else BYTES if name == "bytes" else tokeniser_from(name, end_of_text)


def _opened(name, field):
    """The Source of text; folders that hold something else are refused by name."""
    path = Path(name)
    if path.is_dir() and (shards.is_prepared(path) or binary_files.is_tokenised(path)):
        raise UserError(f"{name} holds token ids already; give it to --corpus as it is")
    if path.suffix == ".bin" and path.is_file():
        raise UserError(f"{name} holds token ids, not text; give it to --corpus as it is")
    if path.is_dir():
        endings = {inside.suffix.lower() for inside in path.iterdir() if not inside.name.startswith(".")}
        if endings and endings <= {".jsonl", ".ndjson"}:
            raise UserError(
                f"{name} holds JSONL files, not text files; name the files themselves, as in {name}/*.jsonl"
            )
    return open_source(name, field)


class Preparation:
    """The writing of one folder."""

    def __init__(self, folder: Path, sources: Sequence[Source], names: Sequence[str], shard_tokens: int) -> None:
        self.folder, self.sources, self.names, self.shard_tokens = folder, sources, names, shard_tokens
        self.by_name = True

    def run(self, ready: Tokeniser | None, name: str, size: int, sample_bytes: int) -> dict[str, Any]:
        """Everything, from where an earlier process left it; returns the index."""
        journal = Journal(self.folder)
        self.by_name = self.splits_by_name()
        tokeniser = ready or self.trained(journal, name, size, sample_bytes)
        for file, text in tokeniser.files.items():
            records.write_text(self.folder / file, text)
        journal.begin(tokeniser.digest, tokeniser.item_bytes)
        self.write(tokeniser, journal)
        index = self.index(tokeniser, journal.entries)
        records.write_json(self.folder / shards.INDEX_FILE, index)
        journal.path.unlink(missing_ok=True)
        shards.note_checked(self.folder, index)
        return index

    def documents(self) -> Iterator[Document]:
        """All documents that have text, in order."""
        return (document for source in self.sources for document in source.read() if len(document.text))

    def pieces(self, characters: bool) -> Iterator[Piece]:
        """All pieces of all documents, in order."""
        return (piece for one in self.documents() for piece in pieces_of(one, self.by_name, characters))

    def splits_by_name(self) -> bool:
        """Whether every split gets a document by its name, which the first few documents tell as a rule."""
        seen: set[str] = set()
        for document in self.documents():
            seen.add(split_of(document.name))
            if len(seen) == len(SPLITS):
                return True
        if not seen:
            raise UserError(f"corpus {', '.join(map(repr, self.names))} holds no text; name a file or folder with some")
        return False

    def trained(self, journal: Journal, name: str, size: int, sample_bytes: int) -> Tokeniser:
        """The BPE of this corpus: the one in the folder if the shards there were made with it, else trained now."""
        path = self.folder / TOKENIZER_FILE
        if journal.tokenizer is not None and files.exists(path):
            found = read_tokenizer_files(path)
            if tokenizer_digest(found) == journal.tokenizer:
                return tokeniser_of(found, str(path), name)
        tell(f"train a BPE of {size:,} tokens")
        return tokeniser_of(train_bpe(self.sample(sample_bytes), size), str(path), name)

    def sample(self, most: int) -> Iterator[bytes]:
        """The first training text, up to `most` bytes."""
        for piece in self.pieces(characters=True):
            if piece.split == "train":
                yield piece.text[:most]
                most -= len(piece.text)
                if most <= 0:
                    return

    def write(self, tokeniser: Tokeniser, journal: Journal) -> None:
        """Tokenise what is not in finished shards, and write it."""
        end = np.array([tokeniser.separator], f"<u{tokeniser.item_bytes}")
        total = max(1, sum(source.size for source in self.sources) // MEGABYTE)
        with ExitStack() as stack:
            bar = stack.enter_context(Progress(total, "prepare", unit="megabyte"))
            writers = {
                name: stack.enter_context(
                    SplitWriter(self.folder, name, self.shard_tokens, journal.entries[name], journal.add)
                )
                for name in SPLITS
            }
            for batch in self.batches(writers, bar, tokeniser.unit == "token"):
                for piece, ids in zip(batch, tokeniser.encode([piece.text for piece in batch]), strict=True):
                    ended = np.concatenate([ids, end]) if piece.last else ids
                    writers[piece.split].add(ended, piece.whole if piece.last else None)
            for writer in writers.values():
                writer.close()
            bar.step(total - bar.done)

    def batches(self, writers: dict[str, SplitWriter], bar: Progress, characters: bool) -> Iterator[list[Piece]]:
        """Pieces that no finished shard holds, some BATCH bytes of them at a time."""
        batch: list[Piece] = []
        size, read, begun = 0, 0.0, False
        for document in self.documents():
            share = document.weight / len(document.text)
            for piece in pieces_of(document, self.by_name, characters):
                if not writers[piece.split].skips():
                    if not begun:
                        begun = True
                        bar.resume_at(min(int(read) // MEGABYTE, bar.total - 1))
                    batch.append(piece)
                    size += len(piece.text)
                read += share * len(piece.text)
                if size >= BATCH:
                    yield batch
                    batch, size = [], 0
                    bar.step(max(0, min(int(read) // MEGABYTE, bar.total - 1) - bar.done))
        if batch:
            yield batch

    def index(self, tokeniser: Tokeniser, entries: Entries) -> dict[str, Any]:
        """The content of index.json."""
        splits = {
            name: {key: sum(shard[key] for shard in found) for key in shards.COUNTED}
            | {"shards": [{key: shard[key] for key in ("file", *shards.COUNTED, "digest")} for shard in found]}
            for name, found in entries.items()
        }
        index = {
            "kind": shards.KIND,
            "schema": shards.SCHEMA,
            "description": self.description(tokeniser, splits),
            "sources": list(self.names),
            "unit": tokeniser.unit,
            "vocabulary": tokeniser.vocabulary,
            "separator": tokeniser.separator,
            "item_bytes": tokeniser.item_bytes,
            "tokenizer": {"name": tokeniser.name, "digest": tokeniser.digest},
            "splits": splits,
            "environment": {n: v for n, v in records.environment().items() if n != "threads"},  # no id hangs on them
        }
        return index | {"digest": shards.digest_of_folder(self.folder, index)}

    def description(self, tokeniser: Tokeniser, splits: dict[str, dict[str, Any]]) -> str:
        """What there is, in words: for bytes those of a corpus that was not prepared."""
        documents = sum(split["documents"] for split in splits.values()) // (1 if self.by_name else len(SPLITS))
        words = " and ".join(dict.fromkeys(source.words for source in self.sources))
        tokens = sum(split["tokens"] for split in splits.values())
        unit = "bytes" if tokeniser.unit == "byte" else f"tokens of {tokeniser.name}"
        return f"{documents} {words}, {tokens:,} {unit}, {BY_NAME if self.by_name else BY_POSITION}"
