"""Python environments of engines: one venv per engine, because their dependencies conflict."""

from bakeoff.engines.environments.installation import install, remove
from bakeoff.engines.environments.lookup import Environment, find, installed
from bakeoff.engines.environments.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Environment", "Recipe", "find", "install", "installed", "remove"]
