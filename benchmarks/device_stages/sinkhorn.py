"""Sinkhorn on a GPU: plans against float64 on the CPU, then bytes a second of one visit of the kernel."""

from functools import partial

import torch

from benchmarks.device_stages.session import median, poison, race
from geowidth.ops.transport.cuda import CudaStep
from geowidth.ops.transport.operation import sinkhorn

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # on sum |plan - plan|, plans summing to 1
GOAL = 0.7  # of the copy's bytes a second, with the kernel in device memory
VISITS = 200


def correctness(session):
    """Plans at prime sizes, for usual and small eps, and for a cost far from 0."""
    before = len(session.wrong)
    for n, m in session.pick(((1, 1), (67, 13), (257, 521), (1021, 1021)), ((23, 17),)):
        generator = torch.Generator().manual_seed(n)
        cost = torch.rand(n, m, generator=generator, dtype=torch.float64)
        for dtype in (torch.float32, torch.float64):
            ours = cost.to(session.device, dtype)
            for name, shift, eps in (("", 0.0, 0.1), (", small eps", 0.0, 0.01), (", shifted", 1000.0, 0.1)):
                shifted = ours + shift
                truth = sinkhorn(shifted.cpu().double(), eps, tolerance=1e-10).coupling
                for backend in session.serving("sinkhorn"):
                    _judge(session, backend, shifted, eps, truth, name)
    session.note(f"sinkhorn: {len(session.wrong) - before} results wrong")


def _judge(session, backend, cost, eps, truth, name):
    dtype = str(cost.dtype).removeprefix("torch.")
    try:
        poison(session, 16)
        found = sinkhorn(cost, eps, tolerance=1e-9, backend=backend).coupling.cpu().double()
    except Exception as failure:
        return session.failed(f"sinkhorn, {backend}, {dtype}, {tuple(cost.shape)}{name}", failure)
    error = float((found - truth).abs().sum())
    return session.judge("sinkhorn", backend, f"plan, {dtype}{name}", len(cost), error, TOLERANCE[cost.dtype])


def timings(session):
    """One visit by size: rows resident in shared memory, and all in device memory, beside two passes of torch."""
    if "cuda" not in session.serving("sinkhorn"):
        return
    for n in session.pick((4096, 2048, 1024), (24,)):
        generator = torch.Generator().manual_seed(n)
        logs = -20 * torch.rand(n, n, generator=generator).to(session.device)
        calls = {("torch", 1): partial(_torch_pass, logs)}
        for name, rows in (("resident", None), ("streaming", 0)):
            for visits in session.pick((VISITS, 3 * VISITS), (2, 4)):
                calls[name, visits] = solve(logs, visits, rows)
        times = race(session, calls, seconds=4.0)
        _report(session, n, {key: (median(found), getattr(calls[key], "visits", 1)) for key, found in times.items()})


def solve(logs, visits, resident_rows):
    """A function that solves in float32 with so many visits of the kernel, as its `visits` says, and forms the plan."""
    zero = torch.zeros(len(logs), device=logs.device)
    weights = torch.full_like(zero, 1 / len(logs))
    step = CudaStep(zero, zero, weights, weights, 1, resident_rows)
    plan = torch.zeros_like(logs)

    def run():
        step.f.zero_(), step.g.zero_()
        run.visits = step(logs, 1.0, plan, -1.0, visits)[1]  # no tolerance: exactly so many

    return run


def _torch_pass(logs):
    """The row and the column half-step as plain torch has them: two passes, and what logsumexp keeps."""
    rows = torch.logsumexp(logs, 1)
    return torch.logsumexp(logs - rows[:, None], 0)


def _report(session, n, found):
    """found: {(name, visits asked for): (seconds, visits made)}; what a solve costs beside its visits cancels."""
    ceiling = session.ceilings.get("copy", float("nan"))
    words = []
    for name in ("resident", "streaming"):
        few, many = (sorted(v for (kind, _), v in found.items() if kind == name) + [None, None])[:2]
        if many is None or many[1] == few[1]:
            continue
        seconds = (many[0] - few[0]) / (many[1] - few[1])
        share = n * n * 4 / seconds / ceiling
        where = ("sinkhorn", f"cuda, {name}", "one visit, float32")
        session.add(*where, "wall", "n", n, p50=seconds)
        session.add(*where, "ratio", "n", n, p50=share, note="of a copy's bytes a second")
        words.append(f"{name} {seconds * 1e6:.1f} us, {share:.2f} of a copy's bytes a second")
    if ("torch", 1) in found:
        words.append(f"torch {found['torch', 1][0] * 1e6:.0f} us")
    goal = f"(goal: streaming {GOAL}, resident {2 * GOAL})"
    session.note(f"sinkhorn, one visit, n={n}: {'; '.join(words)} {goal}")
