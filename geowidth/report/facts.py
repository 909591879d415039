"""The facts at the head of the page and the notes beside the profiles, from whatever files state them."""

from geowidth.artifacts.work_profile import not_converged
from geowidth.progress import duration
from geowidth.report.folder import lookup
from geowidth.report.numbers import compact, is_finite, layer_list, significant, thousands
from geowidth.report.profiles import geometries_of, statistic_name
from geowidth.report.widths import arm_widths


def sources(run):
    """Every record that may state a fact about the run, the most direct first."""
    trainings = [t for runs in run.arms.values() for t in runs.values()]
    found = [*(t.config for t in trainings), *(t.result for t in trainings), run.settings, run.comparison, run.work]
    return [source for source in found if source]


def fact(run, *names):
    """The first value stated under any of `names` in the run's records."""
    for source in sources(run):
        value = lookup(source, *names)
        if value is not None:
            return value
    return None


def _model(run):
    heads, dimension = fact(run, "heads"), fact(run, "dimension", "model_dimension")
    layers = fact(run, "layers")
    if not is_finite(layers):
        layers = next((len(w) for w in (arm_widths(run, n) for n in run.arm_names) if w), None)
    parts = [f"{layers} layer{'s' * (layers != 1)}" if layers else "", f"d {dimension}" if is_finite(dimension) else ""]
    return ", ".join([*filter(None, parts), *([f"{heads} heads"] if is_finite(heads) else [])])


def _heads_by_layer(run):
    """The arms whose attention heads are not the same in every layer, with them."""
    found = []
    for name in run.arm_names:
        models = [
            lookup(source, "model") for one in run.arms.get(name, {}).values() for source in (one.result, one.config)
        ]
        models = [model for model in models if isinstance(model, dict)]
        heads = next((model["layer_heads"] for model in models if isinstance(model.get("layer_heads"), list)), None)
        found += [f"{name}: {' '.join(map(str, heads))}"] if heads else []
    return "; ".join(found)


def _corpus(run):
    corpus, digest = fact(run, "corpus"), fact(run, "digest")
    name = lookup(corpus, "source", "description") if isinstance(corpus, dict) else corpus
    parts = [name] if isinstance(name, str) else []
    sizes = lookup(corpus, "bytes")
    if isinstance(sizes, dict) and sizes and all(map(is_finite, sizes.values())):
        parts.append(f"{compact(sum(sizes.values()))}B")
    tokens, tokenizer = lookup(corpus, "tokens"), lookup(corpus, "tokenizer")
    if isinstance(tokens, dict) and tokens and all(map(is_finite, tokens.values())):
        made = f" of {tokenizer}" if isinstance(tokenizer, str) else ""
        parts.append(f"{compact(sum(tokens.values()))} tokens{made}")
    return ", ".join([*parts, *([f"sha256 {digest[:12]}\u2026"] if isinstance(digest, str) else [])])


def key_facts(run, rows):
    """(name, text) pairs for the head of the page; what no file states is left out."""
    seeds = sorted({seed for row in rows for seed in row.losses})
    parameters = sorted({row.parameters for row in rows if is_finite(row.parameters)})
    tokens = sorted({row.tokens for row in rows if is_finite(row.tokens)})
    seconds = [row.seconds * len(row.losses) for row in rows if is_finite(row.seconds)]
    preset = fact(run, "preset")

    def span(values):
        return " to ".join(dict.fromkeys(compact(v) for v in (values[0], values[-1]))) if values else ""

    facts = [
        ("preset", preset if isinstance(preset, str) else ""),
        ("model", _model(run)),
        ("heads by layer", _heads_by_layer(run)),
        ("parameters", thousands(parameters[0]) if len(parameters) == 1 else span(parameters)),
        ("corpus", _corpus(run)),
        ("arms", ", ".join(run.arm_names)),
        ("seeds", layer_list(seeds) if seeds else ""),
        ("tokens per model", thousands(tokens[0]) if len(tokens) == 1 else span(tokens)),
        ("training time", f"{duration(sum(seconds))} in all" if seconds else ""),
    ]
    return [(name, text) for name, text in facts if text]


def _gromov_facts(layers, geometries):
    """How sure the Gromov-Wasserstein numbers are: where the identity coupling stood, and the largest gap left."""
    same, gaps = [], []
    for geometry in geometries:
        found = [(layer.get(geometry) or {}).get("gw") or {} for layer in layers]
        found = [f for f in found if all(is_finite(f.get(key)) for key in ("value", "identity", "gap"))]
        if found:
            kept = sum(f["value"] >= f["identity"] * (1 - 1e-6) for f in found)
            same.append(f"{kept} of {len(found)} ({geometry})")
            gaps += [f["gap"] / f["value"] for f in found if f["value"] > 0]
    if not same:
        return ""
    left = (
        f" What a better coupling could still gain is, to first order, at most {significant(max(gaps), 2)} of E."
        if gaps
        else ""
    )
    return (
        "Gromov\u2013Wasserstein: no coupling better than matching each token with itself was found in this many "
        f"layers: {', '.join(same)}.{left}"
    )


def _layers_where(layers, count):
    """Layers whose `count` is above zero, and the largest count."""
    counts = [count(layer) for layer in layers]
    return [i for i, c in enumerate(counts) if c], max(counts, default=0)


def _merged(layer):
    merged = lookup(layer.get("dimension"), "merged", "merged_count")
    return merged if is_finite(merged) else 0


def _large(layer):
    found = layer.get("large_norm_tokens") or {}
    return max((len(tokens) for tokens in found.values() if isinstance(tokens, list)), default=0)


def method_facts(work):
    """Sentences on how the profiles were measured: tokens, couplings, merged duplicates, outliers, bands."""
    details, settings = work.get("details"), work.get("settings") or {}
    layers = [layer for layer in details if isinstance(layer, dict)] if isinstance(details, list) else []
    notes = []
    tokens = lookup(settings, "tokens")
    if is_finite(tokens):
        notes.append(f"{thousands(tokens)} held-out tokens, the same ones in every layer.")
    notes.append(_gromov_facts(layers, geometries_of(work)))
    for (statistic, geometry), found in not_converged(details).items():
        notes.append(
            f"{statistic_name(statistic)}, {geometry}: the search did not converge in "
            f"layer{'s' * (len(found) > 1)} {layer_list(found)}."
        )
    for count, words in (
        (_merged, "Equal states were merged for the intrinsic dimension in layer{} {}: at most {}."),
        (
            _large,
            "Some tokens have over five times the median norm in layer{} {}: at most {}. Dashed lines leave them out.",
        ),
    ):
        found, most = _layers_where(layers, count)
        if found:
            notes.append(words.format("s" * (len(found) > 1), layer_list(found), thousands(most)))
    bands = next((layer["bands"] for layer in layers if layer.get("bands")), None)
    if bands:
        notes.append(
            f"Upright bars: 5 to 95 % quantiles over {thousands(bands.get('subsamples'))} subsamples of "
            f"{thousands(bands.get('subsample'))} tokens; some statistics change with the number of tokens."
        )
    used = sorted({k for layer in layers if is_finite(k := lookup(layer.get("dimension"), "k"))})
    if used:
        span = " to ".join(thousands(k) for k in dict.fromkeys((used[0], used[-1])))
        notes.append(f"The MLE estimators of dimension use {span} neighbours.")
    return [note for note in notes if note]
