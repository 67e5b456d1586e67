import signal

from bakeoff.harness.host.signals import stop_signals


def test_a_hangup_stops_a_run_unless_nohup_said_to_ignore_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert stop_signals() == (signal.SIGTERM, signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert stop_signals() == (signal.SIGTERM,)
    finally:
        signal.signal(signal.SIGHUP, before)
