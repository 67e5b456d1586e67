"""Refuses to build from a checkout without symbolic links: its wheel would lack the five folders."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Links(BuildHookInterface):
    """The hook of each build, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  (the interface)
        """Check the links before anything is built."""
        if not Path(self.root, "src", "bakeoff", "harness").is_dir():
            sys.exit(
                "bakeoff: the links in src/bakeoff are missing; clone again with: git clone -c core.symlinks=true "
                "(on Windows with the developer mode on)"
            )
