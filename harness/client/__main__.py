"""``python -m bakeoff.harness.client [CORE]``: one worker."""

from bakeoff.harness.client.worker import main

main()
