"""What capture has to know of a model before it runs: the model inside its wrappers, its limits, where its input goes.

Numbers come from the part of the config that is about text, and from the tables of the model itself where there are
some: a config may state more positions than can be used.
"""

import inspect
from numbers import Integral

import torch
from torch import nn

from geowidth.errors import UserError

POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


def unwrapped(model):
    """The model inside wrappers that leave its states as they are: compiled, data-parallel, with adapters (PEFT)."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}; needed: a torch module, as open_model gives")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if (compiled := model._modules.get("_orig_mod")) is not None:
            model = compiled
        elif isinstance(model, parallel):
            model = model.module
        elif callable(getattr(model, "get_base_model", None)):
            model = _without_adapters(model)
        else:
            return model


def _without_adapters(model):
    """The model that adapters were put into. Learned prompts stand before the text instead: they are refused."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError(
            f"{type(model).__name__} puts learned prompts before the text, whose states are no tokens of it; "
            "capture from its base model"
        )
    return model.get_base_model()


def text_config(model):
    """The config of the part that reads text: models of images and text keep theirs under text_config."""
    config = getattr(model, "config", None)
    nested = getattr(config, "text_config", None)
    return (
        config if nested is None or isinstance(nested, dict) else nested
    )  # a dict: an entry the config has no use for


def longest_context(model):
    """Tokens of the longest sequence a model takes, or None where neither its config nor a table states one.

    A table of learned positions may have rows that no token of a text reaches: RoBERTa's kinds count from the padding
    id + 1, OPT keeps an offset.
    """
    config, found = text_config(model), []
    for name in ("context", "max_position_embeddings", "n_positions"):
        length = getattr(config, name, None)
        if isinstance(length, Integral) and int(length) > 0:
            found.append(int(length))
            break
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in POSITION_TABLES and isinstance(module, nn.Embedding) and "vision" not in path:
            unused = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
            found.append(module.num_embeddings - unused)
    return min(found, default=None)


def vocabulary_of(model):
    """Number of token ids a model knows, or None where it does not say."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        table = None
    rows = getattr(table, "num_embeddings", None)
    config = text_config(model)
    for found in (rows, getattr(config, "vocabulary", None), getattr(config, "vocab_size", None)):
        if isinstance(found, Integral):
            return int(found)
    return None


def padding_id(model):
    """The padding token's id, or None. Some configs state it for the text part only, some for the whole."""
    for config in (text_config(model), getattr(model, "config", None)):
        pad = getattr(config, "pad_token_id", None)
        if isinstance(pad, int) and pad >= 0:
            return pad
    return None


def dimension_of(model):
    """Size of the residual stream by the config, or None."""
    config = text_config(model)
    return getattr(config, "hidden_size", None) or getattr(config, "dimension", None)


def dtype_of(model):
    """The dtype of a model's first floating-point parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def input_device(model):
    """Where token ids go: to the device a hook runs the embedding on, where weights are moved in only while they are
    needed (accelerate), else to the embedding's weights, else to the first weights that are anywhere."""
    try:
        embedding = [model.get_input_embeddings()]
    except (AttributeError, NotImplementedError):
        embedding = []
    for module in (*embedding, model):
        for part in module.modules() if isinstance(module, nn.Module) else ():
            if (device := _execution_device(part)) is not None:
                return torch.device(device)
        if (device := _weights_device(module)) is not None:
            return device
    return torch.device("cpu")


def _execution_device(module):
    hook = getattr(module, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        device = getattr(one, "execution_device", None)
        if isinstance(device, (int, str, torch.device)) and torch.device(device).type != "meta":
            return device
    return None


def _weights_device(module):
    tensors = (*module.parameters(), *module.buffers()) if isinstance(module, nn.Module) else ()
    return next((tensor.device for tensor in tensors if not tensor.is_meta), None)


def takes(module, name):
    """Whether a module's forward pass has an argument `name`; wrappers that pass anything on are looked through."""
    for function in (module.forward, type(module).forward):
        accepted = inspect.signature(function).parameters
        if name in accepted:
            return True
        if not any(one.kind is one.VAR_KEYWORD for one in accepted.values()):
            return False
    return False


def backbone_of(model):
    """The part of a model that capture runs: the backbone where a model has one: it computes no logits."""
    backbone = getattr(model, "base_model", None)
    return backbone if isinstance(backbone, nn.Module) else model


def forward(runner, ids, mask):
    """One pass without a cache, and with the mask if the model takes one."""
    given = {"attention_mask": mask, "use_cache": False}
    runner(ids, **{name: value for name, value in given.items() if takes(runner, name)})


def guard_tables(model):
    """Hooks on every embedding of a model that refuse rows it does not have, by name; returns their handles.

    What a config says of vocabularies and positions may be missing or wrong, and on a GPU a row that is not there ends
    the process.
    """
    return [
        module.register_forward_pre_hook(_refusing_rows(path, module))
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]


def _refusing_rows(path, table):
    def check(_module, arguments):
        ids = arguments[0] if arguments else None
        if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or not ids.numel():
            return
        least, most = int(ids.min()), int(ids.max())
        last, asked = table.num_embeddings - 1, least if least < 0 else most
        if not 0 <= asked <= last:
            raise UserError(
                f"{path} has rows 0 to {last} and was asked for row {asked}; give ids the model knows, and no more "
                "tokens at once than it has positions"
            )

    return check


def check_data(model):
    """Refuse a model with weights on the meta device that nothing brings in: torch reads memory at random for them."""
    name = _first_without_data(model, "", False)
    if name is not None:
        raise without_data(model, name)


def _first_without_data(module, path, helped):
    """Path of the first tensor on the meta device of a module that no hook fills; helped: whether one around it may."""
    hook = getattr(module, "_hf_hook", None)
    around = hook is not None and any(
        getattr(h, "place_submodules", False) for h in (hook, *getattr(hook, "hooks", ()))
    )
    helped = helped or around or bool(module._forward_pre_hooks) or (hook is None and "forward" in vars(module))
    if hook is None and not helped:
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in tensors:
            if tensor.is_meta:
                return path + name
    parts = (_first_without_data(part, f"{path}{name}.", helped) for name, part in module.named_children())
    return next((found for found in parts if found is not None), None)


def without_data(model, name="its states"):
    """The UserError for a model with a tensor on the meta device."""
    return UserError(
        f"{name} of {type(model).__name__} lies on the meta device, without data, and nothing brings it in for the "
        "forward pass; load the model, or offload it with accelerate"
    )
