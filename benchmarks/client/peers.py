"""Our client beside those of vLLM, AIPerf, GuideLLM and SGLang, each on one core, against one truth server.

Needs ``make peers``. In each round the clients take turns, scenario by scenario; results are medians over the rounds.
Traps, in which a client reports right or wrong figures, run once. Takes half an hour on an otherwise idle machine;
``--quick`` runs one round, ``--peers`` selects clients and ``--scenarios`` loads.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import model_argument
from benchmarks.peers.aiperf import AiPerf
from benchmarks.peers.bakeoff import Bakeoff
from benchmarks.peers.goals import bars
from benchmarks.peers.guidellm import GuideLlm
from benchmarks.peers.install import is_installed
from benchmarks.peers.protocol import Client
from benchmarks.peers.readings import Results, cpu_s_per_1m_chunks, itl_p99_error_ms, rss_mb, ttft_error_ms
from benchmarks.peers.running import ClientFailed, Trial, measure
from benchmarks.peers.scenarios import Scenario, measured, traps
from benchmarks.peers.sglang_rust import SglangRust
from benchmarks.peers.tables import headline, trap_table
from benchmarks.peers.vllm_bench import VllmBench

PEERS: dict[str, tuple[Client, str]] = {
    "vllm": (VllmBench(), "vllm"),
    "sglang-rust": (SglangRust(), "sglang"),
    "aiperf": (AiPerf(), "aiperf"),
    "guidellm": (GuideLlm(), "guidellm"),
}
"""Each client with the name of its environment."""


def main() -> None:
    options = _options()
    clients: list[Client] = [Bakeoff(), *(PEERS[name][0] for name in options.peers)]
    if missing := [name for name in options.peers if not is_installed(PEERS[name][1])]:
        sys.exit(f"not installed: {', '.join(missing)}; run make peers, or choose with --peers")
    folder = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="bakeoff-peers-"))
    print(f"raw results: {folder}", flush=True)
    loads = [load for load in measured(Path(options.model)) if load.name.startswith(tuple(options.scenarios))]
    trap_scenarios = traps(Path(options.model)) if {"", "traps"} & set(options.scenarios) else []
    if not loads + trap_scenarios:
        sys.exit(f"no scenario is called {' or '.join(options.scenarios)}…")
    results = Results()
    for number in range(1 if options.quick else options.rounds):
        scenarios = [*loads, *(trap_scenarios if number == 0 else [])]
        asyncio.run(one_round(folder / f"round-{number + 1}", scenarios, clients, results))
    names = [client.name for client in clients]
    print(f"\n{headline(results, names)}\n")
    if trap_scenarios:
        print(f"{trap_table(results, names, [trap.name for trap in trap_scenarios])}\n")
    bars(results, options.peers, [trap.name for trap in trap_scenarios]).finish()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[*PEERS])
    parser.add_argument(
        "--scenarios", nargs="+", default=[""], help="beginnings of names: paced, capacity-64, one, traps"
    )
    parser.add_argument("--keep", type=Path, help="folder for the raw results")
    return parser.parse_args()


async def one_round(folder: Path, scenarios: Sequence[Scenario], clients: Sequence[Client], results: Results) -> None:
    for scenario in scenarios:
        for client in clients:
            if client.slow and scenario.only_fast:
                continue
            client_folder = folder / scenario.name.replace(" ", "-") / client.name
            try:
                trial = await measure(client, scenario.schedule, scenario.load_of(client), client_folder)
            except ClientFailed as failure:
                print(f"{scenario.name}: {failure}", flush=True)
                results.fail(scenario.name, client.name)
                continue
            results.add(scenario.name, client.name, trial)
            print(f"{scenario.name:<20} {client.name:<12} {_line(trial)}", flush=True)


def _line(trial: Trial) -> str:
    return (
        f"TTFT error {ttft_error_ms(trial):+8.2f} ms, ITL p99 error {itl_p99_error_ms(trial):+8.2f} ms, "
        f"in flight {trial.truth.in_flight:6.1f}, {trial.truth.chunks_per_s:11,.0f} chunks/s, "
        f"{cpu_s_per_1m_chunks(trial):8.1f} CPU s/1M, {rss_mb(trial):6.0f} MB, {trial.wall_s:5.1f} s"
    )


if __name__ == "__main__":
    main()
