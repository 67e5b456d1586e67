"""Private environments: each engine's packages in a venv of its own, since their dependencies clash."""

from engines.environments.finding import Environment, find, installed
from engines.environments.installing import install
from engines.environments.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Environment", "Recipe", "find", "install", "installed"]
