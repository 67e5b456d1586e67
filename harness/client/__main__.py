"""``python -m harness.client [CORE]``: one worker."""

from harness.client.worker import main

main()
