"""Residual rejection keeps the distribution of answers.

Answers of four tokens from a vocabulary of three, for 20 groups of 5,000 seeds. Chi-square tests compare their joint
distribution with the exact one, for each group and for all 100,000 answers together.
"""

import argparse

from benchmarks.bars import Bars
from tests.reference_engine.speculation.test_residual_rejection import answers, p_value, softmax

GROUPS, SEEDS = 20, 5_000
SMALLEST_P = 1e-3


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    bars = Bars()
    for temperature in (0.7, 1.3):
        all_answers, p_values = [], []
        for group in range(GROUPS):
            group_answers, _ = answers(range(group * SEEDS, (group + 1) * SEEDS), temperature=temperature)
            p_values.append(p_value(group_answers, softmax(temperature)))
            all_answers += group_answers
        all_p = p_value(all_answers, softmax(temperature))
        print(
            f"temperature {temperature}: p of all {all_p:.3f}, of groups {min(p_values):.3f} to {max(p_values):.3f}",
            flush=True,
        )
        bars.add(f"p_of_all_at_{temperature}", all_p, ">=", SMALLEST_P)
        bars.add(f"smallest_p_of_{GROUPS}_groups_at_{temperature}", min(p_values), ">=", SMALLEST_P)
    bars.finish()


if __name__ == "__main__":
    main()
