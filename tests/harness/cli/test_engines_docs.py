"""docs/engines.md lists what exists."""

import re
import tomllib
from pathlib import Path

import pytest

from bakeoff.engines.environments import RECIPES
from bakeoff.harness.experiment.reading import experiment_from

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")


def test_the_ways_to_run_are_accepted_as_they_stand() -> None:
    block = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    data = tomllib.loads(block[1])
    rest = {"name": "docs", "workload": {"name": "random"}, "loads": [{"concurrency": 1}], "model": {"path": "/m"}}
    read = experiment_from(rest | data, "docs")
    ways = [(side.url, side.container, side.ssh) for side in read.engines]
    assert [sum(way is not None for way in side) for side in ways] == [0, 1, 1, 1]


@pytest.mark.parametrize("name", RECIPES)
def test_every_environment_stands_in_the_table_with_its_adapter_and_its_pin(name: str) -> None:
    table = PAGE.partition("## Environments")[2]
    row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
    recipe = RECIPES[name]
    assert (f"`{recipe.adapter}`" if recipe.adapter else "–") in row
    pin = next(requirement for requirement in recipe.requirements[-1] if requirement.startswith(recipe.distribution))
    assert f"{recipe.distribution} {pin.partition('==')[2]}" in row
    assert ("NVIDIA GPU" in row) == recipe.needs_gpu
