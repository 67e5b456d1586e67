"""Signals that stop a run."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, and SIGHUP unless the process ignores it: under ``nohup`` it must outlive its terminal."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return (signal.SIGTERM, signal.SIGHUP)
