"""Where an engine runs: at an address, as a process here, in a container, or on another host over ssh."""

import ipaddress
import itertools
import os
import socket
import urllib.parse
from collections.abc import Mapping, Sequence

import msgspec
import psutil

from engines.secrets import names_secret


class Container(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A container that is started for the run and removed after it."""

    image: str
    """With its tag or digest."""
    runtime: str = "docker"
    """``docker`` or ``podman``."""
    gpus: str | None = None
    """``all``, or device numbers with commas; the default is none."""
    args: list[str] = []
    """More arguments of ``docker run``, before the image."""
    command: list[str] | None = None
    """What is run inside before the engine's flags, where the image's entry point is not the adapter's usual one."""


class Ssh(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Another host, with keys set up so that ``ssh HOST true`` asks nothing."""

    host: str
    """As ``ssh`` takes it: ``user@host`` or an entry of ~/.ssh/config."""
    command: list[str] = []
    """What starts the engine there, before its flags; the default is the adapter's program, looked for there."""
    args: list[str] = []
    """More arguments of ``ssh``, before the host."""
    model_path: str | None = None
    """Where the model lies on that host; the default is the same path as here."""


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How one engine is run and reached; the default is a process of this machine on a free port."""

    url: str | None = None
    """Where it runs already, with or without the final ``/v1``; then nothing is launched."""
    port: int | None = None
    """Port of 127.0.0.1 on which it is launched; the default is a free one."""
    served_model_name: str | None = None
    """What requests call the model; the default is the experiment's model name."""
    api_key_env: str | None = None
    """Environment variable that holds the key which requests carry; the key itself is never stored."""
    headers: dict[str, str] = {}
    """More headers of each request; their values are treated as secrets."""
    environment: str | None = None
    """Where its packages are: an installed environment (``bakeoff engines list``) or the folder of a venv."""
    program: str | None = None
    """Path of the program to start, instead of the one that is looked for."""
    container: Container | None = None
    """Run it in a container."""
    ssh: Ssh | None = None
    """Run it on another host; its port is forwarded to 127.0.0.1 here."""
    args: list[str] = []
    """More words of its command line."""
    env: dict[str, str] = {}
    """More variables of its environment; this is where secrets belong, not ``args``."""
    inherit: list[str] = []
    """Variables of Bakeoff's own environment that it is given too. Without this, a container gets none of them, and a
    process of this machine all but those whose names say that they are secrets."""
    ready_timeout_s: float | None = None
    """How long it may take to get ready, in seconds; the default is the adapter's."""

    def secrets(self) -> list[str]:
        """Whatever in it must never be written or shown, as far as it is known here."""
        parts = urllib.parse.urlsplit(self.url or "")
        user = parts.username if parts.username and not parts.password else None
        asked = [parts.query, *(value for _, value in urllib.parse.parse_qsl(parts.query))]
        of_url = [spelt for text in (user, parts.password) if text for spelt in (text, urllib.parse.unquote(text))]
        named = [value for name, value in self.env.items() if names_secret(name)]
        inherited = [os.environ.get(name, "") for name in (self.api_key_env, *self.inherit) if name]
        return [*of_url, *asked, *named, *self.headers.values(), *inherited]

    def gpus(self, environ: Mapping[str, str]) -> str | None:
        """This machine's GPUs that it may use, as ``CUDA_VISIBLE_DEVICES`` names them; None for all, "" for none.

        Args:
            environ: of a process that is launched here.
        """
        if self.ssh or (self.url and not is_here(urllib.parse.urlsplit(self.url).hostname or "")):
            return ""
        if self.container is None:
            return environ.get("CUDA_VISIBLE_DEVICES")
        is_all = self.container.gpus == "all" or any("gpu" in word for word in self.container.args)
        return None if is_all else self.container.gpus or ""

    def problem(self) -> str | None:
        """What contradicts itself, or None."""
        ways = [name for name in ("url", "container", "ssh") if getattr(self, name) is not None]
        own = ("environment", "program", "args", "env", "inherit", "port")
        launching = [name for name in own if getattr(self, name)]
        flags = (word for word in self.args if word.startswith("-"))
        spoken = next((word for word in flags if names_secret(_name(word))), "")
        told = _variable_with_secret(self.container.args) if self.container else None
        checks = (
            (len(ways) < 2, f"an engine has only one of {' and '.join(ways)}"),
            (self.url is None or not launching, f"{', '.join(launching)} cannot be set of an engine that runs already"),
            (not spoken, f"args: {_name(spoken)} would show its value in the process list; give it in env"),
            (not told, f"container.args: {told} would show its value in the process list; give it in env"),
            (self.container is None or not (self.environment or self.program),
             "environment and program belong to a process of this machine; set container.command"),
            (self.ssh is None or not self.environment, "environment belongs to this machine; set ssh.command"),
            (
                self.ssh is None or not any(map(names_secret, [*self.env, *self.inherit])),
                "env: a secret would show in the other host's process list; set it there",
            ),
            (self.ssh is None or _is_host(self.ssh.host), "ssh.host must name a host, and not begin with '-'"),
            (self.container is None or self.container.runtime in {"docker", "podman"},
             "container.runtime must be docker or podman"),
            (self.ready_timeout_s is None or self.ready_timeout_s > 0, "ready_timeout_s must be above 0"),
        )  # fmt: skip
        return next((complaint for good, complaint in checks if not good), None)


def _is_host(name: str) -> bool:
    """What begins with a hyphen would be an option of ssh, such as ``-oProxyCommand``, which runs a program here."""
    return bool(name) and not name.startswith("-")


def is_here(host: str) -> bool:
    """Whether a name leads to this machine; one that leads nowhere does not."""
    try:
        found = {str(told[4][0]) for told in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):  # the second of what can be no name
        return False
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    return any(address in own or ipaddress.ip_address(address).is_loopback for address in found)


def _name(word: str) -> str:
    return word.partition("=")[0]


def _variable_with_secret(args: Sequence[str]) -> str | None:
    """The name of a variable that arguments of ``docker run`` set to a secret, or None."""
    words = [*args, ""]
    for flag, following in itertools.pairwise(words):
        given = following if flag in {"-e", "--env"} else flag.removeprefix("--env=").removeprefix("-e")
        name, is_set, _ = given.partition("=")
        if is_set and flag.startswith(("-e", "--env")) and names_secret(name):
            return name
    return None
