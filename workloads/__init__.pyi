from .approximate import APPROXIMATE, tokenizer_at
from .arrivals import ARRIVALS, VARYING_ARRIVALS, Arrival, Constant, Poisson, arrival
from .errors import BadOption, BadTrace, NoTokenizer, UnknownWorkload, WorkloadError
from .plan import PlanHash, PlannedSession, PromptPlace, plan_closed, plan_open, plan_recorded
from .prefixes import EndlessCache
from .presets import Preset, PresetTraffic
from .prompts import PromptReader, prompt_reader
from .random import Random
from .registry import workload, workload_names
from .rng import Seed
from .shapes import SessionShape, chosen_sessions, session_shapes
from .tokenizer import Tokenizer
from .traces.replay import Replay
from .types import Message, Session, Turn, Workload

__all__ = [
    "APPROXIMATE",
    "ARRIVALS",
    "VARYING_ARRIVALS",
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
    "PromptPlace",
    "PromptReader",
    "Random",
    "Replay",
    "Seed",
    "Session",
    "SessionShape",
    "Tokenizer",
    "Turn",
    "UnknownWorkload",
    "Workload",
    "WorkloadError",
    "arrival",
    "chosen_sessions",
    "plan_closed",
    "plan_open",
    "plan_recorded",
    "prompt_reader",
    "session_shapes",
    "tokenizer_at",
    "workload",
    "workload_names",
]
