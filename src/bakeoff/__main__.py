"""``python -m bakeoff``: the command ``bakeoff``."""

from bakeoff.harness.entry import main

main()
