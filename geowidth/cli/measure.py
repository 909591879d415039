"""Measure the geometric work of every FFN layer.

Reads   MODEL: a folder that `geowidth train` wrote; smollm2 or minilm, which Python packages carry; a Hugging Face
        folder, or a name that is in its local cache (--download fetches it); a .gguf file of the Llama family; or
        clouds that an earlier call saved (a .safetensors file)
Writes  work.json: for each geometry (raw, spherical, hyperbolic) and statistic (shift, gw, topology) one number per
        layer, the intrinsic dimension of every layer, certificates and settings. The first position of every
        window is left out; tokens of over 5 times the median norm are flagged, and the raw signals stand there
        with and without them (raw_without_large_norms)

A call that was interrupted goes on where it stopped. Processes that torchrun starts share the work, and the work
profile does not depend on their number.

Examples
  geowidth measure runs/nano/arms/uniform/seed-0 --tokens 512 --out work.json --plot work.svg
  geowidth measure smollm2 --tokens 256
  geowidth measure some/folder --tokens 4096 --device cuda
  torchrun --standalone --nproc-per-node 2 -m geowidth measure smollm2 --tokens 1024
"""

import sys
from pathlib import Path

from geowidth import records
from geowidth.cli import words
from geowidth.errors import UserError

# Options that decide how a model is run and its tokens drawn: saved clouds have no use for them.
OF_MODELS = ("corpus", "tokens", "context", "windows", "download", "cache", "save_clouds")


def add_arguments(parser):
    """The options of `geowidth measure`."""
    add = parser.add_argument
    add("model", help="folder, name, .gguf file, or .safetensors of saved clouds")
    add("--out", default="work.json", metavar="FILE", type=words.output(), help="where the work profile goes")
    add("--corpus", metavar="TEXT", help=f"held-out part of it: {words.CORPUS} (default: stdlib)")
    add("--tokens", metavar="N", type=words.whole(4), help="tokens in the cloud (default: 512)")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of the drawing of tokens and subsamples")
    add("--context", metavar="N", type=words.whole(), help="tokens a window (default: the model's, at most 256)")
    add("--windows", metavar="N", type=words.whole(), help="draw from N windows (default: all; tokens / 8)")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")
    add(
        "--geometries",
        nargs="+",
        metavar="NAME",
        type=words.one_of(words.geometries),
        help="raw spherical hyperbolic (default: these), or one that an extension brings",
    )
    add(
        "--statistics",
        nargs="+",
        metavar="NAME",
        type=words.one_of(words.statistics),
        help="shift gw topology gw_entropic (default: the first three), or one that an extension brings",
    )
    add("--radius", metavar="X", type=words.share(), help="of the hyperbolic geometry's ball (default: tanh 1)")
    add("--neighbours", metavar="N", type=words.whole(3), default=20, help="k of the Levina-Bickel dimension")
    add("--bootstrap", metavar="N", type=words.whole(0), default=0, help="subsamples for 5-95 %% bands")
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N")
    add(
        "--save-clouds",
        metavar="FILE",
        type=words.output(".safetensors"),
        help="also keep the captured clouds (.safetensors)",
    )
    add("--plot", metavar="FILE", type=words.output(".svg"), help="also draw the profiles (.svg)")


def run(arguments):
    from geowidth.ranks import is_first, joined

    with joined(arguments.device) as ranks:
        profile = measured(arguments, ranks)
        if is_first():
            show(arguments, profile)


def measured(arguments, ranks):
    """The work profile, the work shared by the processes of `ranks`."""
    check(arguments)
    from geowidth.artifacts.clouds import Clouds
    from geowidth.measure.pipeline import MeasureSettings, measure, measure_clouds
    from geowidth.ranks import own_device

    given = {name: getattr(arguments, name) for name in ("neighbours", "bootstrap", "seed")}
    given |= {name: tuple(names) for name in ("geometries", "statistics") if (names := getattr(arguments, name))}
    if arguments.radius is not None:
        given["radius"] = arguments.radius
    settings = MeasureSettings(**given, device=own_device(arguments.device))
    options = {"out": arguments.out, "settings": settings, "ranks": ranks}
    if is_clouds(arguments.model):
        return measure_clouds(ranks.together(lambda: Clouds.read(arguments.model)), **options)
    drawing = {name: getattr(arguments, name) for name in OF_MODELS if getattr(arguments, name) is not None}
    return measure(arguments.model, **drawing, **options)


def show(arguments, profile):
    """Print the profile, and draw it where that is asked for."""
    print(table(profile))
    for line in unsettled(profile):
        print(line, file=sys.stderr)
    print(f"work profile: {arguments.out}")
    if arguments.plot is not None:
        from geowidth.report import profile_svg

        records.write_text(arguments.plot, profile_svg(profile))
        print(f"picture: {arguments.plot}")


def check(arguments):
    """Refuse what can be refused without opening the model."""
    from geowidth.devices import device_named

    device_named(arguments.device)
    if is_clouds(arguments.model):
        given = next((name for name in OF_MODELS if getattr(arguments, name) not in (None, False)), None)
        if given is not None:
            raise UserError(
                f"--{given.replace('_', '-')} came with saved clouds, whose tokens are drawn already; leave it out"
            )


def is_clouds(model):
    """Whether the model argument names a file of saved clouds."""
    return Path(model).suffix == ".safetensors"


def table(profile):
    """The profile as text: a row per layer, a column per signal."""
    statistics = dict.fromkeys(name for found in profile.work.values() for name in found)
    columns = [(s, g) for s in statistics for g in profile.work if s in profile.work[g]]
    wide = max(10, *(len(name) for pair in columns for name in pair))
    dimension = profile.dimension["twonn_mle"]
    lines = ["      " + " ".join(f"{statistic:>{wide}}" for statistic, _ in columns)]
    lines.append("layer " + " ".join(f"{geometry:>{wide}}" for _, geometry in columns) + "  dimension")
    for layer in range(profile.layers):
        cells = " ".join(f"{profile.work[g][s][layer]:{wide}.4g}" for s, g in columns)
        lines.append(f"{layer:5d} {cells}  {dimension[layer]:9.2f}")
    return "\n".join(lines + outliers(profile))


def unsettled(profile):
    """A line for every signal whose search did not converge in some layer."""
    from geowidth.artifacts.work_profile import not_converged

    return [
        f"geowidth: {statistic} ({geometry}) did not converge in layer{'s' * (len(layers) > 1)} "
        f"{', '.join(map(str, layers))}: its numbers there are upper bounds of what was looked for"
        for (statistic, geometry), layers in not_converged(profile.details).items()
    ]


def outliers(profile):
    """Raw signals without the tokens of over 5 times the median norm, for the layers that have some."""
    lines = []
    for layer, details in enumerate(profile.details):
        found = details.get("large_norm_tokens", {}).values()
        tokens = len({token for side in found for token in side})
        if tokens and profile.raw_without_large_norms:
            cells = ", ".join(f"{name} {v[layer]:.4g}" for name, v in profile.raw_without_large_norms.items())
            lines.append(f"layer {layer}, raw without {tokens} token{'s' * (tokens > 1)} of very large norm: {cells}")
    return lines
