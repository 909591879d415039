"""Numbers as people read them: true minus signs, sensible digits, units, and words for what is not finite."""

import math

from geowidth.forms import is_finite, is_number

__all__ = [
    "DASH", "MINUS", "compact", "is_finite", "is_number", "layer_list", "plain", "shorten", "signed", "significant",
    "tick_labels", "thousands",
]  # fmt: skip

MINUS = "\u2212"
DASH = "\u2013"


def _minus(text):
    return text.replace("-", MINUS)


def plain(value, decimals):
    """A finite number with fixed decimals; infinities and NaN in words; anything else a dash."""
    if not is_number(value):
        return DASH
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else f"{MINUS}infinite"
    text = f"{value:.{decimals}f}"
    return _minus(text[1:] if text.startswith("-") and not float(text) else text)


def signed(value, decimals):
    """Like `plain`, with + before positive numbers: for differences."""
    text = plain(value, decimals)
    return f"+{text}" if is_finite(value) and float(f"{value:.{decimals}f}") > 0 else text


def significant(value, digits=4):
    """A number with `digits` significant digits, thousands apart, exponents only where they help."""
    if not is_finite(value):
        return plain(value, 0)
    if value == 0:
        return "0"
    value = float(f"{value:.{digits - 1}e}")  # rounded first, so that 999.6 takes the decimals of 1000
    power = math.floor(math.log10(abs(value)))
    if not -4 <= power < 7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return _minus(f"{mantissa}\u00b710") + _superscript(int(exponent))
    return _minus(f"{value:,.{max(digits - 1 - power, 0)}f}".replace(",", "\u202f"))


def _superscript(number):
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def thousands(value):
    """A count with thousands apart; a dash for anything that is not a number."""
    return _minus(f"{round(value):,}".replace(",", "\u202f")) if is_finite(value) else plain(value, 0)


def compact(value, digits=3):
    """A large number with a suffix: 1.61 M, 24.6 T."""
    if not is_finite(value):
        return plain(value, 0)
    for size, suffix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size, digits)} {suffix}"
    return thousands(value) if abs(value) >= 1000 or value == int(value) else significant(value, digits)


def tick_labels(ticks, step):
    """One text per tick, all with the same number of decimals; k, M, G, T from ten thousand on."""
    if not ticks:
        return []
    largest = max(map(abs, ticks))
    suffixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if largest < 1e15 else ()
    for size, suffix in suffixes:
        if largest >= max(size, 1e4):
            scaled = tick_labels([t / size for t in ticks], step / size)
            return [words if not tick else words + suffix for words, tick in zip(scaled, ticks, strict=True)]
    if 0 < step < 1e-4 or largest >= 1e15:
        return [
            "0" if not t else _minus(f"{t:.3g}").replace(f"e{MINUS}0", f"e{MINUS}").replace("e+", "e") for t in ticks
        ]
    decimals = next(d for d in range(8) if abs(round(step, d) - step) <= 1e-9 * step)
    return ["0" if not round(t, decimals) else _minus(f"{t:.{decimals}f}") for t in ticks]


def layer_list(layers, most=8):
    """Layer numbers as words with runs joined: "0, 3–5 and 9"; long lists are cut with their number."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    words = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}{DASH}{b}" for a, b in runs]
    if len(words) > most:
        return f"{', '.join(words[:most])} and more ({len(layers)} layers)"
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def shorten(name, most):
    """A name cut to `most` characters for a label; the tables carry it whole."""
    return name if len(name) <= most else name[: most - 1] + "\u2026"
