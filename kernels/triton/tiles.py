"""Which product is fused, with which tile: a table by (chip, d, tokens, width). Plain Python, no Triton, no driver.

Fusing saves memory traffic; the library multiplies faster. At P operations and B bytes a second, and with the fused
product reaching the share e of P, the library's e', a fused product of F operations that saves S bytes pays when
S / B > F / P (1/e - 1/e'). Per token and hidden unit, in two-byte numbers:

    gate_up       F = 4 d, S = 4 (keeping g and u) or 8 (keeping neither): below a bound on d
    grad_hidden   F = 2 d, S = 4: below twice that bound
    grad_input    F = 4 d width and S = 4 d per token: below a bound on width

The bounds in CHIPS come from data-sheet rates and e = 0.62 against 0.75, not from a measurement. On a machine with a
GPU, ``python -m benchmarks.device`` sweeps the tiles and prints the rows that should stand here.
"""

from dataclasses import dataclass

INFINITE = 1 << 30


@dataclass(frozen=True)
class Tile:
    """One program's share of a product: block sizes, warps, pipeline stages, tiles per L2 group, epilogue slices."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    group: int = 8
    slices: int = 1

    def __str__(self):
        text = f"{self.block_m}x{self.block_n}x{self.block_k}, {self.warps} warps, {self.stages} stages"
        return text + (f", {self.slices} slices" if self.slices > 1 else "")


@dataclass(frozen=True)
class Rule:
    """A product is fused with `tile` where tokens >= `tokens`, d <= `d` and width <= `width`; the first rule counts."""

    product: str
    tile: Tile
    tokens: int = 0
    d: int = INFINITE
    width: int = INFINITE


WIDE = Tile(128, 128, 64, 8, 3, slices=2)  # two accumulators of 128x128
TALL = Tile(128, 64, 64, 4, 3, slices=2)
SMALL = Tile(64, 64, 64, 4, 4)

# chip: rules, by the products' names. The last chip serves those not named.
CHIPS = {
    "sm_90": (
        Rule("gate_up keep", WIDE, tokens=1024, d=1024),
        Rule("gate_up keep", TALL, tokens=128, d=1024),
        Rule("gate_up keep", SMALL, d=1024),
        Rule("gate_up", WIDE, tokens=1024, d=2048),
        Rule("gate_up", TALL, tokens=128, d=2048),
        Rule("gate_up", SMALL, d=2048),
        Rule("grad_hidden", Tile(128, 256, 64, 8, 3, slices=8), tokens=2048, d=2048),
        Rule("grad_hidden", Tile(128, 128, 64, 8, 3, slices=2), tokens=512, d=2048),
        Rule("grad_hidden", Tile(64, 64, 64, 4, 4, slices=2), d=2048),
        Rule("grad_input", Tile(128, 128, 64, 8, 3), tokens=512, width=768),
        Rule("grad_input", Tile(64, 64, 64, 4, 4), width=768),
    ),
    "other": (
        Rule("gate_up keep", TALL, tokens=128, d=1024),
        Rule("gate_up keep", SMALL, d=1024),
        Rule("gate_up", TALL, tokens=128, d=2048),
        Rule("gate_up", SMALL, d=2048),
        Rule("grad_hidden", Tile(128, 64, 64, 4, 3, slices=2), tokens=128, d=2048),
        Rule("grad_hidden", Tile(64, 64, 64, 4, 3, slices=2), d=2048),
        Rule("grad_input", Tile(64, 64, 64, 4, 4), width=768),
    ),
}
# float32 moves twice the bytes through shared memory and multiplies slowly in full precision: one modest tile each.
FLOAT32 = {
    "gate_up keep": Tile(32, 64, 32, 4, 3),
    "gate_up": Tile(32, 64, 32, 4, 3),
    "grad_hidden": Tile(32, 64, 32, 4, 3),
    "grad_input": Tile(32, 64, 32, 4, 3),
}
PRODUCTS = tuple(FLOAT32)


def chip_name(capability):
    """The table's name of a compute capability (major, minor)."""
    name = f"sm_{capability[0]}{capability[1]}"
    return name if name in CHIPS else "other"


def choose(product, chip, d, tokens, width, bits=16):
    """(Tile, reason) for a fused kernel, or (None, reason) for the library. bits: of one number."""
    if d % 8:
        return None, f"d = {d} is not a multiple of 8, so rows of x do not start aligned"
    if bits == 32:
        return None, "float32 products in full precision are as fast by the library"
    for rule in CHIPS[chip if chip in CHIPS else "other"]:
        if rule.product == product and tokens >= rule.tokens and d <= rule.d and width <= rule.width:
            return rule.tile, "saved traffic outweighs the slower product"
    bound = "width" if product == "grad_input" else "d"
    return None, f"{bound} = {width if bound == 'width' else d} is too large: the library's faster product wins"


def explain(d, tokens, width, *, chip="sm_90", bits=16):
    """One line per product saying what is chosen and why."""
    lines = [f"{chip}, d = {d}, tokens = {tokens}, width = {width}, {bits}-bit numbers:"]
    for product in PRODUCTS:
        tile, reason = choose(product, chip, d, tokens, width, bits)
        name = {"gate_up keep": "gate_up, training", "gate_up": "gate_up, no gradients"}.get(product, product)
        lines.append(f"  {name:22} {'fused ' + str(tile) if tile else 'library'} ({reason})")
    return "\n".join(lines)


def entries():
    """Every distinct (chip, product, tile, bits) of the tables, float32 tiles included."""
    found = dict.fromkeys((chip, r.product, r.tile, 16) for chip, rules in CHIPS.items() for r in rules)
    return [*found, *(("other", product, tile, 32) for product, tile in FLOAT32.items())]
