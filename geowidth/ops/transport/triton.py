"""The Sinkhorn step of entropic Gromov-Wasserstein by Triton kernels, which geowidth.kernels.sinkhorn holds."""

import math

import torch

from geowidth.ops import cuda_support, triton_support
from geowidth.ops.transport.step import Step

TURNS = 8  # passes at most between two readings of the error: a reading makes the host wait for the device
FAR = 32  # powers of two by which potentials may leave those that the kernel was formed with: what underflowed there
# then is less than 2^-62 of the coupling
LINEAR = 0.1  # of an error, at most, where passes are sped up: near the solution a pass is nearly a linear map
LEAST_ROOT = 0.03  # of the gap that such a map is taken to have
PATIENCE = 32  # passes without a smaller error: rounding is all that is left


class TritonStep(Step):
    """Streaming step, in the log domain where it has to be, on tensors of one device.

    dtype float32 or float64; r, a (n,), s, b (m,).
    The error is read once in several passes, as many as the last call took: those beyond the tolerance do no harm.
    """

    def __init__(self, r, s, a, b, threads):
        from geowidth.kernels import sinkhorn

        del threads
        self.r, self.s, self.a, self.b = r, s, a, b
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.buffers = sinkhorn.Buffers(len(a), len(b), r.dtype, r.device, triton_support.processors(r), TURNS)
        self.kernel = self.buffers.k
        self.turns = TURNS // 2

    def __call__(self, x, scale, coupling, tolerance, most):
        """Overwrites `coupling` (n, m) with the coupling.

        Returns (marginal error, passes, sum |coupling - coupling before|, r' coupling s, sum coupling * log coupling).
        """
        x = x.contiguous()
        with cuda_support.on_device(x):
            factor = x.new_full((1,), scale * math.log2(math.e), dtype=torch.float64)
            error, passes = self._solve(x, factor, tolerance, most)
            sums = self.buffers.plan(x, self.r, self.s, coupling)
            self.f.add_(self.buffers.u, alpha=math.log(2))
            self.g.add_(self.buffers.v, alpha=math.log(2))
            self.buffers.v_next.zero_()
            dual = self.f.double() @ self.a.double() + self.g.double() @ self.b.double()
            change, inner, linear, dual = torch.cat([sums, dual[None]]).tolist()
        return error, passes, change, linear, scale * (inner + linear) + dual

    def _solve(self, x, scale, tolerance, most):
        """(error, passes) of the coupling of the buffers' k, u, v."""
        self._enter(x, scale, 0)
        errors: list[float] = []
        unread, careful, done, motion = 1, False, False, _Motion()
        while True:
            left = most - len(errors) - unread
            count = 0 if done else min(TURNS - unread if errors else self.turns, left)
            for turn in range(unread, unread + count):
                if careful:
                    self._enter(x, scale, turn)
                else:
                    self.buffers.advance(self.a, self.b, turn, motion.stride, motion.momentum)
            far, *found = self.buffers.read(unread + count)
            errors += found
            motion.judge(found)
            best = min(range(len(errors)), key=errors.__getitem__)
            done = errors[-1] <= tolerance or len(errors) >= most or len(errors) - best > PATIENCE
            # Weights too small for sums without maxima: the next passes take those out.
            careful = not math.isfinite(errors[-1])
            unread = int(careful or far > FAR)
            if unread:
                self._enter(x, scale, 0)
            elif done:
                break
        reached = next((i for i, error in enumerate(errors) if error <= tolerance), len(errors) - 1)
        self.turns = min(max(reached, 1), TURNS - 1)
        return errors[-1], len(errors)

    def _enter(self, x, scale, turn):
        """Form k anew from potentials that have taken in what the passes since the last time added."""
        buffers = self.buffers
        self.g.add_(buffers.v_next, alpha=math.log(2))
        buffers.enter(x, self.r, self.s, self.f, self.g, self.a, self.b, scale, turn)

    def inner(self, x, y):
        """sum_ij x_ij y_ij, added up in float64."""
        return self.inners((x, y))[0]

    def inners(self, *pairs):
        """[sum_ij x_ij y_ij for x, y in pairs], with one reading."""
        with cuda_support.on_device(self.r):
            return torch.stack([self.buffers.inner(x, y) for x, y in pairs]).tolist()


class _Motion:
    """Stride and momentum of the passes: Sinkhorn's at first, then those of the heavy-ball method.

    Linearised at the solution, a pass takes v to v - A v, A symmetric in the scalar product of the weights b, with
    eigenvalues between `gap` and 1, but for constants, which change no coupling (Knight, "The Sinkhorn-Knopp
    algorithm", SIAM J. Matrix Anal. Appl. 30, 2008): plain passes shrink the error by 1 - gap each, these strides by
    about (1 - sqrt gap) / (1 + sqrt gap) (Polyak, 1964). A gap guessed too large still converges: all eigenvalues up to
    1 + gap are stable. The error that ends the passes is measured, so that a bad guess costs time at worst; where the
    error grows, plain passes are taken for the rest.
    """

    def __init__(self):
        self.stride, self.momentum, self.allowed = 1.0, 0.0, True

    def judge(self, errors):
        """Choose for the next passes by the errors of the last ones."""
        moving = self.momentum > 0
        if not math.isfinite(errors[-1]) or (moving and errors[-1] > errors[0]):
            self.stride, self.momentum, self.allowed = 1.0, 0.0, not moving and self.allowed
        elif not moving and self.allowed and len(errors) > 2 and 0 < errors[-1] < min(LINEAR, errors[-2]):
            root = max(math.sqrt(1 - errors[-1] / errors[-2]), LEAST_ROOT)
            self.stride, self.momentum = 4 / (1 + root) ** 2, ((1 - root) / (1 + root)) ** 2
