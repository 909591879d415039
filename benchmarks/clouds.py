"""Synthetic clouds that behave like residual-stream states, for benchmarks that need no model."""

import numpy as np


def language_model_cloud(n, d, seed=0, clusters=24, work=0.35):
    """(before, after), float64 (n, d): clustered, anisotropic, off-centre states and what a random FFN adds.

    Cluster sizes follow Zipf's law, the spectrum falls as 1/sqrt(i), rows share a mean and two outlier dimensions;
    norms are log-normal. after = before + MLP(norm(before)), scaled so that |MLP| = work * |before|.
    """
    generator = np.random.default_rng(seed)
    spectrum = (1 + np.arange(d)) ** -0.5
    spectrum /= np.linalg.norm(spectrum)
    rotation, _ = np.linalg.qr(generator.standard_normal((d, d)))
    share = 1 / np.arange(1, clusters + 1)
    label = generator.choice(clusters, n, p=share / share.sum())
    centres = generator.standard_normal((clusters, d)) * spectrum
    before = (centres[label] + 0.8 * spectrum * generator.standard_normal((n, d))) @ rotation.T
    before += 0.7 * generator.standard_normal(d) / np.sqrt(d)
    before[:, : min(2, d)] += np.array([0.9, -0.6])[: min(2, d)]
    before *= np.sqrt(d) * np.exp(0.15 * generator.standard_normal((n, 1)))
    return before, before + _random_ffn(before, work, generator)


def isotropic_cloud(n, d, seed=0):
    """Standard normal rows, float64 (n, d): what a randomly initialised model's states look like."""
    return np.random.default_rng(seed).standard_normal((n, d))


def _random_ffn(x, work, generator):
    d = x.shape[1]
    up = generator.standard_normal((d, 4 * d)) / np.sqrt(d)
    down = generator.standard_normal((4 * d, d)) / np.sqrt(4 * d)
    hidden = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) @ up
    out = np.maximum(hidden, 0) ** 2 @ down
    return out * (work * np.linalg.norm(x) / np.linalg.norm(out))
