"""Shards while they are written: aside, hashed on the way, renamed when full, and noted so that a killed process is
gone on with.

progress.json notes for every finished shard how many pieces of text (geowidth.text.pieces) ended in it, and how many
ids of the next piece it holds (`open`): where tokenising goes on.
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, TEXT
from geowidth.progress import tell
from geowidth.text.shards import KIND, NAME, blocks, mapped
from geowidth.text.splits import SPLITS

PROGRESS_FILE, PROGRESS_KIND, SCHEMA = "progress.json", f"{KIND}_progress", 1
COUNTS = ("tokens", "documents", "bytes", "pieces", "open")
_ENTRY = {"file": NAME, "digest": TEXT, **dict.fromkeys(COUNTS, COUNT)}
FORM = {"tokenizer?": TEXT, "shards": {name: [_ENTRY] for name in SPLITS}}

Entries = dict[str, list[dict[str, Any]]]


class Journal:
    """progress.json of a folder. tokenizer: the digest of the tokenizer the shards are made with; entries: the finished
    shards of each split."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / PROGRESS_FILE
        self.tokenizer: str | None = None
        self.entries: Entries = {name: [] for name in SPLITS}
        if files.exists(self.path):
            found = records.read_json(self.path, PROGRESS_KIND, SCHEMA)
            forms.check(self.path, found, FORM, "delete it to begin again")
            self.tokenizer, self.entries = found.get("tokenizer"), found["shards"]

    def begin(self, tokenizer: str | None, item_bytes: int) -> None:
        """Keep the shards that are whole and of this tokenizer; the others are made again."""
        for name, entries in self.entries.items():
            kept = entries if self.tokenizer == tokenizer else []
            whole = next((i for i, entry in enumerate(kept) if not self._is_whole(entry, item_bytes)), len(kept))
            if whole < len(entries):
                tell(f"{self.folder}: {entries[whole]['file']} is not as it was written; {name} goes on before it")
            self.entries[name] = entries[:whole]
        self.tokenizer = tokenizer
        self.write()

    def _is_whole(self, entry, item_bytes):
        found = hashlib.sha256()
        try:
            for block in blocks(mapped(self.folder / entry["file"], item_bytes, entry["tokens"])):
                found.update(block.data)
        except UserError:  # it is missing, or of another size
            return False
        return found.hexdigest() == entry["digest"]

    def add(self, split: str, entry: dict[str, Any]) -> None:
        """Note one more finished shard."""
        self.entries[split].append(entry)
        self.write()

    def write(self) -> None:
        record = {"kind": PROGRESS_KIND, "schema": SCHEMA, "tokenizer": self.tokenizer, "shards": self.entries}
        records.write_json(self.path, record)


class SplitWriter:
    """Writes the shards of one split, after those that are there. A context manager: what is begun and not finished
    when it ends leaves nothing behind."""

    def __init__(
        self, folder: Path, split: str, shard_tokens: int, entries: list[dict[str, Any]], note: Callable[..., object]
    ) -> None:
        self.folder, self.split, self.shard_tokens, self.note = folder, split, shard_tokens, note
        self.shards = len(entries)
        self.to_skip = sum(entry["pieces"] for entry in entries)
        self.open = entries[-1]["open"] if entries else 0  # ids of the next piece that are written already
        self.stack = contextlib.ExitStack()
        self.file: Any = None
        self._clear()

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def _clear(self):
        """Begin to count a shard."""
        self.count = dict.fromkeys(COUNTS, 0)
        self.digest = hashlib.sha256()

    def skips(self) -> bool:
        """Whether the piece that comes next is in a finished shard; asked once a piece, in order."""
        self.to_skip -= 1
        return self.to_skip >= 0

    def add(self, ids: np.ndarray, document_bytes: int | None) -> None:
        """Write the ids of one piece. document_bytes: of the document's text, if it ends with this piece."""
        while self.open < len(ids):
            part = ids[self.open : self.open + self.shard_tokens - self.count["tokens"]]
            self._write(part)
            self.open += len(part)
            if self.open < len(ids):
                self.close()
        self.open = 0
        self.count["pieces"] += 1
        if document_bytes is not None:
            self.count["documents"] += 1
            self.count["bytes"] += document_bytes
        if self.count["tokens"] == self.shard_tokens:
            self.close()

    @property
    def path(self) -> Path:
        """Of the shard that is written now."""
        return self.folder / f"{self.split}-{self.shards:05d}.bin"

    def _write(self, part):
        if self.file is None:
            self.file = self.stack.enter_context(files.replacing(self.path))
        try:
            self.file.write(part.data)
        except OSError as error:
            raise files.refusal(self.path, error, part.nbytes) from error
        self.digest.update(part.data)
        self.count["tokens"] += len(part)

    def close(self) -> None:
        """Bring the shard to its place and note it, if one was begun."""
        if self.file is None:
            return
        path, self.file = self.path, None
        self.stack.close()
        self.count["open"] = self.open
        self.note(self.split, {"file": path.name, "digest": self.digest.hexdigest(), **self.count})
        self.shards += 1
        self._clear()
