"""Private environments: each engine's packages in a venv of its own, since their dependencies clash."""

from engines.environments.installation import install
from engines.environments.lookup import Environment, find, installed
from engines.environments.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Environment", "Recipe", "find", "install", "installed"]
