"""What a model computes in, what it computes twice, and what of it is compiled: the same training, to rounding."""

import contextlib

import pytest
import torch
from tiny_preset import TINY

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import TaperedTransformer
from geowidth.train import compiled, train
from geowidth.train.losses import accumulate_gradients
from geowidth.train.optimise import learning_rate, make_optimizers
from geowidth.train.trainer import prepare_model

WIDTHS = (30, 18)
# torch's compiler warns itself of what it does; it hides that from users, but not from a filter that makes errors.
OWN_WARNINGS = ("ignore:The .grad attribute of a Tensor", "ignore:`torch.jit.script")
of_the_compiler = [pytest.mark.filterwarnings(warning) for warning in OWN_WARNINGS]


def compiling(test):
    """A test in which torch.compile runs."""
    for mark in of_the_compiler:
        test = mark(test)
    return test


def curve(tiny, text, folder, **changes):
    """Training and validation losses of a short training."""
    train(tiny, WIDTHS, 2, folder, steps=40, corpus=text, watch=lambda *_: None, **changes)
    return torch.tensor([line["loss"] for line in records.read_json_lines(folder / "metrics.jsonl")])


def in_float64(tiny, text):
    """The same training in float64 throughout, by the parts of the loop."""
    from geowidth.text.corpus import DataOrder, load_corpus

    settings = tiny.with_training(steps=40)
    model = TaperedTransformer(tiny.with_widths(WIDTHS), 2).double()
    optimizers = make_optimizers(model, settings)
    data = DataOrder(load_corpus(text).train, tiny.model.context, settings.batch, 2)
    found = []
    for step in range(40):
        optimizers.set_rate(learning_rate(settings, step))
        batch = data.batch(step)
        optimizers.zero_grad()
        found.append(accumulate_gradients(model, batch[:, :-1], batch[:, 1:], settings.microbatch))
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizers.step()
    return torch.tensor(found)


def test_bfloat16_and_float32_follow_the_curve_of_float64(tiny, text, tmp_path):
    """Every training loss within 1e-5 of float64's in float32, within 0.015 in bfloat16."""
    wanted = in_float64(tiny, text)
    for dtype, most in (("float32", 1e-5), ("bfloat16", 0.015)):
        folder = tmp_path / dtype
        curve(tiny, text, folder, dtype=dtype)
        lines = records.read_json_lines(folder / "metrics.jsonl")
        found = torch.tensor([line["loss"] for line in lines if line["split"] == "train"])
        assert wanted[0] - wanted[-1] > 1.2  # it learns, so that there is something to differ in
        assert (found - wanted).abs().max() < most, dtype
        if dtype == "bfloat16":
            assert (found - wanted).abs().max() > 1e-4  # it is not float32 under another name


def test_bfloat16_keeps_float32_where_it_says(tiny, monkeypatch):
    """Weights, gradients, residual stream, norms and loss are float32; what products take and give is bfloat16."""
    from geowidth.models import transformer
    from geowidth.train import losses

    seen = {"linear": set(), "norm": set(), "loss": set()}

    def spied(name, function, of=lambda found, *inputs: {found.dtype, *(t.dtype for t in inputs[:2])}):
        def call(*arguments, **options):
            found = function(*arguments, **options)
            seen[name] |= of(found, *arguments)
            return found

        return call

    functional = torch.nn.functional
    monkeypatch.setattr(functional, "linear", spied("linear", functional.linear))
    monkeypatch.setattr(functional, "rms_norm", spied("norm", functional.rms_norm, lambda y, x, *_: {y.dtype, x.dtype}))
    entropy = spied("loss", functional.cross_entropy, lambda y, x, *_: {y.dtype, x.dtype})
    monkeypatch.setattr(functional, "cross_entropy", entropy)
    assert transformer.functional is functional is losses.functional
    model = TaperedTransformer(tiny.model, 1)
    model.compute_in(torch.bfloat16)
    accumulate_gradients(model, torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64), 2)
    assert seen == {"linear": {torch.bfloat16}, "norm": {torch.float32}, "loss": {torch.float32}}
    assert {(p.dtype, p.grad.dtype) for p in model.parameters()} == {(torch.float32, torch.float32)}


def saved_bytes(model, tokens, targets):
    """(bytes of activations kept for backward, gradients by name) of one microbatch."""
    weights = {p.data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    logits = None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(tokens)
    size = sum(kept.values())
    torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
    return size, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputation_keeps_less_and_gives_the_same_gradients(tiny, generator, dtype):
    from dataclasses import replace

    config = replace(tiny.model, widths=(64, 96))
    tokens = torch.randint(256, (4, 16), generator=generator)
    found = {}
    for what in ("none", "ffn", "block"):
        model = TaperedTransformer(config, 3)
        model.compute_in(torch.bfloat16 if dtype == "bfloat16" else None)
        model.recompute_in_backward(what)
        found[what] = saved_bytes(model, tokens, tokens.roll(1, 1))
    hidden = 2 * 4 * 16 * (64 + 96) * (2 if dtype == "bfloat16" else 4)  # gate and up of both layers
    assert found["none"][0] - found["ffn"][0] == hidden
    assert found["block"][0] < 0.5 * found["ffn"][0]
    for what in ("ffn", "block"):
        for name, gradient in found["none"][1].items():
            assert torch.equal(found[what][1][name], gradient), (what, name)


def test_recomputation_trains_to_the_same_bits(tiny, text, tmp_path):
    curves = [curve(tiny, text, tmp_path / what, recompute=what) for what in ("none", "ffn", "block")]
    assert torch.equal(curves[0], curves[1]) and torch.equal(curves[0], curves[2])


@contextlib.contextmanager
def cheap_compiler(monkeypatch):
    """torch.compile without the compiler of C++: the same tracing and the same graphs in a second."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@compiling
@pytest.mark.parametrize(("widths", "graphs"), [((24,) * 5, 2), ((40, 32, 24, 16, 1), 10)])
def test_blocks_compile_to_one_graph_a_width_and_way(text, tmp_path, monkeypatch, widths, graphs):
    """Training and evaluation: two graphs for equal widths, twice as many as there are widths otherwise; no breaks."""
    from dataclasses import replace

    model = replace(TINY.model, layers=5, widths=widths)
    preset = replace(TINY, model=model, training=replace(TINY.training, steps=4, evaluations=1, evaluation_windows=4))
    with cheap_compiler(monkeypatch):
        result = train(preset, None, 2, tmp_path / "compiled", corpus=text, compile=True, watch=lambda *_: None)
    plain = train(preset, None, 2, tmp_path / "plain", corpus=text, watch=lambda *_: None)
    assert result["compiled"] == {"graphs": graphs, "breaks": 0} and "compiled" not in plain
    assert result["loss"] == pytest.approx(plain["loss"], rel=1e-5)


@compiling
def test_compiled_blocks_recompute_and_compute_in_bfloat16(tiny, monkeypatch, generator):
    tokens = torch.randint(256, (4, 16), generator=generator)
    gradients = {}
    with cheap_compiler(monkeypatch):
        for name, some in {"plain": {}, "both": {"compile": True, "recompute": "block"}}.items():
            model = TaperedTransformer(tiny.model, 3)
            run = type("Run", (), {"settings": tiny.with_training(dtype="bfloat16", **some)})
            graphs = prepare_model(model, run)
            accumulate_gradients(model, tokens, tokens.roll(1, 1), 4)
            gradients[name] = {n: p.grad for n, p in model.named_parameters()}
    assert graphs.count >= 1 and graphs.breaks == 0
    for name, gradient in gradients["plain"].items():
        torch.testing.assert_close(gradients["both"][name], gradient, rtol=0.05, atol=2e-3, msg=name)


def test_without_a_compiler_one_line_says_so(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"compile needs a C\+\+ compiler, and no-such-compiler is not found"):
        train(tiny, out=tmp_path / "run", corpus=text, compile=True)
    assert not (tmp_path / "run").exists()


@compiling
def test_inductor_compiles_the_ffn_op_of_a_block(tiny):
    """The compiler itself, once, on the smallest block: one whole graph, the fused op inside it."""
    compiled.check_compiler(torch.device("cpu"))
    torch._dynamo.reset()
    model = TaperedTransformer(tiny.model, 3)
    cosine, sine = model.cosine[:4], model.sine[:4]
    x = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(1))
    wanted = model.blocks[0](x, cosine, sine)
    with torch.no_grad():
        found = torch.compile(model.blocks[0], fullgraph=True, dynamic=False)(x, cosine, sine)
    torch.testing.assert_close(found, wanted.detach())
    torch._dynamo.reset()
