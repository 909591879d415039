"""Distances on a CUDA GPU: products by the library, everything else by kernels/cuda/distances.cu.

Nothing of the size of the result is kept but the result: the Gram matrix comes in panels of PANEL_ROWS rows (from the
diagonal on, where y is x), and each panel is turned into distances before the next one is formed. Which way it is
formed (`route`) depends on the dtype, the chip, and what torch offers:

float64 products, of float32 and float64 clouds on chips whose float64 is fast. An H100 or H200 does 67 TFLOP/s in
    float64 and in true float32 alike, so this costs what a float32 product would, needs no centring, and TF32 never
    comes into it. Errors and the share NEAR of refined pairs are those of geowidth.ops.distances.torch.NEAR.

16-bit products on tensor cores, of float16 and bfloat16 clouds: the products are exact, their sums are cut off. A step
    adds 16 products to a float32 accumulator on Hopper, 8 on Ampere; all are aligned to the largest with 2 bits more
    than float32 has (1 on Ampere), what lies below is cut, and so is the sum (Khattak and Mikaitis, "Accurate Models
    of NVIDIA Tensor Cores", arXiv 2512.07004). With cut bits evenly spread a step loses on average at most
    (17 2^-26 + 2^-24) A = 3.1e-7 A, A the largest partial sum, (9 2^-25 + 2^-24) A = 3.3e-7 A on Ampere; the worst is
    twice that. Positive and negative products of a pair with cosine c sum to at most (1 + |c|)/2 |x||y| each, which
    bounds A. Slices of the columns, each summed apart, lose together what one slice's number of steps allows, by Cauchy
    and Schwarz: 64 steps (1024 columns on Hopper and Blackwell, 512 elsewhere) lose 2.1e-5 (1 + |c|)/2 |x||y|. A
    distance then is wrong by at most 2.1e-5 (1 + |c|) / (4 (1 - c)) and an angle t by 2.1e-5 (1 + |c|) / (2 t sin t)
    relative: 0.8e-5 and 0.9e-5 at c = 3/16, beyond which (NEAR = 13/16) pairs are computed from the raw rows in
    float64. That takes sums that are at their largest all the way; slices whose large sums have opposite signs could
    reach 1.7 times as much. Sums that grow evenly towards c |x||y|, as ordinary pairs' do, are right to 1e-6.

float32 products, of float32 clouds on chips whose float64 is 1/32 or 1/64 as fast, unless TF32 is allowed: sums are
    rounded to nearest, by 2^-24 A / sqrt 3 a step in the mean square. 256 columns in a row lose 5.5e-7 A, six
    deviations 3.3e-6 (1 + |c|)/2 |x||y|, and slices add up as above. A distance is wrong by at most
    3.3e-6 (1 + |c|) / (4 (1 - c)), an angle by 3.3e-6 (1 + |c|) / (2 t sin t): both 0.8e-5 at NEAR = 3/16.

The two ways with float32 sums refine every pair that looks less than about 80 (35) degrees apart, which for clouds far
from their origin is every pair. So SAMPLES pairs are looked at first, and the float64 products are taken where more
than `most_near` of them are near: where refining would cost as much. The result is right either way. The way and zero
rows are known from one small read of device memory, the only point here at which the host waits for the device; the raw
geometry of float32 clouds on a chip with fast float64 has none. (float64 clouds are read once more before, for rows
whose squares leave float64.)
"""

import os
from dataclasses import dataclass
from functools import cache

import torch

from geowidth.errors import UserError
from geowidth.geometry import BUILT_IN, GEOMETRIES, check_directions, chord_scale
from geowidth.ops import backend, cuda_support
from geowidth.ops.distances.torch import NEAR

FAST_FLOAT64 = {(8, 0), (9, 0), (10, 0)}  # A100, H100 and H200, B200; not B300 (10, 3)
HALVES = (torch.float16, torch.bfloat16)
PANEL_ROWS = 2048  # of a Gram matrix at a time: tiles enough for 132 multiprocessors, and most of a triangle saved
LEAST_BYTES, MOST_BYTES = 2**25, 2**29  # of a panel: what a second-level cache holds, what memory can spare
WIDENED_BYTES = 2**28  # of float64 copies of the rows: all at once where they fit, else slice by slice
TILE = 64  # panels begin at multiples of the kernel's tile, and of every alignment
SAMPLES = 1024
SMALLEST, LARGEST = 2.0**-60, 2.0**100  # |x|^2 between which float32 sums neither vanish nor overflow


@dataclass(frozen=True)
class Features:
    """What torch offers here.

    wide_output     products of 16-bit matrices with a float32 result (torch 2.8)
    exact_float32   products of float32 matrices use no TF32
    exact_float16   products of float16 matrices are summed in float32
    """

    wide_output: bool
    exact_float32: bool
    exact_float16: bool


@dataclass(frozen=True)
class Route:
    """How the Gram matrix is formed: its dtype, the columns summed in a row (0: as many as memory allows), the share of
    the squared norms' sum under which a pair is refined, and the share of refined pairs from which it does not pay."""

    gram: torch.dtype
    columns: int
    near: float
    most_near: float = 1.0


def route(dtype, capability, features):
    """The Route of clouds of `dtype` on a chip of that compute capability, for clouds near their origin."""
    most_near = 1 / 32 if capability in FAST_FLOAT64 else 1 / 4
    if dtype in HALVES and features.wide_output and (features.exact_float16 or dtype == torch.bfloat16):
        return Route(torch.float32, 1024 if capability[0] in (9, 10) else 512, 13 / 16, most_near)
    if dtype == torch.float32 and features.exact_float32 and capability not in FAST_FLOAT64:
        return Route(torch.float32, 256, 3 / 16, most_near)
    return float64_route(dtype)


def float64_route(dtype):
    """The Route that is right for every cloud."""
    return Route(torch.float64, 0, NEAR[result_dtype(dtype)])


def result_dtype(dtype):
    """float64 of float64 clouds, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def features(device):
    """The Features of this torch on that device, with its settings as they are now."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # torch 2.9; reading the old switch beside it may raise
        exact_float32 = matmul.fp32_precision in ("ieee", "none")
    else:
        exact_float32 = not matmul.allow_tf32
    return Features(
        wide_output=hasattr(torch.ops.aten.addmm, "dtype_out")
        and (device.type != "cuda" or _wide_products_work(device)),
        exact_float32=exact_float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "1",
        exact_float16=not getattr(matmul, "allow_fp16_accumulation", False),
    )


@cache
def _wide_products_work(device):
    """Whether products of 16-bit matrices add up in float32 there: a small one whose result is exact is tried."""
    x = torch.arange(256, device=device).remainder(7).bfloat16().reshape(16, 16)
    gram = torch.empty(16, 16, device=device)
    try:
        for first in (True, False):
            _add_wide_product(gram, x, x, first)
    except RuntimeError:
        return False
    return bool((gram == 2 * (x.double() @ x.double().T)).all())


def capability(x):
    """Compute capability of the device of `x`; that of an H200 for a CPU tensor (tests)."""
    return torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)


def run(x, y, names, radius, threads):
    """List of (n, m) matrices by geowidth._cuda on the device of `x`; `x` and `y` of one floating dtype."""
    del threads
    x, y = x.detach().contiguous(), None if y is None else y.detach().contiguous()
    columns = len(x if y is None else y)
    matrices = [x.new_empty(len(x), columns, dtype=result_dtype(x.dtype)) for _ in names]
    if not len(x) or not columns:
        return matrices
    with cuda_support.on_device(x):
        clouds = _Clouds(x, y)
        plan = _plan(clouds, names)
        clouds.prepare(plan)
        for panel in _panels(len(x), columns, y is None, plan.gram.itemsize):
            _fill(matrices, names, radius, clouds, plan, panel)
    return matrices


class _Clouds:
    """Both clouds, with what the kernels know of their rows, and the factors of the Gram matrix."""

    def __init__(self, x, y):
        self.symmetric = y is None
        self.x = _padded(x)
        self.y = self.x if self.symmetric else _padded(y)
        self.facts = torch.zeros(3, dtype=torch.int32, device=x.device)  # zero row, extreme row, near pairs
        self.square_x, self.inverse_x = self._survey(self.x)
        self.square_y, self.inverse_y = (self.square_x, self.inverse_x) if self.symmetric else self._survey(self.y)

    def _survey(self, rows):
        square, inverse = (rows.new_empty(len(rows), dtype=torch.float64) for _ in range(2))
        _kernel("survey_rows", rows.dtype)(
            x=backend.cuda()[0].Cloud(rows, square, inverse),
            smallest=SMALLEST,
            largest=LARGEST,
            facts=self.facts,
            stream=cuda_support.stream(rows),
        )
        return square, inverse

    def arguments(self):
        """What every kernel of pairs wants to know of the rows."""
        cloud = backend.cuda()[0].Cloud
        return {
            "x": cloud(self.x, self.square_x, self.inverse_x),
            "y": cloud(self.y, self.square_y, self.inverse_y),
            "symmetric": self.symmetric,
            "stream": cuda_support.stream(self.x),
        }

    def sample(self, near, names):
        """Counts near pairs among the sampled ones."""
        _kernel("survey_pairs", self.x.dtype)(
            **self.arguments(),
            samples=SAMPLES,
            near=near,
            raw="raw" in names,
            angular=any(GEOMETRIES[name].directional for name in names),
            facts=self.facts,
        )

    def prepare(self, plan):
        """Widens the rows of 16-bit clouds, and the factors, where the plan's products are float64."""
        wide = plan.gram == torch.float64
        if wide and self.x.dtype in HALVES:
            self.x, self.y = self._converted(torch.float32)
        count = self.x.numel() + (0 if self.symmetric else self.y.numel())
        at_once = wide and 8 * count <= WIDENED_BYTES
        self.factors = self._converted(torch.float64) if at_once else (self.x, self.y)

    def _converted(self, dtype):
        x = self.x.to(dtype)
        return x, x if self.symmetric else self.y.to(dtype)


def _padded(rows):
    """16-bit rows with columns of zeros behind them, so that each begins at 16 bytes: tensor cores ask for that."""
    missing = -rows.shape[1] % 8 if rows.dtype in HALVES else 0
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows


def _plan(clouds, names):
    """The Route to take, once zero rows are refused. The only place where the host waits for the device."""
    if _capturing(clouds.x):
        return float64_route(clouds.x.dtype)
    plan = route(clouds.x.dtype, capability(clouds.x), features(clouds.x.device))
    directional = any(GEOMETRIES[name].directional for name in names)
    if plan.gram == torch.float64 and not directional:
        return plan
    if plan.gram == torch.float32:
        clouds.sample(plan.near, names)
    zero, extreme, near = clouds.facts.tolist()
    if directional and zero:
        check_directions(clouds.x, "x")
        check_directions(clouds.y, "y")
    return float64_route(clouds.x.dtype) if extreme or near > plan.most_near * SAMPLES else plan


def _capturing(x):
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def refuse_capture(x, names):
    """Raise a UserError where a CUDA graph is captured and the host would have to read something of the device's."""
    if _capturing(x) and (x.dtype == torch.float64 or any(GEOMETRIES[name].directional for name in names)):
        raise UserError(
            "a CUDA graph can capture distances in the raw geometry of float16, bfloat16 and float32 clouds only: "
            "otherwise zero or extreme rows are looked for on the host; call outside the capture"
        )


@dataclass(frozen=True)
class _Panel:
    """Rows [row, end) of x against the columns from `column` on."""

    row: int
    end: int
    column: int


def _panels(rows, columns, symmetric, itemsize):
    row_bytes = columns * itemsize
    step = min(max(PANEL_ROWS, LEAST_BYTES // row_bytes), MOST_BYTES // row_bytes)
    step = max(step // TILE * TILE, TILE)
    return [_Panel(row, min(row + step, rows), row if symmetric else 0) for row in range(0, rows, step)]


def _fill(matrices, names, radius, clouds, plan, panel):
    """The distances of one panel, mirror images included."""
    x, y = clouds.factors
    gram = _gram(x[panel.row : panel.end], y[panel.column :], plan)
    _kernel("distances", clouds.x.dtype, plan.gram)(
        **clouds.arguments(),
        panel=backend.cuda()[0].Panel(gram, panel.row, panel.end, panel.column),
        out=[matrices[names.index(g)] if g in names else None for g in BUILT_IN],
        scale=chord_scale(radius),
        near=plan.near,
    )


def _gram(x, y, plan):
    """x y' in the plan's dtype; rows begin at multiples of 16 bytes, whatever their number."""
    stride = (len(y) + 3) // 4 * 4
    gram = x.new_empty(len(x), stride, dtype=plan.gram)[:, : len(y)]
    depth = x.shape[1]
    step = plan.columns or max(256, WIDENED_BYTES // (8 * max(len(x), len(y))))
    for begin in range(0, depth, step):
        _add_product(gram, x[:, begin : begin + step], y[:, begin : begin + step], begin == 0)
    return gram if depth else gram.zero_()


def _add_product(gram, x, y, first):
    """gram = x y', or gram += x y', summed in gram's dtype."""
    if x.dtype in HALVES and x.is_cuda:
        _add_wide_product(gram, x, y, first)
    elif first:
        torch.mm(x.to(gram.dtype), y.to(gram.dtype).T, out=gram)
    else:
        gram.addmm_(x.to(gram.dtype), y.to(gram.dtype).T)


def _add_wide_product(gram, x, y, first):
    """The same of 16-bit rows, on tensor cores."""
    if first:
        torch.ops.aten.mm.dtype_out(x, y.T, gram.dtype, out=gram)
    else:
        torch.ops.aten.addmm.dtype_out(gram, x, y.T, gram.dtype, out=gram)


def _kernel(name, *dtypes):
    return getattr(backend.cuda()[0], "_".join([name, *(str(t).removeprefix("torch.") for t in dtypes)]))
