"""Makes the builders importable: tests are collected with import-mode=importlib, which adds no path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
