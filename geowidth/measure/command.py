"""Measure the geometric work of every FFN layer.

Reads   MODEL: a folder that `geowidth train` wrote; smollm2 or minilm, which Python packages carry; a Hugging Face
        folder, or a name that is in its local cache (--download fetches it); a .gguf file of the Llama family; or
        clouds that an earlier call saved (a .safetensors file)
Writes  work.json: for each geometry (raw, spherical, hyperbolic) and statistic (shift, gw, topology) one number per
        layer, the intrinsic dimension of every layer, certificates and settings. The first position of every
        window is left out; tokens of over 5 times the median norm are flagged, and the raw signals stand there
        with and without them (raw_without_large_norms)

A call that was interrupted goes on where it stopped. Example:
  geowidth measure runs/nano/arms/uniform/seed-0 --tokens 512 --out work.json --plot work.svg
  geowidth measure smollm2 --tokens 256
"""

from pathlib import Path

from geowidth import records
from geowidth.errors import UserError


def add_arguments(parser):
    parser.add_argument("model", help="folder, name, .gguf file, or .safetensors of saved clouds")
    parser.add_argument("--out", default="work.json", metavar="FILE", help="where the work profile goes")
    parser.add_argument("--corpus", default="stdlib", help="held-out text: stdlib, a file, a folder or a JSONL file")
    parser.add_argument("--tokens", type=int, default=512, help="tokens in the cloud")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing of tokens and subsamples")
    parser.add_argument("--context", type=int, metavar="T", help="tokens a window (default: the model's, at most 256)")
    parser.add_argument("--windows", type=int, metavar="N", help="draw from N windows (default: all; tokens / 8)")
    parser.add_argument("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    parser.add_argument("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")
    parser.add_argument("--geometries", nargs="+", metavar="NAME", help="raw spherical hyperbolic (default: all)")
    parser.add_argument("--statistics", nargs="+", metavar="NAME", help="shift gw topology (default: all)")
    parser.add_argument("--radius", type=float, help="of the hyperbolic geometry's ball (default: tanh 1)")
    parser.add_argument("--neighbours", type=int, default=20, help="k of the Levina-Bickel dimension")
    parser.add_argument("--bootstrap", type=int, default=0, metavar="B", help="subsamples for 5-95 %% bands")
    parser.add_argument("--save-clouds", metavar="FILE", help="also keep the captured clouds (.safetensors)")
    parser.add_argument("--plot", metavar="FILE", help="also draw the profiles (.svg)")


def run(arguments):
    source = Path(arguments.model)
    for path in (arguments.out, arguments.save_clouds, arguments.plot):
        if path is not None:
            records.check_writable(path)
    if arguments.plot is not None and Path(arguments.plot).suffix.lower() != ".svg":
        raise UserError(f"--plot draws .svg files; got {arguments.plot}")
    for name in ("context", "windows"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise UserError(f"--{name} is {getattr(arguments, name)}; at least 1 is needed")
    if arguments.tokens < 4:
        raise UserError(f"--tokens is {arguments.tokens}; at least 4 are needed, 256 or more are sensible")

    from geowidth.measure.clouds import Clouds
    from geowidth.measure.pipeline import MeasureSettings, measure, measure_clouds

    given = {"neighbours": arguments.neighbours, "bootstrap": arguments.bootstrap, "seed": arguments.seed}
    for name in ("geometries", "statistics"):
        if getattr(arguments, name):
            given[name] = tuple(getattr(arguments, name))
    if arguments.radius is not None:
        given["radius"] = arguments.radius
    settings = MeasureSettings(**given)
    if source.suffix == ".safetensors":
        profile = measure_clouds(Clouds.read(source), settings, out=arguments.out)
    else:
        profile = measure(
            arguments.model,
            corpus=arguments.corpus,
            tokens=arguments.tokens,
            seed=arguments.seed,
            context=arguments.context,
            windows=arguments.windows,
            download=arguments.download,
            cache=arguments.cache,
            out=arguments.out,
            settings=settings,
            save_clouds=arguments.save_clouds,
        )
    print(table(profile))
    print(f"work profile: {arguments.out}")
    if arguments.plot is not None:
        from geowidth.report import profile_svg

        records.write_text(arguments.plot, profile_svg(profile))
        print(f"picture: {arguments.plot}")


def table(profile):
    """The profile as text: a row per layer, a column per signal."""
    columns = [(g, s) for g in profile.work for s in profile.work[g]]
    dimension = profile.dimension["twonn_mle"]
    lines = ["layer " + " ".join(f"{g[:6]:>6}.{s:<8}" for g, s in columns) + "  dimension"]
    for layer in range(profile.layers):
        cells = " ".join(f"{profile.work[g][s][layer]:15.6g}" for g, s in columns)
        lines.append(f"{layer:5d} {cells}  {dimension[layer]:9.2f}")
    return "\n".join(lines)
