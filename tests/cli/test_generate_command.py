"""`geowidth generate` as a user meets it: texts of bytes and of tokenizers, draws, refusals."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from geowidth import cli
from geowidth.models import ModelConfig, TaperedTransformer, generate, save_model
from geowidth.progress import printable

CONFIG = ModelConfig(256, 2, 16, 2, (24, 8), 32, layer_heads=(4, 2))


def folder_of(tmp_path, config=CONFIG):
    model = TaperedTransformer(config, seed=1)
    save_model(model, tmp_path / "model")
    return tmp_path / "model", model.eval()


@pytest.fixture
def said(capsys):
    def run(*words):
        code = cli.main(["generate", *map(str, words)])
        return code, capsys.readouterr()

    return run


def escaped(ids):
    """What the command prints for bytes: up to the one that ends a text, control characters as escapes."""
    whole = bytes(ids).partition(b"\0")[0]
    return printable(whole.decode("utf-8", "replace"))


def test_a_checkpoint_of_bytes_continues_a_text(tmp_path, said):
    folder, model = folder_of(tmp_path)
    code, found = said(folder, "--prompt", "dé", "--tokens", "9")
    assert code == 0, found.err
    expected = generate(model, [list("dé".encode())], 9, stop=[0])[0]
    # Letters of several bytes that are broken off at the end are not shown.
    assert found.out.startswith("dé") and escaped(expected).startswith(found.out[2:].rstrip("\n"))
    assert "3 tokens read" in found.err and f"{len(expected)} new" in found.err and "MiB" in found.err


def test_draws_follow_the_seed_and_stop_at_the_context(tmp_path, said):
    folder, _ = folder_of(tmp_path)
    words = ("--prompt", "abc", "--temperature", "1", "--samples", "2", "--tokens", "50")
    first, again, other = (said(folder, *words, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first.out == again.out != other.out
    assert first.out.count("--- ") == 2 and "--- 2 of 2\nabc" in first.out
    assert "29 new" in first.err
    single = said(folder, *words[:4], "--tokens", "50", "--seed", "1")[1].out
    assert first.out.partition("\n")[2].startswith(single)


def spelling():
    """A tokenizer of single bytes, and the id that ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer, tokenizer.token_to_id("<|endoftext|>")


def library_folder(tmp_path, kind, **changes):
    """A small model of transformers with a tokenizer, and the model."""
    sizes = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / kind)
    spelling()[0].save(str(tmp_path / kind / "tokenizer.json"))
    return tmp_path / kind, model


def test_a_llama_of_transformers_says_what_transformers_makes_it_say(tmp_path, said):
    folder, model = library_folder(tmp_path, "llama")
    tokenizer, end = spelling()
    ids = torch.tensor([tokenizer.encode("a llama").ids])
    with torch.no_grad():
        whole = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=end)[0].tolist()
    code, found = said(folder, "--prompt", "a llama", "--tokens", "20")
    assert code == 0, found.err
    text = printable(tokenizer.decode(whole))
    assert text.startswith(found.out.rstrip("\n").rstrip("�")) and len(found.out) > len("a llama\n")


def test_what_our_transformer_has_no_place_for_is_refused(tmp_path, said):
    folder, _ = library_folder(tmp_path, "qwen2")  # biases on queries, keys and values
    code, found = said(folder, "--prompt", "x")
    assert code == 2 and "is a qwen2; our transformer takes plain Llama layers only" in found.err


def test_a_tokenizer_spells_the_text_and_its_end_ends_it(tmp_path, said):
    tokenizer, end = spelling()
    config = ModelConfig(257, 1, 16, 2, (8,), 32, tied=False)
    folder, model = folder_of(tmp_path, config)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("a b").ids
    _, found = said(folder, "--prompt", "a b", "--tokens", "12")
    expected = generate(model, [ids], 12, stop=[end])[0]
    shown = tokenizer.decode(ids + expected)
    assert printable(shown).startswith(found.out.rstrip("\n").rstrip("�")) and len(found.out) > 4
    with torch.no_grad():  # a model that ends every text
        for parameter in (*model.blocks.parameters(), model.head):
            parameter.zero_()
        model.embedding.fill_(1.0)
        model.head[end] = 1.0
    save_model(model, folder)
    code, found = said(folder, "--prompt", "a b")
    assert code == 0 and found.out == "a b\n" and "; 1 new; " in found.err


def test_every_sample_keeps_the_space_before_its_first_word(tmp_path, said):
    tokenizer = Tokenizer(models.BPE({"\u2581a": 0, "\u2581": 1, "a": 2}, [("\u2581", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    folder, _ = folder_of(tmp_path, ModelConfig(3, 1, 16, 2, (8,), 32))
    tokenizer.save(str(folder / "tokenizer.json"))
    words = ("--prompt", "a", "--tokens", "1", "--temperature", "1", "--top-k", "1")
    single = said(folder, *words)[1].out
    texts = said(folder, *words, "--samples", "2")[1].out.splitlines()
    assert single == "a a\n" and texts[1::2] == ["a a", "a a"]


def test_a_prompt_that_is_not_utf_8(tmp_path, said):
    folder, _ = folder_of(tmp_path, ModelConfig(257, 1, 16, 2, (8,), 32))
    spelling()[0].save(str(folder / "tokenizer.json"))
    code, found = said(folder, "--prompt", "a\udcff")
    assert code == 2 and "which is no UTF-8" in found.err and found.err.count("\n") == 1 and not found.out
    code, found = said(folder_of(tmp_path / "bytes")[0], "--prompt", "a\udcff", "--tokens", "2")
    assert code == 0 and "2 tokens read" in found.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--prompt", "x", "--samples", "2"], "give --temperature too"),
        (["--prompt", "x", "--top-k", "2"], "give --temperature too"),
        (["--prompt", ""], "the value is empty"),
        (["--prompt", "x" * 40], "context is 32"),
        (["--prompt", "x", "--device", "tpu"], "device is 'tpu'"),
        (["--prompt", "x", "--tokens", "0"], "--tokens is 0"),
    ],
)
def test_refusals_are_one_line(tmp_path, said, words, line):
    folder, _ = folder_of(tmp_path)
    code, found = said(folder, *words)
    assert code == 2 and line in found.err and found.err.count("\n") == 1 and not found.out


def test_what_has_no_text_or_no_next_token_is_refused(tmp_path, said):
    folder, _ = folder_of(tmp_path, ModelConfig(300, 1, 16, 2, (8,), 32))
    code, found = said(folder, "--prompt", "x")
    assert code == 2 and "no tokenizer.json" in found.err
    code, found = said(tmp_path / "absent", "--prompt", "x")
    assert code == 2 and "does not exist" in found.err
