"""How many agents three servers carry on this CPU, for two tiers. Run by ``python -m benchmarks.agents.cpu``.

Searches ``cpu.toml``, which takes an hour on two cores, or reads an existing run (``--run``), and checks that every
engine has an answer with an interval for each tier, and an explained cache gap. With ``--publish FOLDER`` the run's
page and data are written there.
"""

import argparse
from pathlib import Path

from bakeoff import results
from bakeoff.results.report.search_lines import search_lines
from bakeoff.results.run.cache import cache_gaps_of
from benchmarks.bars import Bars
from benchmarks.experiments import measured
from docs.publishing import publish

EXPERIMENT = Path(__file__).with_name("cpu.toml")
TIERS = ("prompt=ttft_p90<500ms", "patient=ttft_p90<2s")
EXPECTED = 40
"""Agents; a trial with fewer of them takes longer, since it waits for 64 calls."""
ENGINES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="an existing run")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the run")
    parser.add_argument("--trials", type=int, default=4, help="for each engine and tier")
    parser.add_argument("--publish", type=Path, help="folder for the page and data, such as docs/results/agents-cpu")
    options = parser.parse_args()
    tiers = [word for tier in TIERS for word in ("--tier", tier)]
    budget = ("--around", str(EXPECTED), "--trials", str(options.trials))
    search = ("search", "--over", "agents", *budget, *tiers)
    run = results.load(options.run or measured(EXPERIMENT, options.out, resume=True, command=search))
    if options.publish:
        publish(run, EXPERIMENT, options.publish, "python -m benchmarks.agents.cpu")
    assert run.search is not None
    for line in search_lines(run.search):
        print(line)
    answers = [each for each in run.search.engines if each.level is not None and each.high is not None]
    gaps = cache_gaps_of(run)
    bars = Bars()
    bars.add("answers", len(answers), "==", ENGINES * len(TIERS))
    bars.add("engines_with_a_cache_gap", len({each.engine for each in gaps}), "==", ENGINES)
    bars.finish()


if __name__ == "__main__":
    main()
