"""Python environments of engines: one venv per engine, because their dependencies conflict."""

from engines.environments.installation import install
from engines.environments.lookup import Environment, find, installed
from engines.environments.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Environment", "Recipe", "find", "install", "installed"]
