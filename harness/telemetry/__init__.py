"""Telemetry: samples of host, engine, client and GPUs at 10 Hz, in a process of its own, on the client's clock."""

from harness.telemetry.control import Sampler, sampler

__all__ = ["Sampler", "sampler"]
