"""Where an engine runs: at an address, as a local process, in a container, or on another host over ssh."""

import ipaddress
import itertools
import os
import re
import socket
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import psutil

from bakeoff.engines.addresses import Address, Balance, GpuExporter, is_plain, labels_of, problem_of, targets_of
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import BadOption
from bakeoff.engines.secrets import names_secret

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class Container(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A container that is started for the run and removed after it."""

    image: str
    """With its tag or digest."""
    runtime: str = "docker"
    """``docker`` or ``podman``."""
    gpus: str | None = None
    """``all``, or device numbers with commas; the default is none."""
    args: list[str] = []
    """Extra arguments of ``docker run``, before the image."""
    command: list[str] | None = None
    """Command before the engine's flags, for images without the adapter's usual entry point."""


class Ssh(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Another host, on which ``ssh HOST true`` works without a prompt."""

    host: str
    """Host for ``ssh``: ``user@host`` or an entry of ~/.ssh/config."""
    command: list[str] = []
    """Command that starts the engine there, before its flags; the default is the adapter's program."""
    args: list[str] = []
    """Extra arguments of ``ssh``, before the host."""
    model_path: str | None = None
    """Path of the model on that host; the default is the same path as here."""


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How to run and reach one engine; the default is a local process on a free port."""

    url: str | None = None
    """Address of a running server, with or without the final ``/v1``; nothing is launched then."""
    urls: list[Address] = []
    """Several addresses of a running engine, in place of ``url``."""
    balance: Balance | None = None
    """How the client divides requests among several replicas; the default is ``round-robin``."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Servers of it to start here, each on a port of its own, among which the client divides its requests. Each may use
    an equal part of the GPUs that the engine may use, or, without GPUs, of the CPU cores."""
    replica_header: str | None = None
    """Header of a router's answers that names the replica that answered, by its address or a name of its own."""
    exporters: list[GpuExporter] = []
    """Pages of an exporter that shows its GPUs, such as DCGM's: GPUs on other hosts, or that NVML does not know."""
    port: int | None = None
    """Port on 127.0.0.1 for a launched engine; the default is a free one."""
    served_model_name: str | None = None
    """Model name in requests; the default is the experiment's model name."""
    api_key_env: str | None = None
    """Environment variable with the key that requests carry; the key itself is never stored."""
    headers: dict[str, str] = {}
    """Extra headers of each request; their values are treated as secrets."""
    environment: str | None = None
    """Python environment: an installed one (``bakeoff engines list``) or the folder of a venv."""
    program: str | None = None
    """Path of the program to start, instead of searching for it."""
    container: Container | None = None
    """Run it in a container."""
    ssh: Ssh | None = None
    """Run it on another host; its port is forwarded to 127.0.0.1 here."""
    args: list[str] = []
    """Extra command-line arguments."""
    env: dict[str, str] = {}
    """Extra environment variables; put secrets here, not in ``args``."""
    inherit: list[str] = []
    """Variables to pass on from Bakeoff's own environment. By default a container gets none, and a local process all
    except those whose names denote secrets."""
    ready_timeout_s: float | None = None
    """Limit on the time until ready, in seconds; the default depends on the adapter."""

    @property
    def addresses(self) -> Sequence[Address]:
        """Where a running engine is reached; none if it is launched."""
        return self.urls or ([Address(self.url)] if self.url else [])

    @property
    def replica_labels(self) -> Sequence[str]:
        """Labels of its addresses, or of the replicas that are started; none for a single server to start."""
        if self.replicas > 1:
            return [f"replica-{number}" for number in range(1, self.replicas + 1)]
        return labels_of(self.addresses)

    @property
    def address(self) -> str | None:
        """The first address that gets requests; None if the engine is launched."""
        return next((target.url for target in targets_of(self.addresses)), None)

    @property
    def division(self) -> Balance:
        """How the client divides requests among several replicas."""
        return self.balance or Balance.ROUND_ROBIN

    def secrets(self) -> list[str]:
        """All values that must never be written or shown."""
        urls = [url for address in self.addresses for url in (address.url, address.metrics) if url]
        of_urls = [secret for url in urls for secret in _secrets_in(url)]
        named = [value for name, value in self.env.items() if names_secret(name)]
        inherited = [os.environ.get(name, "") for name in (self.api_key_env, *self.inherit) if name]
        return [*of_urls, *named, *self.headers.values(), *inherited]

    def gpus(self, environ: Mapping[str, str]) -> str | None:
        """GPUs of this machine that it may use, as in ``CUDA_VISIBLE_DEVICES``; None for all, "" for none.

        Args:
            environ: environment of a local process.
        """
        if self.ssh or (self.addresses and not any(is_here(endpoint(address.url).host) for address in self.addresses)):
            return ""
        if self.container is None:
            return environ.get("CUDA_VISIBLE_DEVICES")
        is_all = self.container.gpus == "all" or any("gpu" in word for word in self.container.args)
        return None if is_all else self.container.gpus or ""

    def problem(self) -> str | None:
        """The first contradiction between settings, or None."""
        ways = [name for name in ("url", "urls", "container", "ssh") if getattr(self, name) not in (None, [])]
        own = ("environment", "program", "args", "env", "inherit", "port")
        launching = [name for name in own if getattr(self, name)]
        flags = (word for word in self.args if word.startswith("-"))
        secret_flag = next((word for word in flags if names_secret(_name(word))), "")
        exposed = _variable_with_secret(self.container.args) if self.container else None
        checks = (
            (len(ways) < 2, f"an engine has only one of {' and '.join(ways)}"),
            (
                not (self.addresses and launching),
                f"{', '.join(launching)} cannot be set of an engine that runs already",
            ),
            (
                self.replicas == 1 or not ways,
                f"replicas are started as processes of this machine; leave out {' and '.join(ways)}, or replicas",
            ),
            (self.replicas == 1 or self.port is None, "replicas have ports of their own; leave out port"),
            (
                self.replicas == 1 or self.replica_header is None,
                "replica_header belongs to a router; leave it out, or replicas",
            ),
            (
                not (wrong := problem_of(self.addresses, self.balance if self.replicas == 1 else None,
                                         self.replica_header)),
                wrong,
            ),
            (
                all(is_plain(exporter.url) for exporter in self.exporters),
                "exporters: give the http or https address of each page, without a user",
            ),
            (
                len({exporter.url for exporter in self.exporters}) == len(self.exporters),
                "exporters names a page twice; remove one, or join their gpus",
            ),
            (not secret_flag, f"args: {_name(secret_flag)} would show its value in the process list; give it in env"),
            (not exposed, f"container.args: {exposed} would show its value in the process list; give it in env"),
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
            (not (header := header_problem(self.headers)), header),
            (self.ready_timeout_s is None or self.ready_timeout_s > 0, "ready_timeout_s must be above 0"),
        )  # fmt: skip
        return next((message for is_valid, message in checks if not is_valid), None)


def header_problem(headers: Mapping[str, str]) -> str | None:
    """Which header would be sent as another one, or as none (RFC 9110, section 5), or None; values are secrets."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            return f"headers has {name!r}, which is not the name of a header; use letters, digits and hyphens"
        if not _HEADER_VALUE.fullmatch(value):
            return f"header {name} has a value with a line end, a control character or a letter beyond Latin-1"
    return None


def _is_host(name: str) -> bool:
    """Reject a leading hyphen: ``-oProxyCommand`` would be an option of ssh that runs a local program."""
    return bool(name) and not name.startswith("-")


def is_here(host: str) -> bool:
    """Whether a host name resolves to this machine."""
    try:
        resolved = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):  # UnicodeError: not a valid host name
        return False
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    return any(address in own or ipaddress.ip_address(address).is_loopback for address in resolved)


def _secrets_in(url: str) -> list[str]:
    """User without a password, password and named secrets in the query; the whole address if it is malformed."""
    try:
        address = endpoint(url)
    except BadOption:  # a password or a key is somewhere in it
        return [url.strip()] if {"@", "?"} & set(url) else []  # as the error quotes it
    user = None if address.password else address.user
    named = [value for name, value in urllib.parse.parse_qsl(address.query) if names_secret(name)]
    own = [form for text in (user, address.password) if text for form in (text, urllib.parse.unquote(text))]
    return [*own, *([address.query] if named else []), *named]


def _name(word: str) -> str:
    return word.partition("=")[0]


def _variable_with_secret(args: Sequence[str]) -> str | None:
    """Name of a secret variable that arguments of ``docker run`` set, or None."""
    words = [*args, ""]
    for flag, following in itertools.pairwise(words):
        assignment = following if flag in {"-e", "--env"} else flag.removeprefix("--env=").removeprefix("-e")
        name, is_set, _ = assignment.partition("=")
        if is_set and flag.startswith(("-e", "--env")) and names_secret(name):
            return name
    return None
