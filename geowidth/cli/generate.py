"""Let a model continue a text, token by token, with keys and values kept at each layer's own size.

Reads   MODEL: a folder that `geowidth train` wrote, a Hugging Face folder, or a name that is in its local cache
        (--download fetches it), smollm2, or a .gguf file. Models that GeoWidth's transformer can hold, which are the
        Llama family's; others have the generation of the library they come from
Writes  nothing: the text goes to standard output as it comes; time and memory to standard error

Without --temperature the most likely token is taken each time. A text ends at --tokens, at the token that ends texts,
or at the model's context.

Examples
  geowidth generate runs/nano --prompt "def "
  geowidth generate smollm2 --prompt "The width of a layer" --tokens 40 --temperature 0.8 --top-k 40 --seed 1
  geowidth generate runs/nano --prompt "import " --samples 4 --temperature 1
"""

import codecs
import time

from geowidth.cli import words


def add_arguments(parser):
    """The options of `geowidth generate`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder, name or .gguf file")
    add("--prompt", metavar="TEXT", required=True, help="the text to continue")
    add("--tokens", metavar="N", type=words.whole(), default=100, help="new tokens at most")
    add("--temperature", metavar="X", type=words.positive(), help="draw from softmax(logits / X)")
    add("--top-k", metavar="N", type=words.whole(), help="draw from the N most likely tokens only")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of what is drawn")
    add("--samples", metavar="N", type=words.whole(), default=1, help="continuations, drawn side by side")
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")


def run(arguments):
    from geowidth.errors import UserError

    if arguments.temperature is None and (arguments.samples > 1 or arguments.top_k is not None):
        raise UserError("--samples and --top-k are for texts that are drawn; give --temperature too, as in 0.8")
    opened = opened_for_generation(arguments)
    prompt = encoded(opened, arguments.prompt)
    from geowidth.models.generation import stream

    steps = stream(
        opened.model,
        [prompt] * arguments.samples,
        arguments.tokens,
        temperature=arguments.temperature or 0.0,
        top_k=arguments.top_k,
        seed=arguments.seed,
        stop=ends(opened),
    )
    show = show_one if arguments.samples == 1 else show_all
    show(arguments, opened, len(prompt), steps)


def opened_for_generation(arguments):
    """The OpenedModel of MODEL, as our transformer, on the device."""
    from geowidth.devices import device_named
    from geowidth.measure.opening import open_model

    device = device_named(arguments.device)
    opened = open_model(arguments.model, download=arguments.download, cache=arguments.cache, causal=True, ours=True)
    opened.model.to(device)
    return opened


def encoded(opened, text):
    """The ids of a prompt, with what the tokenizer puts before a text."""
    from geowidth.errors import UserError, shown

    if opened.tokenizer is None:
        opened.refuse_other_than_bytes()
        return list(text.encode("utf-8", "surrogateescape"))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"--prompt is {shown(text)}, which is no UTF-8; the model's tokenizer needs a text that is")
    return [*opened.prefix, *opened.tokenizer.encode(text, add_special_tokens=False).ids]


def ends(opened):
    """The ids that end a text."""
    from geowidth.text.tokenisation import BYTES, ENDS

    if opened.tokenizer is None:
        return [BYTES.separator]
    ids = map(opened.tokenizer.token_to_id, ENDS)
    return [i for i in ids if i is not None and i < opened.model.config.vocabulary]


class Words:
    """Text of ids that come one by one: `step` gives what has become whole letters."""

    def __init__(self, opened, prompt=()):
        self.tokenizer = opened.tokenizer
        if self.tokenizer is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        else:
            from tokenizers.decoders import DecodeStream

            self.decoder = DecodeStream(list(prompt), skip_special_tokens=True)

    def step(self, token):
        if self.tokenizer is None:
            return self.decoder.decode(bytes([token])) if token else ""
        return self.decoder.step(self.tokenizer, token) or ""


def show_one(arguments, opened, read, steps):
    """The prompt and its continuation, as it comes."""
    text, times = Words(opened, encoded(opened, arguments.prompt)), [time.perf_counter()]
    print(arguments.prompt, end="", flush=True)
    for (token,) in steps:
        times.append(time.perf_counter())
        print(text.step(token), end="", flush=True)
    print()
    say(arguments, opened, read, times)


def show_all(arguments, opened, read, steps):
    """Every continuation, when all are there."""
    from geowidth.progress import Progress

    texts = [Words(opened, encoded(opened, arguments.prompt)) for _ in range(arguments.samples)]
    found, times = [arguments.prompt] * arguments.samples, [time.perf_counter()]
    with Progress(min(arguments.tokens, opened.model.config.context - read), "generate", unit="token") as progress:
        for tokens in steps:
            times.append(time.perf_counter())
            for place, token in enumerate(tokens):
                found[place] += "" if token is None else texts[place].step(token)
            progress.step()
    for place, text in enumerate(found):
        print(f"--- {place + 1} of {arguments.samples}\n{text}")
    say(arguments, opened, read, times)


def say(arguments, opened, read, times):
    """Time to the first token, time a token, and the bytes of keys and values, on standard error."""
    from geowidth.models import cache_bytes
    from geowidth.progress import tell

    new, first = len(times) - 1, 1e3 * (times[1] - times[0])
    each = f", then {1e3 * (times[-1] - times[1]) / (new - 1):.3g} ms each" if new > 1 else ""
    model = opened.model
    size = cache_bytes(model.config, arguments.samples, read + new, model.embedding.dtype) / 2**20
    tell(f"{read} tokens read, the first new one after {first:.3g} ms{each}; {new} new; keys and values {size:.3g} MiB")
