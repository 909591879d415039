"""The facts at the head of the page and the notes beside the profiles, from whatever files state them."""

from geowidth.progress import duration
from geowidth.report.folder import lookup
from geowidth.report.numbers import compact, is_finite, layer_list, significant, whole
from geowidth.report.profiles import GEOMETRIES
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
    parts = [f"{layers} layers" if layers else "", f"d {dimension}" if is_finite(dimension) else ""]
    return ", ".join([*filter(None, parts), *([f"{heads} heads"] if is_finite(heads) else [])])


def _corpus(run):
    digest = fact(run, "corpus_digest", "digest")
    name = fact(run, "corpus", "source")
    name = lookup(name, "source", "description") if isinstance(name, dict) else name
    words = name if isinstance(name, str) else ""
    return f"{words} sha256 {digest[:12]}\u2026".strip() if isinstance(digest, str) else words


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
        ("parameters", whole(parameters[0]) if len(parameters) == 1 else span(parameters)),
        ("corpus", _corpus(run)),
        ("arms", ", ".join(run.arm_names)),
        ("seeds", layer_list(seeds) if seeds else ""),
        ("tokens per model", whole(tokens[0]) if len(tokens) == 1 else span(tokens)),
        ("training time", f"{duration(sum(seconds))} in all" if seconds else ""),
    ]
    return [(name, text) for name, text in facts if text]


def _gromov_facts(geometry, details):
    """How sure the Gromov-Wasserstein numbers of one geometry are, from their gaps and the identity coupling's values."""
    gaps, values, identities = (details.get(key) for key in ("gap", "value", "identity"))
    notes = []
    if isinstance(gaps, list) and gaps and all(map(is_finite, gaps)):
        notes.append(f"the largest remaining gap is {significant(max(gaps), 2)}")
    if isinstance(values, list) and isinstance(identities, list) and len(values) == len(identities):
        pairs = [(v, i) for v, i in zip(values, identities, strict=True) if is_finite(v) and is_finite(i)]
        same = sum(v >= i * (1 - 1e-6) for v, i in pairs)
        notes.insert(0, f"matching each token with itself is the best coupling found in {same} of {len(pairs)} layers")
    return f"Gromov\u2013Wasserstein, {geometry}: {'; '.join(notes)}." if notes else ""


def method_facts(work):
    """Sentences on how the profiles were measured: tokens, coupling, merged duplicates."""
    details, settings = work.get("details") or {}, work.get("settings") or {}
    notes = []
    tokens = lookup(settings, "tokens", "measured_tokens")
    if is_finite(tokens):
        notes.append(f"{whole(tokens)} held-out tokens, the same ones in every layer.")
    gromov = details.get("gw") or details.get("gromov") or {}
    if isinstance(gromov, dict):
        notes += [_gromov_facts(g, gromov[g]) for g in GEOMETRIES if isinstance(gromov.get(g), dict)]
    merged = details.get("merged")
    if isinstance(merged, list) and any(merged):
        layers = [layer for layer, count in enumerate(merged) if count]
        most = max(merged)
        notes.append(
            f"Equal states were merged for topology and dimension in layer{'s' * (len(layers) > 1)} {layer_list(layers)} "
            f"(at most {whole(most)})."
        )
    k = lookup(settings, "k", "neighbours")
    if is_finite(k):
        notes.append(f"The MLE estimators use {whole(k)} neighbours.")
    return [note for note in notes if note]
