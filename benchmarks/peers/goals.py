"""The bars of our client: absolute ones, and ratios to the peers of the same run."""

from collections.abc import Sequence

from benchmarks.bars import Bars
from benchmarks.peers.misread import often_wrong
from benchmarks.peers.readings import Results, cpu_s_per_1m_chunks, itl_p99_error_ms, rss_mb, ttft_error_ms
from benchmarks.peers.running import Trial
from benchmarks.peers.scenarios import LEVELS

OURS, RUST = "bakeoff", "sglang-rust"
_TTFT_MS = dict(zip(LEVELS, (0.2, 0.4, 0.8, 1.2), strict=True))
_CPU_S = {"capacity-64": 2.6, "paced-256": 10.0}


def bars(results: Results, peers: Sequence[str], traps: Sequence[str]) -> Bars:
    """The bars of all scenarios that were run."""
    collected = Bars()
    for name, value, relation, goal in [*_errors(results), *_costs(results, peers), *_rates(results)]:
        if value is not None:
            collected.add(name, value, relation, goal)
    collected.add("loads_failed", results.failures(OURS), "==", 0)
    if traps:
        by_trap = [results.trials(OURS, trap) for trap in traps]
        collected.add("wrong_figures_in_traps", sum(len(often_wrong(trials)) for trials in by_trap), "==", 0)
    return collected


_Bar = tuple[str, float | None, str, float]


def _errors(results: Results) -> list[_Bar]:
    rows: list[_Bar] = []
    for streams, goal_ms in _TTFT_MS.items():
        paced = f"paced-{streams}"
        itl_ms = results.median(paced, OURS, itl_p99_error_ms)
        share = results.median(paced, OURS, lambda trial, streams=streams: trial.truth.in_flight / streams)
        rows.append((f"ttft_mean_error_ms_{streams}", results.median(paced, OURS, ttft_error_ms), "<=", goal_ms))
        rows.append((f"itl_p99_error_ms_{streams}", None if itl_ms is None else abs(itl_ms), "<=", 0.1))
        rows.append((f"in_flight_share_{streams}", share, ">=", 0.99))
    return rows


def _costs(results: Results, peers: Sequence[str]) -> list[_Bar]:
    rows: list[_Bar] = []
    for scenario, goal_s in _CPU_S.items():
        own_s = results.median(scenario, OURS, cpu_s_per_1m_chunks)
        rows.append((f"cpu_s_per_1m_chunks_{scenario}", own_s, "<=", goal_s))
        medians_s = (results.median(scenario, peer, cpu_s_per_1m_chunks) for peer in peers)
        peers_s = [median_s for median_s in medians_s if median_s is not None]
        if own_s is not None and peers_s:
            rows.append((f"cpu_over_cheapest_peer_{scenario}", own_s / min(peers_s), "<=", 1.0))
    rows.append(("peak_rss_mb", max(map(rss_mb, results.trials(OURS)), default=None), "<=", 300))
    return rows


def _rates(results: Results) -> list[_Bar]:
    rows: list[_Bar] = []
    for scenario in ("capacity-64", "capacity-256", "capacity-64-by-8"):
        rates = (results.median(scenario, name, lambda trial: trial.truth.chunks_per_s) for name in (OURS, RUST))
        own_rate, rust_rate = rates
        if own_rate is not None and rust_rate is not None:
            rows.append((f"chunks_per_s_over_{RUST}_{scenario}", own_rate / rust_rate, ">=", 1.0))
    one_token = results.median("one-token", OURS, lambda trial: trial.truth.requests_per_s)
    rows.append(("requests_per_s_one_token", one_token, ">=", 20_000))
    rows.append(("poisson_rate_off_plan", results.median("poisson-500", OURS, _off_plan), "<=", 0.01))
    return rows


def _off_plan(trial: Trial) -> float:
    """Share by which the rate that the server saw differs from the plan's."""
    assert trial.figures.planned_rate_per_s is not None, "our client says what it planned"
    return abs(trial.truth.arrivals_per_s / trial.figures.planned_rate_per_s - 1)
