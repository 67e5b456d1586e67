"""Which machine a process is on, as far as it matters to somebody who would share its clock, its ports or its pids."""

import socket
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """A kernel, and the namespaces of it that a process lives in.

    Containers of one machine have one kernel, but may have a loopback, pids and (since Linux 5.6) a monotonic clock of
    their own. An empty text is *unknown*, which equals nothing.

    Attributes:
        host: name, for people.
        boot: random id of this start of the kernel.
        clocks: time namespace.
        network: network namespace.
        pids: pid namespace.
    """

    host: str
    boot: str
    clocks: str
    network: str
    pids: str

    @classmethod
    def here(cls) -> "Machine":
        """The one that this process is on."""
        return cls(socket.gethostname(), _boot(), _namespace("time"), _namespace("net"), _namespace("pid"))

    def shares_clock(self, other: "Machine") -> bool:
        """Whether both read the same monotonic clock."""
        return self._shares_kernel(other) and self.clocks == other.clocks

    def shares_loopback(self, other: "Machine") -> bool:
        """Whether 127.0.0.1 is the same place for both."""
        return self._shares_kernel(other) and self.network == other.network != ""

    def shares_pids(self, other: "Machine") -> bool:
        """Whether a pid means the same process to both."""
        return self._shares_kernel(other) and self.pids == other.pids != ""

    def _shares_kernel(self, other: "Machine") -> bool:
        return self.boot == other.boot != ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    """Empty where the kernel has no such namespace: then all its processes share the one there is."""
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return ""
