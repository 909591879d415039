"""Gromov-Wasserstein on a GPU: entropic solves and the statistic against the CPU, and their time beside peers'."""

import os
import signal
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from benchmarks.clouds import language_model_cloud
from benchmarks.device_stages.session import median, poison, quantiles, race, wait
from benchmarks.gromov import TIGHT_POT, judged
from geowidth.ops import entropic_gromov_wasserstein, gromov_wasserstein, pairwise_distances

GOAL = 0.150  # seconds of an entropic solve at n = 4096
EPS_REL = 0.1
TIGHT = 1e-6  # tolerance at which objectives are compared
PEER_SECONDS = 20  # a peer's one call may take so long


def problem(session, n, dtype, d=768):
    """Distances of a cloud before and after a residual FFN over the first's mean, on the device."""
    clouds = language_model_cloud(n, session.pick(d, 16), 0)
    costs = [pairwise_distances(torch.from_numpy(c).to(session.device), backend="torch") for c in clouds]
    scale = costs[0].mean()
    return [(c / scale).to(dtype) for c in costs]


def correctness(session):
    """Entropic objective and statistic at prime sizes against float64 on the CPU."""
    before = len(session.wrong)
    for n in session.pick((67, 257, 1021), (11,)):
        costs = problem(session, n, torch.float64)
        host = [c.cpu() for c in costs]
        truth = entropic_gromov_wasserstein(*host, eps_rel=EPS_REL, start="identity", tolerance=TIGHT)
        for backend in session.serving("entropic_gromov_wasserstein", ("cuda", "triton")):
            # At the usual tolerance, marginals that are off by it move the objective by more than float32 does.
            _entropic(session, backend, [c.float() for c in costs], truth.objective, 1e-3)
            if not (session.rehearse and backend == "triton"):  # its interpreter would take a minute
                _entropic(session, backend, costs, truth.objective, 1e-5, tolerance=TIGHT)
        for backend in session.serving("gromov_wasserstein", ("cuda",)):
            _statistic(session, backend, costs, gromov_wasserstein(*host))
    session.note(f"Gromov-Wasserstein: {len(session.wrong) - before} results wrong")


def _entropic(session, backend, costs, objective, allowed, **options):
    n, dtype = len(costs[0]), str(costs[0].dtype).removeprefix("torch.")
    try:
        poison(session)
        found = entropic_gromov_wasserstein(*costs, eps_rel=EPS_REL, start="identity", backend=backend, **options)
    except Exception as failure:
        return session.failed(f"entropic GW, {backend}, {dtype}, n={n}", failure)
    error = abs(found.objective - objective) / abs(objective)
    session.judge("entropic_gromov_wasserstein", backend, f"objective, {dtype}", n, error, allowed)
    sums = float(
        (found.coupling.double().sum(0) - 1 / n).abs().sum() + (found.coupling.double().sum(1) - 1 / n).abs().sum()
    )
    session.judge("entropic_gromov_wasserstein", backend, f"marginals, {dtype}", n, sums, 1e-5)


def _statistic(session, backend, costs, truth):
    n = len(costs[0])
    try:
        poison(session)
        found = gromov_wasserstein(*costs, backend=backend)
    except Exception as failure:
        return session.failed(f"GW statistic, {backend}, n={n}", failure)
    for name in ("value", "identity", "lower", "scale", "eccentricity", "shape"):
        error = abs(getattr(found, name) - getattr(truth, name)) / truth.value
        # The descents may part at ties: then the statistic itself may differ by what a tolerance of 1e-6 leaves.
        session.judge("gromov_wasserstein", backend, name, n, error, 1e-9 if name in ("identity", "lower") else 1e-4)


def timings(session):
    """Entropic solves and the statistic by size; peers where they are installed and time is left."""
    for n in session.pick((4096, 1024, 2048), (24,)):
        costs = problem(session, n, torch.float32)
        calls = {}
        for name in session.serving("entropic_gromov_wasserstein", session.pick(("cuda", "triton"), ("cuda",))):
            calls[name] = partial(entropic_gromov_wasserstein, *costs, eps_rel=EPS_REL, backend=name)
            calls[f"{name}, identity"] = partial(calls[name], start="identity")
        times = race(session, calls, seconds=8.0, most=7)
        for name, values in times.items():
            session.add("entropic_gromov_wasserstein", name, "float32", "wall", "n", n, **quantiles(values))
        if "cuda" in times:
            goal = f" (goal {GOAL * 1e3:.0f} ms)" if n == 4096 else ""
            words = ", ".join(f"{name} {median(values) * 1e3:.1f} ms" for name, values in times.items())
            session.note(f"entropic GW, n={n}: {words}{goal}")
        double = [c.double() for c in costs]
        serving = session.serving("gromov_wasserstein", ("cuda",))
        calls = {name: partial(gromov_wasserstein, *double, backend=name) for name in serving}
        for name, values in race(session, calls, 8.0, 5).items():
            session.add("gromov_wasserstein", name, "statistic", "wall", "n", n, **quantiles(values))
            session.note(f"GW statistic, n={n}: {median(values) * 1e3:.1f} ms")


def peers(session):
    """POT's torch backend and ott-jax on the same card, one call each, with the objective that each reaches."""
    if "cuda" not in session.serving("entropic_gromov_wasserstein"):
        return
    limit = session.pick(PEER_SECONDS, 2)
    for n in session.pick((2048, 1024), (24,)):
        costs = problem(session, n, torch.float32)
        ours, mine = _once(session, partial(entropic_gromov_wasserstein, *costs, eps_rel=EPS_REL, backend="cuda"), 60)
        host = [c.cpu().double().numpy() for c in costs]
        for name, make in PEERS.items():
            if session.left() < 2 * limit and not session.rehearse:
                return session.note(f"peers: stopped before {name} at n={n}, out of time")
            try:
                plan, seconds = _once(session, make(costs, host, ours.eps), limit)
            except ImportError as missing:
                session.note(f"peers: {name} is left out: {missing}")
                continue
            row = ("entropic_gromov_wasserstein", name, "float32", "wall", "n", n)
            if plan is None:
                session.add(*row, note=f"not done in {limit} s")
                session.note(f"entropic GW, n={n}: {name} not done in {limit} s, ours {mine * 1e3:.1f} ms")
                continue
            plan = plan.cpu().numpy() if isinstance(plan, torch.Tensor) else np.asarray(plan)
            value = judged(*map(torch.from_numpy, host), plan, ours.eps)
            session.add(*row, p50=seconds, objective=value)
            session.note(
                f"entropic GW, n={n}: {name} {seconds:.2f} s, {seconds / mine:.1f} times ours (goal 20), objective "
                f"{value:.6g}, ours {ours.objective:.6g}"
            )


def _pot(costs, host, eps):
    import ot

    return lambda: ot.gromov.entropic_gromov_wasserstein(*costs, epsilon=eps)


def _pot_tuned(costs, host, eps):
    import ot

    n = len(costs[0])
    start = (0.999 * torch.eye(n, device=costs[0].device) / n + 0.001 / n**2).to(costs[0].dtype)
    return lambda: ot.gromov.entropic_gromov_wasserstein(*costs, epsilon=eps, G0=start, **TIGHT_POT)


def _ott(costs, host, eps):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take most of the card's memory
    import ott  # noqa: F401

    from benchmarks.gromov import ott_providers

    return ott_providers(*host, eps)["ott-jax, warm, identity"]


PEERS = {"POT, torch, tuned, identity": _pot_tuned, "ott-jax, warm, identity": _ott, "POT, torch": _pot}


def _once(session, function, seconds):
    """(result, seconds of one call after a first), or (None, None) if a call takes longer than `seconds`."""
    try:
        with at_most(seconds):
            function()
            wait(session)
            begin = time.perf_counter()
            result = function()
            wait(session)
            return result, time.perf_counter() - begin
    except TimeoutError:
        return None, None


@contextmanager
def at_most(seconds):
    """Raise TimeoutError inside, between two Python instructions, after so many seconds."""

    def stop(*_):
        raise TimeoutError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
