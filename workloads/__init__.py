"""Workloads: what is sent, when, and how long the answer should be. Imports nothing of the other packages."""

from workloads.arrivals import ARRIVALS, Arrival, Constant, Poisson, arrival
from workloads.chat import Chat
from workloads.errors import BadOption, NoTokenizer, UnknownWorkload, WorkloadError
from workloads.plan import PlannedSession, TrafficPlan, plan_closed, plan_open
from workloads.random import Random
from workloads.registry import WORKLOADS, workload
from workloads.tokenizer import Tokenizer
from workloads.types import Message, Session, Turn, Workload

__all__ = [
    "ARRIVALS",
    "WORKLOADS",
    "Arrival",
    "BadOption",
    "Chat",
    "Constant",
    "Message",
    "NoTokenizer",
    "PlannedSession",
    "Poisson",
    "Random",
    "Session",
    "Tokenizer",
    "TrafficPlan",
    "Turn",
    "UnknownWorkload",
    "Workload",
    "WorkloadError",
    "arrival",
    "plan_closed",
    "plan_open",
    "workload",
]
