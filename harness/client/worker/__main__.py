"""``python -m bakeoff.harness.client.worker [CORE]``: one worker."""

from bakeoff.harness.client.worker.process import main

main()
