"""The command that shows results in a browser: dashboard."""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from harness.cli.options import DEFAULT_OUT, EXIT_OK

Names = Annotated[list[str] | None, cyclopts.Parameter(name="--name", negative="")]
Flag = Annotated[bool, cyclopts.Parameter(negative="")]


def dashboard(
    runs: Path = DEFAULT_OUT,
    *,
    host: str = "127.0.0.1",
    port: int = 8321,
    network: Flag = False,
    name: Names = None,
    token_env: str | None = None,
    rebuild: Flag = False,
) -> int:
    """Browse runs, comparisons, history and the run in progress.

    It reads and changes nothing. Only this machine reaches it, unless --network says otherwise: then every request must
    show the token that is printed.

    Parameters
    ----------
    runs
        Folder of run folders.
    host
        Address to listen on.
    port
        Its port; 0 takes a free one.
    network
        Allow an address that other machines reach.
    name
        A further name by which browsers know this machine: of a proxy, or in the DNS.
    token_env
        Environment variable with the token that every request must show. The default is none on loopback, and one drawn
        by lot with --network.
    rebuild
        Make the index of the runs anew.
    """
    import asyncio
    import os

    from harness.errors import BadExperiment
    from results.dashboard import access_policy, serve

    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise BadExperiment(f"the environment variable {token_env} is not set; it would hold the token")
    access = access_policy(host, network=network, names=tuple(name or ()), token=token)
    asyncio.run(serve(runs, access, port, ready=_announce, rebuild=rebuild))
    return EXIT_OK


def _announce(address: str) -> None:
    sys.stdout.write(f"dashboard: {address}\n")
    sys.stdout.flush()
