"""How often the findings name a slow replica, one with half the cache and an imbalance, in virtual time.

    python -m benchmarks.routing.findings [--trials 20] [--policy by-session]

The client's own policies send sessions of agents to three virtual replicas like those of
:mod:`benchmarks.routing.policies`. Each trial has sessions of its own. Other findings about addresses are counted, too:
under by-session and prefix-aware an imbalance is real, since sessions differ.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from bakeoff.harness.virtual import Batched, VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results.run.run import Trial
from bakeoff.workloads import Session
from benchmarks.bars import Bars
from benchmarks.routing.replicas import (
    BETWEEN_STARTS_S,
    ITL_MS,
    POLICIES,
    PROMPT_TOKEN_MS,
    REPLICAS,
    SLOTS,
    Plant,
    Policy,
    agents,
    cache_tokens,
    named,
    slowdown,
)

_LABELS = {f"replica-{replica}:80": replica for replica in range(1, REPLICAS + 1)}
_SERVICE = Batched(ITL_MS / 1e3, 0.0, PROMPT_TOKEN_MS / 1e3)


def trial_of(policy: Policy, sessions: list[Session], seed: int, folder: Path) -> Trial:
    """A trial in virtual time."""
    path = folder / "sessions.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, sessions)))
    urls = [{"url": f"http://{label}"} for label in _LABELS]
    experiment = virtual_experiment(
        ["replicas"],
        [{"arrival": "workload"}],
        repeats=1,
        engines=[{"adapter": "openai", "label": "replicas", "urls": urls, "balance": policy.balance}],
        model={"name": "virtual", "tokenizer": "approximate"},
        workload={"name": "sessions", "options": {"path": str(path)}},
        trial={"duration_s": len(sessions) * BETWEEN_STARTS_S + 25, "timeout_s": 60, "warm_up_s": 0.0},
    )
    at = {
        f"http://{label}": VirtualEngine(
            service=_SERVICE, slots=SLOTS, slowdown=slowdown(replica), cache_block_tokens=16,
            cache_tokens=cache_tokens(replica, policy.cache),
        )
        for label, replica in _LABELS.items()
    }  # fmt: skip
    world = VirtualWorld({"replicas": VirtualEngine(service=_SERVICE)}, at=at, seed=seed)
    (trial,) = run_in(world, experiment, folder / "runs").finished
    return trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    own = {name: policy for name, policy in POLICIES.items() if policy.balance}
    parser.add_argument("--policy", action="append", choices=own, help="of the client (default: all)")
    options = parser.parse_args()
    own = {name: own[name] for name in options.policy or own}
    counts = {name: Counter[Plant]() for name in own}
    requests = Counter[str]()
    for seed in range(1, options.trials + 1):
        drawn = agents(max(policy.sessions for policy in own.values()), seed)
        for name, policy in own.items():
            sessions = drawn[: policy.sessions]
            requests[name] += sum(len(session.turns) for session in sessions)
            with tempfile.TemporaryDirectory() as folder:
                counts[name].update(named(trial_of(policy, sessions, seed, Path(folder)), _LABELS))
        sys.stderr.write(f"\r{seed} of {options.trials}")
    print()
    bars = Bars()
    for name, policy in own.items():
        print(f"{name}: {options.trials} trials of {requests[name] / options.trials:,.0f} requests on average")
        for plant in sorted({*policy.plants, *counts[name]}):
            planted = "planted" if plant in policy.plants else ""
            print(f"  {plant.code.value:<18} replica {plant.replica}  {counts[name][plant]:>3}  {planted}")
            if planted:
                bars.add(f"{name}_{plant.code.value}_named", counts[name][plant], "==", options.trials)
    bars.finish()


if __name__ == "__main__":
    main()
