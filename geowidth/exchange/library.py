"""Models of the package transformers from a folder: sizes checked before anything is built, tensors checked after.

No code from the folder is run. A folder that `geowidth export` wrote carries a modelling file; the classes are built
from the text that this version would write for its family instead.
"""

import re
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from geowidth.errors import UserError, choose
from geowidth.exchange.checkpoint import all_finite, folder_shapes
from geowidth.exchange.remote_code import CLASSES, modelling_file
from geowidth.exchange.shape import TAPERED
from geowidth.exchange.sizes import check_built, check_stated, mismatch
from geowidth.files import PathLike

OF_A_LAYER = re.compile(r"(^|\.)(layers?|h)\.\d+\.")
NO_WEIGHTS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")  # tables that old checkpoints hold


def need_transformers() -> None:
    """Raise a UserError where the package transformers is not installed."""
    if find_spec("transformers") is None:
        raise UserError("Hugging Face models need the package transformers; install it: pip install 'geowidth[hf]'")


def library_model(folder: PathLike, config: dict[str, Any], causal: bool = False) -> torch.nn.Module:
    """The backbone in a Hugging Face folder, in float32 and evaluation mode; with `causal` its language model.

    folder   path. config: the dict of its config.json. Missing, mis-shaped and non-finite tensors are refused, and a
             config that asks for more than the weight files hold, or than the machine has, within about a second
    """
    shapes = _checked_shapes(folder, config)
    with _quiet():
        model, found = _loaded(folder, config, shapes, causal)
    _check_loaded(folder, model, found)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def empty_model(folder: PathLike, config: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, tuple[int, ...]]]:
    """(the backbone in a Hugging Face folder, on the meta device and in evaluation mode; {name: shape} of the folder's
    tensors). Refused as by `library_model`, as far as headers tell."""
    shapes = _checked_shapes(folder, config)
    with _quiet(), _one_line(folder), torch.device("meta"):
        return _built(folder, config, False).eval(), shapes


def _checked_shapes(folder, config):
    """{name: shape} of a folder's tensors, config.json having been held against them."""
    need_transformers()
    if config.get("quantization_config") is not None:
        raise UserError(
            f"{folder}: config.json states a quantization_config, but weights of a folder are read unquantised; load "
            "it with transformers and give the model to geowidth.measure.capture"
        )
    try:
        shapes = folder_shapes(folder)
    except UserError as error:
        raise UserError(f"{folder} cannot be loaded: {error}") from error
    check_stated(config, shapes, f"{folder}/config.json")
    return shapes


def _loaded(folder, config, shapes, causal):
    with _one_line(folder):
        with torch.device("meta"):
            built = _built(folder, config, causal)
        check_built(built, shapes, folder)
        return type(built).from_pretrained(
            folder,
            config=built.config,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported with both shapes, and refused, afterwards
        )


@contextmanager
def _one_line(folder):
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a config.json that is out of order makes the library raise anything
        raise UserError(f"{folder} cannot be loaded: {' '.join(str(error).split())[:300]}") from error


def _built(folder, config, causal):
    """The model of a folder without its weights."""
    kind, ending = str(config.get("model_type")), "ForCausalLM" if causal else "Model"
    if kind.startswith(TAPERED):
        module = tapered_module(kind.removeprefix(TAPERED))
        model = next(value for name, value in vars(module).items() if _is_ours(module, value) and name.endswith(ending))
        return model(model.config_class.from_pretrained(folder, local_files_only=True))
    import transformers

    settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    return auto.from_config(settings, trust_remote_code=False)


def _is_ours(module, value):
    return isinstance(value, type) and value.__module__ == module.__name__


def tapered_module(family: str) -> ModuleType:
    """The module of a family's classes with one FFN width per layer, from the text that `geowidth export` writes."""
    choose("family of the export", family, list(CLASSES))
    name = f"{__name__}_{family}"
    if name not in sys.modules:
        text, _ = modelling_file(family, TAPERED + family, f"Tapered{CLASSES[family][0].removesuffix('Config')}")
        module = ModuleType(name)
        module.__file__ = __file__  # the library looks into the file of a model's class
        sys.modules[name] = module
        exec(compile(text, f"<modelling file of {family}>", "exec"), vars(module))
    return sys.modules[name]


@contextmanager
def _quiet():
    """Without the library's warnings and progress bars: what matters is raised or checked."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_loaded(folder, model, found):
    for name, stored, wanted in found["mismatched_keys"]:
        raise mismatch(folder, name, stored, wanted)
    # A pooler is made anew by from_pretrained when a file has none; it stands after the last layer and is not measured.
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)
    if missing:
        raise UserError(f"{folder}: tensor {missing[0]} is missing or has another shape than config.json asks for")
    extra = sorted(key for key in found["unexpected_keys"] if OF_A_LAYER.search(key) and not key.endswith(NO_WEIGHTS))
    if extra:
        raise UserError(f"{folder}: tensor {extra[0]} belongs to no part of a {type(model).__name__}")
    for key, parameter in model.named_parameters():
        if not all_finite(parameter.detach()):
            raise UserError(f"{folder}: tensor {key} holds NaN or infinity; expected finite numbers")
