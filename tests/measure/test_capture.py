"""Capture: which states are taken, whose tokens they are, and what is left behind on the model (nothing)."""

import pytest
import torch
from torch import nn

from geowidth.errors import UserError
from geowidth.measure.families import PARALLEL, POST_NORM, SEQUENTIAL, Family
from geowidth.measure.opening import open_model
from geowidth.measure.states import capture, states_in
from geowidth.text.sequences import draw_tokens, sequences_of, windows_of

TEXT = torch.randint(3, 97, (600,), generator=torch.Generator().manual_seed(5))
SHAPE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LONG = {**SHAPE, "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**LONG, **TOKENS, "num_key_value_heads": 2}
OPT = {**SHAPE, **TOKENS, "ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32, "pad_token_id": 0}
BERT = {**LONG, "pad_token_id": 1}

# model class, config class, config, form, width of each layer
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, SEQUENTIAL, 48),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "head_dim": 8}, SEQUENTIAL, 48),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, SEQUENTIAL, 48),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, SEQUENTIAL, 48),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**GROUPED, "head_dim": 8}, SEQUENTIAL, 48),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}, SEQUENTIAL, 48),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 8}, SEQUENTIAL, 48),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED, SEQUENTIAL, 48),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, SEQUENTIAL, 48),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**GROUPED, "residual_multiplier": 0.22}, SEQUENTIAL, 48),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED, SEQUENTIAL, 48),
    "phi": ("PhiForCausalLM", "PhiConfig", {**LONG, **TOKENS}, PARALLEL, 48),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48, **TOKENS},
        SEQUENTIAL,
        48,
    ),
    "gpt_neox parallel": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**LONG, **TOKENS}, PARALLEL, 48),
    "gpt_neox sequential": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**LONG, **TOKENS, "use_parallel_residual": False},
        SEQUENTIAL,
        48,
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT, SEQUENTIAL, 48),
    "opt post-norm": ("OPTForCausalLM", "OPTConfig", {**OPT, "do_layer_norm_before": False}, POST_NORM, 48),
    "bert": ("BertModel", "BertConfig", LONG, POST_NORM, 48),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT, POST_NORM, 48),
    "electra": ("ElectraModel", "ElectraConfig", {**LONG, "embedding_size": 32}, POST_NORM, 48),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
        POST_NORM,
        48,
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}, SEQUENTIAL, 4 * 48),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GROUPED, "head_dim": 8, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2},
        SEQUENTIAL,
        4 * 24,
    ),
}


def hugging_face(name):
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model_class, config_class, values, *_ = FAMILIES[name]
    torch.manual_seed(1)
    return getattr(transformers, model_class)(getattr(transformers, config_class)(**values))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Block(nn.Module):
    """x + ffn(norm(x)), the ffn's output wrapped as asked."""

    def __init__(self, wrap, dimension=8):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(dimension), Ffn(dimension, wrap)

    def forward(self, x):
        return x + states_in(self.up, self.up(self.norm(x)))


class Ffn(nn.Module):
    def __init__(self, dimension, wrap):
        super().__init__()
        self.down = nn.Linear(dimension, dimension)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.down(torch.tanh(x)))


class Toy(nn.Module):
    def __init__(self, wrap=lambda h: h, layers=2):
        super().__init__()
        torch.manual_seed(2)
        self.config = type("Config", (), {"context": 5, "hidden_size": 8})
        self.embedding = nn.Embedding(97, 8)
        self.blocks = nn.ModuleList(Block(wrap) for _ in range(layers))
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(self.dropout(x))
        return x


TOY = Family("toy", layers=("blocks",), before="norm:input", added="up:output", down="up.down", projections=2)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    """Rows, widths and form; padding and batch size change nothing; the model is left as it was."""
    model = hugging_face(name).train()
    *_, form, width = FAMILIES[name]
    clouds = capture(model, TEXT, 24, context=16, batch=3)
    assert clouds.before.shape == clouds.after.shape == (2, 24, 32)
    assert clouds.settings["form"] == form and clouds.widths == (width, width)
    assert (clouds.before != clouds.after).any(-1).all()
    assert model.training and hooks(model) == 0
    assert clouds.positions.min() >= 1
    ragged = [TEXT[:3], TEXT[20:25]]
    together, alone = (capture(model, ragged, None, skip=0, batch=size) for size in (2, 1))
    assert together.tokens == 8
    torch.testing.assert_close(together.before, alone.before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together.after, alone.after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_from_a_folder(name, tmp_path):
    """What the checks of sizes and shapes let through is the model that was saved."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    model = hugging_face(name).eval()
    model.save_pretrained(tmp_path)
    letters = {letter: index for index, letter in enumerate("abcdefgh")}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[])).save(str(tmp_path / "tokenizer.json"))
    saved, opened = (capture(one, TEXT, 20, context=16) for one in (model, open_model(tmp_path).model.to("cpu")))
    assert torch.equal(saved.before, opened.before) and torch.equal(saved.after, opened.after)
    assert saved.widths == opened.widths


def test_states_are_those_of_the_model():
    """`before` and `after` of a Llama equal what its blocks compute, taken apart by hand."""
    model = hugging_face("llama").eval()
    clouds = capture(model, TEXT, 24, context=16)
    rows, positions = draw_tokens(windows_of(TEXT, 16), 24, 0)
    assert torch.equal(clouds.positions, positions)
    window = windows_of(TEXT, 16)[int(rows[0])]
    assert torch.equal(clouds.token_ids[rows == rows[0]], window[positions[rows == rows[0]]])
    seen = model.model(window[None], output_hidden_states=True).hidden_states[1].detach()
    torch.testing.assert_close(clouds.after[0][rows == rows[0]], seen[0, positions[rows == rows[0]]])
    block = model.model.layers[0]
    added = block.mlp(block.post_attention_layernorm(clouds.before[0]))
    torch.testing.assert_close(clouds.before[0] + added.detach(), clouds.after[0])


@pytest.mark.parametrize("wrap", [lambda h: h, lambda h: (h,), lambda h: (h, None), lambda h: {"hidden_states": h}])
def test_output_may_be_wrapped(wrap):
    """A tensor, a tuple and a mapping give the same 10 rows; item 0 of a plain tensor is not a batch."""
    plain = capture(Toy(), TEXT[:10], None, skip=0, family=TOY)
    clouds = capture(Toy(wrap), TEXT[:10], None, skip=0, family=TOY)
    assert clouds.tokens == 10 and clouds.before.shape[-1] == 8
    assert torch.equal(clouds.before, plain.before) and torch.equal(clouds.after, plain.after)
    assert capture(Toy(wrap), TEXT[:5], None, skip=0, family=TOY).tokens == 5


def test_unknown_output_is_named_and_no_hook_left():
    model = Toy(lambda h: {"a": h, "b": h}).train()
    with pytest.raises(UserError, match="Ffn gave a dict"):
        capture(model, TEXT[:10], None, family=TOY)
    assert hooks(model) == 0 and model.training


def test_flattened_states_are_counted_by_token():
    model = Toy(lambda h: h.reshape(-1, h.shape[-1]).view(h.shape))
    flat = Family(**{**vars(TOY), "added": "up.down:output"})
    assert capture(model, TEXT[:10], None, skip=0, family=flat).tokens == 10
    cut = Toy(lambda h: h)
    cut.blocks[0].up.register_forward_hook(lambda module, arguments, output: output[:1])
    with pytest.raises(UserError, match="for 2 sequences of 5 tokens"):
        capture(cut, TEXT[:10], None, skip=0, family=TOY)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_never_a_row(side):
    tokens, mask = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)
    for row, length in enumerate((3, 5)):
        place = slice(0, length) if side == "right" else slice(5 - length, 5)
        tokens[row, place], mask[row, place] = TEXT[10 * row : 10 * row + length], 1
    model = hugging_face("gpt2")
    padded = capture(model, tokens, None, mask=mask, skip=0)
    plain = capture(model, [TEXT[:3], TEXT[10:15]], None, skip=0, batch=1)
    assert padded.tokens == 8
    torch.testing.assert_close(padded.before, plain.before, rtol=1e-5, atol=1e-5)
    assert torch.equal(padded.token_ids, plain.token_ids) and torch.equal(padded.positions, plain.positions)
    assert capture(model, tokens, None, mask=mask).tokens == 6  # the first position of each, padded left or not


def test_masks_that_cannot_be_read():
    tokens = torch.tensor([[4, 5, 0], [4, 5, 6]])
    with pytest.raises(UserError, match="row 0 begins or ends with the padding token 0"):
        sequences_of(tokens, pad_id=0)
    with pytest.raises(UserError, match="mask row 1 has a hole"):
        sequences_of(tokens, torch.tensor([[1, 1, 0], [1, 0, 1]]))
    with pytest.raises(UserError, match="they must agree"):
        sequences_of(tokens, torch.ones(2, 2))
    clouds = capture(hugging_face("llama"), tokens, None, mask=torch.zeros(2, 3))
    assert clouds.before.shape == (2, 0, 32)


def test_drawing():
    """Distinct contexts, no skipped position, the same tokens for the same seed, few windows when asked."""
    windows = windows_of(TEXT, 20)
    rows, positions = draw_tokens(windows, 100, seed=3)
    assert torch.equal(rows, draw_tokens(windows, 100, seed=3)[0])
    assert not torch.equal(positions, draw_tokens(windows, 100, seed=4)[1])
    assert len({(int(r), int(p)) for r, p in zip(rows, positions, strict=True)}) == 100 and positions.min() == 1
    assert len(draw_tokens(windows, 100, seed=3, windows=6)[0].unique()) == 6
    with pytest.raises(UserError, match="only 5 distinct contexts"):
        draw_tokens([TEXT[:6], TEXT[:6]], 6, seed=0)
    assert draw_tokens(windows, None, seed=0, skip=2, tail=3)[1].max() == 16


def test_a_block_that_is_no_residual_ffn_is_refused():
    model = Toy()
    model.blocks[1].register_forward_hook(lambda module, arguments, output: output * 1.01)
    with pytest.raises(UserError, match="layer 1 of Toy is not a residual FFN"):
        capture(model, TEXT[:10], None, family=TOY)


def test_unknown_models_and_missing_modules_are_named():
    with pytest.raises(UserError, match=r"cannot capture from a Toy.*known: .*llama"):
        capture(Toy(), TEXT[:10], 4)
    with pytest.raises(UserError, match="cannot find the module 'norm_of_old'"):
        capture(Toy(), TEXT[:10], None, family=Family(**{**vars(TOY), "before": "norm_of_old:input"}))


def test_states_that_are_not_finite_are_named():
    model = Toy()
    with torch.no_grad():
        model.embedding.weight[int(TEXT[3])] = float("nan")
    with pytest.raises(UserError, match="before the FFN of layer 0 is not finite"):
        capture(model, TEXT[:10], None, family=TOY)


def test_modes_of_every_module_are_restored_and_dropout_is_off():
    model = Toy().train()
    model.blocks[0].eval()
    clouds = capture(model, TEXT[:10], None, family=TOY)
    assert model.training and not model.blocks[0].training and model.blocks[1].training
    assert torch.equal(clouds.before, capture(model.eval(), TEXT[:10], None, family=TOY).before)


def test_compiled_models():
    """Compiled as a whole or in place, before or after: the same states as the plain model."""
    plain = capture(Toy(), TEXT[:10], None, family=TOY)
    for place in ("wrapped", "in place", "a block wrapped"):
        model = Toy()
        if place == "wrapped":
            model = torch.compile(model, backend="eager")
        elif place == "a block wrapped":
            model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
        else:
            model.blocks[0].compile(backend="eager")
        with torch.no_grad():
            model(TEXT[None, :5])
        clouds = capture(model, TEXT[:10], None, family=TOY)
        assert torch.equal(clouds.before, plain.before) and torch.equal(clouds.after, plain.after)


def test_half_precision_passes_the_check():
    model = hugging_face("granite").to(torch.bfloat16)
    assert capture(model, TEXT, 16, context=16).after.dtype == torch.bfloat16
