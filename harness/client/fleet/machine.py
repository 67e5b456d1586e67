"""Identity of the machine of a process: whether another process shares its clock, loopback and pids."""

import socket
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """A kernel and the namespaces of a process in it.

    Containers of one machine share its kernel, but may have their own loopback, pids and (since Linux 5.6) monotonic
    clock. An empty string means unknown, which equals nothing.

    Attributes:
        host: name for display.
        boot: random id of this boot of the kernel.
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
        """The machine of this process."""
        return cls(socket.gethostname(), _boot(), _namespace("time"), _namespace("net"), _namespace("pid"))

    def shares_clock(self, other: "Machine") -> bool:
        """Whether both read the same monotonic clock."""
        return self._shares_kernel(other) and self.clocks == other.clocks

    def shares_loopback(self, other: "Machine") -> bool:
        """Whether 127.0.0.1 is the same interface for both."""
        return self._shares_kernel(other) and self.network == other.network != ""

    def shares_pids(self, other: "Machine") -> bool:
        """Whether a pid names the same process for both."""
        return self._shares_kernel(other) and self.pids == other.pids != ""

    def _shares_kernel(self, other: "Machine") -> bool:
        return self.boot == other.boot != ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    """Id of this process's namespace; empty if the kernel has no such namespaces, so that all processes share one."""
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return ""
