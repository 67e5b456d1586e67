"""The command that shows results in a browser: dashboard."""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import DEFAULT_OUT

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

    The dashboard is read-only. Only this machine can reach it unless --network is given; then every request needs the
    printed token.

    Examples
    --------
    bakeoff dashboard
    bakeoff dashboard runs --port 9000
    bakeoff dashboard --host 0.0.0.0 --network --token-env TOKEN

    Parameters
    ----------
    runs
        Folder of run folders.
    host
        Address to listen on.
    port
        Port to listen on; 0 chooses a free port.
    network
        Allow an address that other machines can reach.
    name
        Additional host name of this machine in browsers, of a proxy or in DNS.
    token_env
        Environment variable with the token that every request needs. The default is no token on loopback, and a random
        token with --network.
    rebuild
        Rebuild the index of runs.
    """
    import asyncio
    import os

    from bakeoff.harness.errors import BadExperiment
    from bakeoff.results.dashboard import access_policy, serve

    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise BadExperiment(f"the environment variable {token_env} is not set; export the token in it")
    access = access_policy(host, network=network, names=tuple(name or ()), token=token)
    asyncio.run(serve(runs, access, port, ready=_announce, rebuild=rebuild))
    return EXIT_OK


def _announce(address: str) -> None:
    sys.stdout.write(f"dashboard: {address}\n")
    sys.stdout.flush()


COMMANDS = [Command("dashboard", dashboard, Title.LOOK, 50)]
