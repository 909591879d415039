"""Cases E1, E3, N1, N2, N4, N6, N16, N24, N30 and their kind: what capture reads off a model, a text and a folder."""

import json
import math

import pytest
import torch
from torch import nn

from geowidth import memory
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.measure.families import Family
from geowidth.measure.kept import KeptLayers
from geowidth.measure.opening import OpenedModel, open_model
from geowidth.measure.pipeline import MeasureSettings, measure
from geowidth.measure.states import capture, states_in
from geowidth.models import ModelConfig, TaperedTransformer, save_model
from geowidth.text.tokenizer import special_ids_around

TEXT = torch.randint(3, 97, (400,), generator=torch.Generator().manual_seed(5))
SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
FEW = ("--tokens", "24", "--geometries", "raw", "--statistics", "shift")


def made(kind, config=None, **changes):
    """A tiny model of transformers by class and config name, from a seed, in evaluation mode."""
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    config = config or kind.removesuffix("Model").removesuffix("ForCausalLM").removesuffix("ForMaskedLM") + "Config"
    torch.manual_seed(1)
    return getattr(transformers, kind)(getattr(transformers, config)(**changes)).eval()


def llama(**changes):
    return made("LlamaForCausalLM", **{**SIZES, "num_key_value_heads": 2, **changes})


def gemma3(**changes):
    text = {**SIZES, "hidden_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8, **changes}
    images = {"image_token_index": 96, "boi_token_index": 95, "eoi_token_index": 94, "mm_tokens_per_image": 4}
    text["pad_token_id"] = 0
    return made("Gemma3ForConditionalGeneration", "Gemma3Config", text_config=text, vision_config=VISION, **images)


def folder_of(model, path, vocabulary=None, processor=None, added=()):
    """`model` saved with a tokenizer whose tokens are the 256 bytes, or those of `vocabulary`."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = vocabulary or {letter: index for index, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=tokens, merges=[]))
    if vocabulary is None:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.add_tokens(list(added))
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def corpus(tmp_path):
    """A file of 9,000 bytes of text that does not repeat."""
    path = tmp_path / "text.txt"
    path.write_text(" ".join(str(number * number) for number in range(1500)))
    return path


def refusal(capsys, *arguments):
    """The one line that `geowidth measure` ends with, exit code 2 checked."""
    capsys.readouterr()
    assert main(["measure", *map(str, arguments), *FEW]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "Traceback" not in told
    return told


def same(one, other):
    return torch.equal(one.before, other.before) and torch.equal(one.after, other.after)


class Block(nn.Module):
    """x + ffn(norm(x)), the ffn's output wrapped as asked."""

    def __init__(self, wrap):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), Wrapped(wrap)

    def forward(self, x):
        return x + states_in(self.up, self.up(self.norm(x)))


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.down, self.wrap = nn.Linear(8, 8), wrap

    def forward(self, x):
        return self.wrap(self.down(torch.tanh(x)))


class Toy(nn.Module):
    def __init__(self, wrap=lambda h: h, mixes=False):
        super().__init__()
        torch.manual_seed(2)
        self.config = type("Config", (), {"context": 5, "hidden_size": 8, "vocab_size": 97})
        self.embedding = nn.Embedding(97, 8)
        self.blocks = nn.ModuleList(Block(wrap) for _ in range(2))
        self.mixes = mixes

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.mixes:  # every token sees all others, padding too
            x = x + x.mean(1, keepdim=True)
        for block in self.blocks:
            x = block(x)
        return x


TOY = Family("toy", layers=("blocks",), before="norm:input", added="up:output", down="up.down", projections=2)


# E1, E3: rows are tokens


def test_E1_wrapped_outputs_give_the_same_rows():
    plain = capture(Toy(), TEXT[:10], None, skip=0, family=TOY)
    for wrap in (lambda h: (h,), lambda h: {"hidden_states": h}, lambda h: [h, None]):
        assert same(capture(Toy(wrap), TEXT[:10], None, skip=0, family=TOY), plain)
    assert plain.before.shape == (2, 10, 8)
    assert capture(Toy(), TEXT[:5], None, skip=0, family=TOY).tokens == 5


@pytest.mark.parametrize("wrap", [lambda h: None, lambda h: "h", lambda h: (None, h), lambda h: {"a": h, "b": h}])
def test_E1_unknown_outputs_are_named(wrap):
    with pytest.raises(UserError, match="Wrapped gave a (NoneType|str|tuple|dict)"):
        capture(Toy(wrap), TEXT[:10], None, family=TOY)


def test_E1_a_tuple_led_by_something_of_another_size_is_refused():
    """Router logits (tokens, experts) are counted by token as well, but are no states."""
    model = Toy()
    model.blocks[0].up.register_forward_hook(lambda m, i, o: (o[..., :3].reshape(-1, 3), o))
    model.blocks[0].forward = lambda x: x + model.blocks[0].up(model.blocks[0].norm(x))[1]
    with pytest.raises(UserError, match=r"layer 0 of Toy: states of shapes .*\(10, 3\)"):
        capture(model, TEXT[:10], None, skip=0, family=TOY)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_E3_padding_is_no_data(name, batch):
    """Sequences of 3 and 5 tokens: 8 rows with their ids, whatever the padding and the batch."""
    sizes = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = llama(pad_token_id=0) if name == "llama" else made("GPT2LMHeadModel", "GPT2Config", **sizes)
    alone = capture(model, [TEXT[:3], TEXT[10:15]], None, skip=0, batch=1)
    for side in ("left", "right"):
        ids, mask = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5)
        for row, part in enumerate((TEXT[:3], TEXT[10:15])):
            place = slice(0, len(part)) if side == "right" else slice(5 - len(part), 5)
            ids[row, place], mask[row, place] = part, 1
        found = capture(model, ids, None, mask=mask, skip=0, batch=batch)
        assert found.tokens == 8 and torch.equal(found.token_ids, alone.token_ids)
        torch.testing.assert_close(found.after, alone.after, rtol=1e-5, atol=1e-5)
        assert capture(model, ids, None, mask=mask).tokens == 6
    assert capture(model, ids, None, mask=torch.zeros(2, 5)).before.shape == (2, 0, 32)


def test_E3_padding_without_a_mask_is_refused_where_the_config_of_the_text_names_it():
    for model in (llama(pad_token_id=0), gemma3()):
        with pytest.raises(UserError, match="padding token 0 and no mask came"):
            capture(model, torch.tensor([[4, 5, 0], [4, 5, 6]]), None)


def test_E3_a_model_that_takes_no_mask_never_sees_padding():
    encoder = Family(**{**vars(TOY), "causal": False})
    ragged = [TEXT[:3], TEXT[10:15]]
    alone, together = (capture(Toy(mixes=True), ragged, None, skip=0, batch=n, family=encoder) for n in (1, 2))
    assert same(alone, together)


def test_E1_a_layer_that_runs_twice_is_refused():
    """Shared modules would leave the states of their last run for all layers."""
    whole, norm, mlp = llama(), llama(), llama()
    whole.model.layers[1] = whole.model.layers[0]
    norm.model.layers[1].post_attention_layernorm = norm.model.layers[0].post_attention_layernorm
    mlp.model.layers[1].mlp = mlp.model.layers[0].mlp
    for model in (whole, norm, mlp):
        with pytest.raises(UserError, match="runs more than once in one pass"):
            capture(model, TEXT, 20, context=16)


# N1, N2: the longest text


def roberta(kind="Roberta", **changes):
    return made(f"{kind}ForMaskedLM", **{**SIZES, "max_position_embeddings": 18, "pad_token_id": 1, **changes})


@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta", "Camembert"])
def test_N1_positions_that_count_from_the_padding(kind):
    model = roberta(kind)
    found = capture(model, TEXT, 20)
    assert found.before.shape == (2, 20, 32) and found.settings["context"] == 16
    assert same(found, capture(model, TEXT, 20, context=16))
    for context in (17, 18, 600):
        with pytest.raises(UserError, match=f"context is {context}; .* takes at most 16 tokens"):
            capture(model, TEXT, 20, context=context)
    with pytest.raises(UserError, match="a sequence has 17 tokens; .* takes at most 16"):
        capture(model, [TEXT[:17]], None)
    assert capture(roberta(kind, pad_token_id=0), TEXT, 20).settings["context"] == 17


@pytest.mark.parametrize("name", ["gpt2", "opt", "bert"])
def test_N1_other_tables_of_positions(name):
    """OPT's table has two rows more than the config says, and all positions of the config can be used."""
    model = {
        "gpt2": lambda: made("GPT2Model", vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=18),
        "opt": lambda: made("OPTModel", **{**SIZES, "max_position_embeddings": 18}, ffn_dim=48, word_embed_proj_dim=32),
        "bert": lambda: made("BertModel", **{**SIZES, "max_position_embeddings": 18}),
    }[name]()
    assert capture(model, TEXT, 20).settings["context"] == 18
    with pytest.raises(UserError, match="context is 19; .* takes at most 18"):
        capture(model, TEXT, 20, context=19)


def test_N1_from_the_command_line(tmp_path, corpus, capsys):
    folder = folder_of(roberta(vocab_size=256), tmp_path / "roberta")
    for context in (17, 18):
        told = refusal(capsys, folder, "--corpus", corpus, "--context", context, "--out", tmp_path / "w.json")
        assert "takes at most 16 tokens" in told and not (tmp_path / "w.json").exists()
    assert main(["measure", str(folder), "--corpus", str(corpus), "--out", str(tmp_path / "w.json"), *FEW]) == 0
    assert WorkProfile.read(tmp_path / "w.json").settings["clouds"]["context"] == 16


def test_N1_a_text_shorter_than_the_model_takes_is_one_window():
    model = llama(max_position_embeddings=8192)
    assert capture(model, TEXT, 20).settings["context"] == 400
    endless = Toy()
    endless.config = type("Config", (), {"hidden_size": 8})
    with pytest.raises(UserError, match="names no longest sequence; give context="):
        capture(endless, TEXT, 20, family=TOY)
    assert capture(endless, TEXT, 20, context=16, family=TOY).tokens == 20


def test_N2_sizes_under_text_config(tmp_path, corpus):
    model = gemma3()
    found = capture(model, TEXT.clamp(max=90), 20)
    assert found.before.shape == (3, 20, 48) and found.settings["context"] == 64 and found.widths == (48,) * 3
    assert capture(model, torch.ones(2, 3).long(), None, mask=torch.zeros(2, 3)).before.shape == (3, 0, 48)
    folder = folder_of(gemma3(vocab_size=256), tmp_path / "gemma3")
    for context in (("--context", "16"), ()):
        out = ["--corpus", str(corpus), "--out", str(tmp_path / "w.json")]
        assert main(["measure", str(folder), *out, *context, *FEW]) == 0
        profile = WorkProfile.read(tmp_path / "w.json")
        assert profile.layers == 3 and profile.widths == (48,) * 3 and profile.model_dimension == 48


def test_N2_a_model_without_a_stated_limit_takes_the_context_that_is_asked_for():
    endless = Toy()
    endless.config = type("Config", (), {"hidden_size": 8})
    opened = OpenedModel(endless, {})
    assert opened.longest is None
    text = torch.arange(900).to(torch.uint8)
    assert {len(row) for row in opened.sequences(text, 300)} == {300}
    assert {len(row) for row in opened.sequences(text)} == {256}


# N4: widths


class Packed(nn.Module):
    """A quantised layer: packed weight, what it computes kept aside."""

    def __init__(self, linear, **stated):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(4, linear.out_features, dtype=torch.int32))
        self.kept = [linear]
        for name, value in stated.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.kept[0](x)


class PackedWeight(nn.Parameter):
    """Two values of 4 bits a byte, as bitsandbytes keeps them."""


def with_down(change, **sizes):
    model = llama(hidden_size=64, intermediate_size=128, **sizes)
    for layer in model.model.layers:
        layer.mlp.down_proj = change(layer.mlp.down_proj)
    return model


def four_bit(linear, dtype=torch.uint8):
    layer = Packed(linear, in_features=linear.in_features, out_features=linear.out_features)
    layer.weight = PackedWeight(torch.zeros(64 * 64, 1).to(dtype), requires_grad=False)
    return layer


def test_N4_widths_are_those_of_the_computation():
    plain = capture(with_down(lambda linear: linear), TEXT, 20, context=16)
    assert plain.widths == (128, 128)
    for change in (
        four_bit,
        lambda linear: four_bit(linear, torch.bfloat16),
        lambda linear: Packed(linear, in_features=128),
        lambda linear: Packed(linear, infeatures=128, outfeatures=64),
    ):
        found = capture(with_down(change), TEXT, 20, context=16)
        assert found.widths == (128, 128) and same(found, plain)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of torch.ao
def test_N4_dynamic_quantisation():
    model = torch.ao.quantization.quantize_dynamic(with_down(lambda x: x), {nn.Linear}, dtype=torch.qint8)
    assert capture(model, TEXT, 20, context=16).widths == (128, 128)


def test_N4_bitsandbytes():
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def change(linear):
        layer = bitsandbytes.nn.Linear4bit(128, 64, bias=False, compute_dtype=torch.float32)
        layer.load_state_dict(linear.state_dict())
        return layer.to("cpu")

    model = with_down(change)
    assert [capture(model, TEXT, 20, context=16).widths for _ in range(2)] == [(128, 128)] * 2


def test_N4_a_width_that_cannot_be_told_is_refused_before_the_model_runs():
    for change in (
        Packed,
        lambda linear: Packed(linear, in_features="128"),
        lambda linear: nn.Identity(),
        lambda linear: nn.LazyLinear(64, bias=False),
    ):
        model = with_down(change)
        model.forward = model.model.forward = lambda *a, **k: pytest.fail("the model ran")
        with pytest.raises(
            UserError, match="down-projection of layer 0 is a (Packed|Identity|LazyLinear) that neither"
        ):
            capture(model, TEXT, 20, context=16)


def test_N4_weights_cut_by_hand_go_before_the_stated_size():
    model = llama()
    for layer, width in zip(model.model.layers, (20, 31), strict=True):
        mlp = layer.mlp
        for part in (mlp.gate_proj, mlp.up_proj):
            part.weight = nn.Parameter(part.weight[:width].detach())
        mlp.down_proj.weight = nn.Parameter(mlp.down_proj.weight[:, :width].detach())
    assert capture(model, TEXT, 20, context=16).widths == (20, 31)


class Adapted(nn.Module):
    """A layer with a low-rank path beside it, as PEFT builds it."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer

    def forward(self, x):
        return self.base_layer(x)


def test_N4_layers_inside_adapters():
    model = llama()
    plain = capture(model, TEXT, 20, context=16)
    for layer in model.model.layers:
        layer.mlp.down_proj = Adapted(layer.mlp.down_proj)
    found = capture(model, TEXT, 20, context=16)
    assert found.widths == (48, 48) and same(found, plain)
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["down_proj", "q_proj"]))
    assert same(capture(wrapped, TEXT, 20, context=16), plain)
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UserError, match="learned prompts before the text"):
        capture(peft.get_peft_model(llama(), prompts), TEXT, 20, context=16)


# N6: where the input goes


class Hook:
    """What accelerate's hook does: weights lie on meta and are brought in for the forward pass."""

    def __init__(self, module, device="cpu"):
        self.execution_device, self.module = device, module
        self.weights = {name: p.detach().clone() for name, p in module.named_parameters(recurse=False)}
        self.old = module.forward
        module._hf_hook, module.forward = self, self.forward
        self.place("meta")

    def place(self, device):
        for name, value in self.weights.items():
            self.module._parameters[name] = nn.Parameter(value.to(device), requires_grad=False)

    def forward(self, *arguments, **keywords):
        self.place(self.execution_device)
        try:
            return self.old(*arguments, **keywords)
        finally:
            self.place("meta")


def test_N6_offloaded_weights():
    plain = capture(llama(), TEXT, 20, context=16)
    model = llama()
    for module in model.modules():
        if module._parameters:
            Hook(module)
    assert all(parameter.is_meta for parameter in model.parameters())
    found = capture(model, TEXT, 20, context=16)
    assert same(found, plain) and found.widths == plain.widths
    assert all(parameter.is_meta for parameter in model.parameters())


def test_N6_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    plain = capture(llama(), TEXT, 20, context=16)
    parts = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "disk"}
    parts |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    for offload in (
        lambda model: accelerate.cpu_offload(model, execution_device="cpu"),
        lambda model: accelerate.disk_offload(model, tmp_path / "whole", execution_device="cpu"),
        lambda model: accelerate.dispatch_model(model, parts, "cpu", offload_dir=tmp_path / "some", force_hooks=True),
    ):
        assert same(capture(offload(llama()), TEXT, 20, context=16), plain)


@pytest.mark.parametrize("part", ["model", "model.layers.1.mlp", "model.norm"])
def test_N6_weights_without_data_are_refused(part):
    """Torch multiplies by a matrix on the meta device without a word, and gives what lies in memory."""
    model = llama()
    model.get_submodule(part).to("meta")
    with pytest.raises(UserError, match=f"{part}.*lies on the meta device"):
        capture(model, TEXT, 20, context=16)


def test_N6_wrappers_are_looked_through():
    plain, model = capture(llama(), TEXT, 20, context=16), llama()
    parallel = nn.DataParallel(torch.compile(model, backend="eager"))
    assert same(capture(parallel, TEXT, 20, context=16), plain)
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    assert same(capture(model.train(), TEXT, 20, context=16), plain) and model.training
    for other in (None, "smollm2", {"model": model}):
        with pytest.raises(UserError, match="needed: a torch module"):
            capture(other, TEXT, 20)


# N16, N24: what cannot be measured says why, and the way out leads somewhere


def pruned_qwen2(path):
    model = made(
        "Qwen2ForCausalLM",
        **{**SIZES, "vocab_size": 256, "intermediate_size": 64, "num_hidden_layers": 3},
        num_key_value_heads=2,
    )
    for layer, width in zip(model.model.layers, (64, 41, 24), strict=True):
        mlp = layer.mlp
        for part in (mlp.gate_proj, mlp.up_proj):
            part.weight = nn.Parameter(part.weight[:width].detach().clone())
        mlp.down_proj.weight = nn.Parameter(mlp.down_proj.weight[:, :width].detach().clone())
    return folder_of(model, path), model


def test_N16_a_pruned_checkpoint(tmp_path, corpus, capsys):
    """Refused by tensor and shapes; exported as advised it is measured, with the states of the pruned model."""
    folder, model = pruned_qwen2(tmp_path / "pruned")
    told = refusal(capsys, folder, "--corpus", corpus, "--out", tmp_path / "w.json")
    assert "layers.1.mlp" in told and "[41, 32] for [64, 32]" in told and "export --from-checkpoint" in told
    assert main(["export", "--from-checkpoint", str(folder), "--out", str(tmp_path / "tapered")]) == 0
    assert (
        main(["measure", str(tmp_path / "tapered"), "--corpus", str(corpus), "--out", str(tmp_path / "w"), *FEW]) == 0
    )
    assert WorkProfile.read(tmp_path / "w").widths == (64, 41, 24)
    opened = open_model(tmp_path / "tapered").model.to("cpu")
    assert same(capture(opened, TEXT, 20, context=16), capture(model, TEXT, 20, context=16))


def test_N16_the_code_in_an_exported_folder_is_not_run(tmp_path):
    folder, _ = pruned_qwen2(tmp_path / "pruned")
    assert main(["export", "--from-checkpoint", str(folder), "--out", str(tmp_path / "tapered")]) == 0
    (tmp_path / "tapered" / "modeling_tapered.py").write_text("raise SystemExit('code of a folder was run')\n")
    assert open_model(tmp_path / "tapered").model.config.intermediate_sizes == [64, 41, 24]


@pytest.mark.parametrize("family, changes", [("qwen3", {"head_dim": 8}), ("gemma2", {"head_dim": 8}), ("phi3", {})])
def test_N16_other_families_with_widths_of_their_own(tmp_path, family, changes):
    """A layer of width 0 as well: every class that `geowidth export` writes can be measured."""
    from geowidth.exchange.library import tapered_module

    pytest.importorskip("transformers", reason="the extra hf is not installed")
    module = tapered_module(family)
    kinds = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    config = next(kind for kind in kinds if kind.__name__.endswith("Config"))
    model = next(kind for kind in kinds if kind.__name__.endswith("ForCausalLM"))
    sizes = {**SIZES, "vocab_size": 256, "pad_token_id": 0, "num_key_value_heads": 2, "num_hidden_layers": 3}
    torch.manual_seed(0)
    built = model(config(intermediate_sizes=[48, 0, 20], **sizes, **changes)).eval()
    if family == "gemma2":  # its norm after the FFN stands in a module that a layer of width 0 keeps
        assert capture(built, TEXT, 20, context=16).widths == (48, 0, 20)
    opened = open_model(folder_of(built, tmp_path / family)).model.to("cpu")
    found = capture(opened, TEXT, 20, context=16)
    assert found.widths == (48, 0, 20) and same(found, capture(built, TEXT, 20, context=16))


def test_N24_families_that_are_not_known(tmp_path, capsys):
    """By the config alone: no weights, no context and no tokenizer are asked for first."""
    for index, (kind, text) in enumerate(
        (("mamba", None), ("t5", None), ("falcon", None), ("modernbert", None), ("bamba", None), ("bloom", None))
        + (("mpnet", None), ("whisper", None), ("llava", {"model_type": "llama", **SIZES}), (None, None), (7, None))
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind, "text_config": text}))
        for context in ((), ("--context", 16)):
            told = refusal(capsys, folder, *context, "--out", tmp_path / "w.json")
            assert f"model_type is {str(kind)!r}; known: bert, camembert" in told


@pytest.mark.parametrize("kind", ["Mamba", "T5", "Falcon", "Bloom", "MPNet"])
def test_N24_from_python(kind):
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"vocab_size": 97, "d_model": 32, "d_ff": 48, "num_layers": 2, "d_kv": 8} if kind == "T5" else sizes
    with pytest.raises(UserError, match=f"model_type '{kind.lower()}'.*known: bert.*llama"):
        capture(made(f"{kind}Model", **sizes), TEXT, 20)


def test_a_family_that_needs_transformers_says_so(tmp_path, monkeypatch):
    from geowidth.exchange import library
    from geowidth.measure import opening

    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    gpt2 = folder_of(made("GPT2Model", vocab_size=256, n_embd=32, n_layer=2, n_head=4), tmp_path / "gpt2")
    ours = folder_of(llama(vocab_size=256), tmp_path / "llama")
    for module in (opening, library):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="need the package transformers; install it"):
        open_model(gpt2)
    assert isinstance(open_model(ours).model, TaperedTransformer)


# N30 and what else is asked of a tokenizer


def test_N30_special_tokens_are_asked_for_directly(tmp_path):
    """Four letters, no unknown token: nothing that could be spelled as a probe."""
    processors = pytest.importorskip("tokenizers").processors
    letters = {"[CLS]": 0, "[SEP]": 1, "A": 2, "C": 3, "G": 4, "T": 5}
    template = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    opened = open_model(folder_of(made("BertModel", **SIZES), tmp_path / "bert", letters, template))
    assert (opened.prefix, opened.suffix) == ((0,), (1,))
    text = torch.frombuffer(bytearray(b"ACGT" * 30), dtype=torch.uint8)
    rows = opened.sequences(text, 12)
    assert len(rows) == 12 and all(row.tolist() == [0, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 1] for row in rows[::2])


def test_N30_every_kind_of_processor():
    processors = pytest.importorskip("tokenizers").processors
    tokenizers = pytest.importorskip("tokenizers")
    tokens = {"[CLS]": 0, "[SEP]": 1, "A": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=tokens, merges=[]))
    special = [("[CLS]", 0), ("[SEP]", 1), ("A", 2)]

    def template(single):
        return processors.TemplateProcessing(single=single, special_tokens=special)

    for processor in (
        template("[CLS] $A [SEP]"),
        template("$A [SEP]"),
        template("A $A"),  # a prefix that is also a token of the text
        template("[CLS] [CLS] $A"),
        template("$A"),
        processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)),
        processors.RobertaProcessing(("[SEP]", 1), ("[CLS]", 0)),
        processors.ByteLevel(),
        processors.Sequence([processors.ByteLevel(), template("[CLS] $A")]),
    ):
        tokenizer.post_processor = processor
        prefix, suffix = special_ids_around(json.loads(tokenizer.to_str())["post_processor"])
        assert [*prefix, 2, 2, *suffix] == tokenizer.encode("AA").ids
        assert len(prefix) + len(suffix) == tokenizer.num_special_tokens_to_add(False)
    assert special_ids_around(None) == ((), ())
    for bad in ({"type": "Odd"}, json.loads(_with(tokenizer, template("$A [SEP] $A")))["post_processor"]):
        with pytest.raises(UserError, match="tokenizer.json"):
            special_ids_around(bad)


def _with(tokenizer, processor):
    tokenizer.post_processor = processor
    return tokenizer.to_str()


def test_models_of_token_ids_are_not_fed_bytes(tmp_path, corpus, capsys):
    for vocabulary in (97, 255, 257, 512):
        save_model(TaperedTransformer(ModelConfig(vocabulary, 2, 16, 2, (8, 8), 16)), tmp_path / str(vocabulary))
        told = refusal(capsys, tmp_path / str(vocabulary), "--corpus", corpus, "--out", tmp_path / "w.json")
        assert f"{vocabulary} token ids and no tokenizer.json" in told
    save_model(TaperedTransformer(ModelConfig(256, 2, 16, 2, (8, 8), 16)), tmp_path / "bytes")
    assert main(["measure", str(tmp_path / "bytes"), "--corpus", str(corpus), "--out", str(tmp_path / "w"), *FEW]) == 0
    folder = tmp_path / "without"
    llama(vocab_size=256).save_pretrained(folder)
    assert "no tokenizer.json" in refusal(capsys, folder, "--corpus", corpus, "--out", tmp_path / "w.json")


@pytest.mark.parametrize("ids, bad", [([3, 97], 97), ([-1, 3], -1), ([3, 2**40], 2**40)])
def test_token_ids_beyond_the_embedding(ids, bad):
    """By sequence and position, for texts, batches and lists, before the model runs; a model of our own too."""
    own = TaperedTransformer(ModelConfig(97, 2, 16, 2, (8, 8), 64))
    for model in (llama(), own, gemma3() if bad < 0 else llama()):
        model.forward = lambda *a, **k: pytest.fail("the model ran")
        row = torch.tensor([4, 5, *ids, 6])
        position = 2 + ids.index(bad)
        for given, place in (
            ([TEXT[:5], row], f"sequence 1, position {position}"),
            (torch.stack([TEXT[:5], row]), f"sequence 1, position {position}"),
            (torch.cat([TEXT[:20], row]), f"sequence {(20 + position) // 5}, position {(20 + position) % 5}"),
        ):
            with pytest.raises(UserError, match=rf"token id {bad} \({place}\).*use the tokenizer"):
                capture(model, given, None, context=5)


def test_rows_that_no_config_speaks_of_are_refused_by_the_table():
    """A family of one's own: neither vocabulary nor positions are stated, and no index error comes out."""
    model = Toy()
    model.config = type("Config", (), {"hidden_size": 8})
    with pytest.raises(UserError, match="embedding has rows 0 to 96 and was asked for row 100"):
        capture(model, [torch.tensor([3, 4, 100])], None, family=TOY)
    model.positions = nn.Embedding(5, 8)
    plain = model.forward
    model.forward = lambda tokens: plain(tokens) + model.positions(torch.arange(tokens.shape[1]))
    with pytest.raises(UserError, match="positions has rows 0 to 4 and was asked for row 5"):
        capture(model, [TEXT[:6]], None, family=TOY)
    assert not any(len(module._forward_pre_hooks) for module in model.modules())
    assert capture(model, [TEXT[:5]], None, family=TOY).tokens == 4


def test_tokens_added_beyond_the_embedding_matter_only_where_the_text_has_them(tmp_path, capsys):
    folder = folder_of(llama(vocab_size=256), tmp_path / "llama", added=["<new>"])
    plain, odd = tmp_path / "plain.txt", tmp_path / "odd.txt"
    plain.write_text(" ".join(str(number * number) for number in range(1500)))
    odd.write_text(plain.read_text().replace("9", "<new>"))
    arguments = ["--context", "16", "--out", str(tmp_path / "w.json")]
    assert main(["measure", str(folder), "--corpus", str(plain), *arguments, *FEW]) == 0
    told = refusal(capsys, folder, "--corpus", odd, *arguments)
    assert "token id 256" in told and "knows ids 0 to 255" in told


# Sizes that a config states


CONFIGS = {
    "layers": ({"num_hidden_layers": 50_000}, "num_hidden_layers is 50000, but the weight files hold 2"),
    "layers beyond": ({"num_hidden_layers": 10**30}, "num_hidden_layers is 1000"),
    "one layer more": ({"num_hidden_layers": 3}, "num_hidden_layers is 3"),
    "dimension": ({"hidden_size": 2**20}, r"embed_tokens.weight .* \[256, 32\] for \[256, 1048576\]"),
    "dimension beyond": ({"hidden_size": 2**62}, "hidden_size is 4611686018427387904; allowed"),
    "vocabulary": ({"vocab_size": 2**31}, r"embed_tokens.weight .* \[256, 32\] for \[2147483648, 32\]"),
    "width": ({"intermediate_size": 2**33}, r"mlp.* for \[8589934592, 32\]"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0; allowed"),
    "no key heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0; allowed"),
    "a fraction": ({"hidden_size": 32.5}, "hidden_size is 32.5; allowed"),
    "a string": ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'; allowed"),
    "true": ({"vocab_size": True}, "vocab_size is True; allowed"),
    "negative": ({"intermediate_size": -1}, "intermediate_size is -1; allowed"),
    "null": ({"hidden_size": None}, "hidden_size is None; allowed"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "labels": ({"num_labels": 2**31}, "num_labels is 2147483648"),
    "layers of pictures": (
        {"vision_config": {"num_hidden_layers": 50_000}},
        "vision_config: num_hidden_layers is 50000",
    ),
    "no text": ({"text_config": 3}, "text_config is a int"),
}


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return folder_of(llama(vocab_size=256), tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("name", CONFIGS)
def test_config_sizes_are_checked_before_anything_is_built(stock, tmp_path, name, monkeypatch):
    changes, message = CONFIGS[name]
    config = json.loads((stock / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    for other in ("tokenizer.json", "model.safetensors"):
        (tmp_path / other).symlink_to(stock / other)
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", lambda *a, **k: pytest.fail("weights were loaded"))
    with pytest.raises(UserError, match=message):
        open_model(tmp_path)


def test_config_sizes_of_tables_and_of_the_part_that_reads_text(tmp_path):
    gpt2 = made("GPT2Model", vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=18)
    for index, (model, where, changes, message) in enumerate(
        (
            (gpt2, None, {"n_positions": 2**31}, "n_positions is 2147483648, but the table of positions has 18 rows"),
            (gpt2, None, {"n_layer": 50_000}, "n_layer is 50000"),
            (gemma3(vocab_size=256), "text_config", {"num_hidden_layers": 50_000}, "text_config: num_hidden_layers is"),
        )
    ):
        folder = folder_of(model, tmp_path / str(index))
        config = json.loads((folder / "config.json").read_text())
        (config[where] if where else config).update(changes)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=message):
            open_model(folder)


def test_an_empty_text_config_changes_nothing(stock, tmp_path):
    config = json.loads((stock / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": {}}))
    for other in ("tokenizer.json", "model.safetensors"):
        (tmp_path / other).symlink_to(stock / other)
    assert open_model(tmp_path).longest == 64


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_layers_of_the_files_that_the_config_leaves_out_are_refused(tmp_path, name):
    model = {
        "gpt2": lambda: made("GPT2Model", vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=18),
        "llama": llama,
        "bert": lambda: made("BertModel", **SIZES),
    }[name]()
    folder = folder_of(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["n_layer" if name == "gpt2" else "num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps({**config, "layer_types": None}))
    with pytest.raises(UserError, match=r"(layers?|h)\.1\..* belongs to no part"):
        open_model(folder)


def test_models_larger_than_the_machine_are_refused(stock, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(UserError, match="in float32 takes .* bytes; this machine has 1,000 free"):
        open_model(stock)


# Numbers and texts that make no sense


@pytest.mark.parametrize(
    "given",
    [
        {"context": 0}, {"context": 1}, {"context": 2.5}, {"context": "16"}, {"context": -3},
        {"tokens": 0}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": True},
        {"batch": 0}, {"batch": None}, {"skip": -1}, {"tail": -1}, {"windows": 0}, {"seed": -1}, {"seed": 2**70},
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_named(given):
    with pytest.raises(UserError, match=f"{next(iter(given))} is .*allowed: whole numbers from"):
        capture(llama(), TEXT, **{"tokens": 5, "context": 16, **given})


@pytest.mark.parametrize(
    "text, message",
    [
        (TEXT[:0], "the text has 0 tokens"),
        (TEXT[:1], "the text has 1 tokens"),
        (TEXT.float(), "holds float32; token ids are integers"),
        (TEXT > 40, "holds bool"),
        (None, "is a NoneType"),
        ("some text", "is a str"),
        ({"input_ids": TEXT}, "is a dict"),
        ([1, 2, 3], "sequence 0 has shape"),
        ([TEXT[:4], None], "sequence 1 is a NoneType"),
        ([TEXT[:4].view(2, 2)], r"sequence 0 has shape \(2, 2\)"),
        (TEXT.to("meta"), "meta device"),
        (TEXT[:8].view(2, 2, 2), r"shape \(2, 2, 2\)"),
        ([TEXT[:20]], "a sequence has 20 tokens; context is at most 16"),
    ],
)
def test_texts_that_are_none_are_named(text, message):
    with pytest.raises(UserError, match=message):
        capture(llama(), text, 5, context=16)


def test_texts_and_masks_of_many_kinds_are_read_alike():
    model = llama()
    plain = capture(model, TEXT, 20, context=16)
    for text in (TEXT.numpy(), TEXT.to(torch.uint8), TEXT.int(), TEXT.to(torch.uint16), TEXT.numpy().astype(">i8")):
        found = capture(model, text, 20, context=16)
        assert same(found, plain) and torch.equal(found.token_ids, plain.token_ids)
    rows = TEXT[:15].view(3, 5)
    batch = capture(model, rows, None)
    assert same(capture(model, rows.tolist(), None), batch)
    assert same(capture(model, rows, None, mask=rows > 0), batch)
    assert same(capture(model, rows, None, mask=[[1] * 5] * 3, batch=100), batch)
    with pytest.raises(UserError, match="leave the mask out"):
        capture(model, TEXT, 20, mask=torch.ones(400), context=16)
    with pytest.raises(UserError, match=r"1000 tokens asked for, but the text has at most 375"):
        capture(model, TEXT, 1000, context=16)


@pytest.mark.parametrize("given", [{"tokens": 3}, {"tokens": None}, {"context": 1}, {"context": 0}, {"windows": 0}])
def test_measure_checks_its_numbers_before_it_opens_a_model(tmp_path, given):
    with pytest.raises(UserError, match=f"{next(iter(given))} is "):
        measure(tmp_path / "nothing here", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"neighbours": 3.5}, {"neighbours": "20"}, {"bootstrap": None}, {"seed": True}, {"radius": "1"},
        {"radius": math.nan}, {"radius": None}, {"geometries": None}, {"geometries": [["raw"]]}, {"statistics": ()},
    ],
)  # fmt: skip
def test_settings_of_the_wrong_type_are_named(given):
    name = {"geometries": "geometry", "statistics": "statistic"}.get(next(iter(given)), next(iter(given)))
    with pytest.raises(UserError, match=f"{name}.* is "):
        MeasureSettings(**given)


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"layer": -1, "result": {}}', '{"layer": 1, "result": 3}', "\0\xff"]
)
def test_a_spoiled_file_of_kept_layers_is_measured_again(tmp_path, line):
    good = KeptLayers(tmp_path / "work.json", "print")
    good.add(0, {"work": 1.0})
    with open(good.path, "a", encoding="latin-1") as file:
        file.write(line + "\n")
    assert KeptLayers(tmp_path / "work.json", "print").layers == {0: {"work": 1.0}}
    assert KeptLayers(tmp_path / "work.json", "another").layers == {}


def test_exports_of_our_own_model_are_measured_alike(tmp_path):
    """The route by our own model is kept where it has a place for everything: the same numbers as before."""
    model = TaperedTransformer(ModelConfig(256, 2, 32, 4, (24, 33), 48, key_heads=2), seed=1)
    export(checkpoint_from(model), "hf", tmp_path / "hf")
    opened = open_model(tmp_path / "hf").model
    assert isinstance(opened, TaperedTransformer)
    assert same(capture(opened, TEXT, 20, context=16), capture(model, TEXT, 20, context=16))
