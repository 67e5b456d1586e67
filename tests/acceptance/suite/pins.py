"""How many releases each pinned engine is behind the newest on the package index; asks the index through pip.

    python -m tests.acceptance.suite.pins

An engine that was pinned long ago is measured with faults and speeds that its users no longer have.
"""

import re
import subprocess
import sys

from bakeoff.engines.environments.recipes import RECIPES
from benchmarks.bars import Bars

MOST_BEHIND = 2
_PIN = re.compile(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)")


def main() -> None:
    bars = Bars()
    for recipe in RECIPES.values():
        pinned = dict(found.groups() for group in recipe.requirements for line in group if (found := _PIN.match(line)))
        name, version = recipe.distribution, pinned[recipe.distribution]
        argv = [sys.executable, "-m", "pip", "index", "versions", name]
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        versions = re.sub(r".*Available versions: ([^\n]*).*", r"\1", said, flags=re.DOTALL).split(", ")
        if version not in versions:
            print(f"{name} {version}: the index that pip asks does not have it")
            continue
        print(f"{name} {version} is pinned, {versions[0]} is the newest")
        bars.add(f"releases_behind_{name}", versions.index(version), "<=", MOST_BEHIND)
    bars.finish()


if __name__ == "__main__":
    main()
