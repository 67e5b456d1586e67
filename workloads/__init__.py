"""Workloads: what is sent, when, and how long the answer should be. Imports nothing of the other packages."""

from workloads.arrivals import ARRIVALS, Arrival, Constant, Poisson, arrival
from workloads.errors import BadOption, BadTrace, NoTokenizer, UnknownWorkload, WorkloadError
from workloads.plan import PlanHash, PlannedSession, plan_closed, plan_open, plan_recorded
from workloads.prefixes import EndlessCache
from workloads.presets import Preset, PresetTraffic
from workloads.prompts import PromptReader, prompt_reader
from workloads.random import Random
from workloads.registry import workload, workload_names
from workloads.rng import Seed
from workloads.tokenizer import Tokenizer
from workloads.traces.replay import Replay
from workloads.types import Message, Session, Turn, Workload

__all__ = [
    "ARRIVALS",
    "Arrival",
    "BadOption",
    "BadTrace",
    "Constant",
    "EndlessCache",
    "Message",
    "NoTokenizer",
    "PlanHash",
    "PlannedSession",
    "Poisson",
    "Preset",
    "PresetTraffic",
    "PromptReader",
    "Random",
    "Replay",
    "Seed",
    "Session",
    "Tokenizer",
    "Turn",
    "UnknownWorkload",
    "Workload",
    "WorkloadError",
    "arrival",
    "plan_closed",
    "plan_open",
    "plan_recorded",
    "prompt_reader",
    "workload",
    "workload_names",
]
