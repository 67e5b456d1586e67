"""Commands of other load generators, in the options of ``bakeoff bench``: for ``--from``, and where one is mistyped.

The tools are ``vllm bench serve``, ``aiperf profile`` and ``guidellm benchmark`` (or ``run``), as of 2026.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bakeoff.harness.errors import BadExperiment

_URL = "URL"
"""What an option becomes that is our argument."""


class Peer(NamedTuple):
    """A load generator.

    Attributes:
        name: words that begin its command.
        options: its options, and ours of the same meaning.
        needless: its options that need no counterpart.
        differs: what it would have measured otherwise.
        defaults: values of ours that it takes where nothing is given.
    """

    name: str
    options: Mapping[str, str]
    needless: frozenset[str]
    differs: str
    defaults: Mapping[str, str] = {}


PEERS = (
    Peer(
        "vllm bench serve",
        {
            "--base-url": _URL, "--host": "host", "--port": "port", "--model": "--model", "-m": "--model",
            "--served-model-name": "--model", "--tokenizer": "--tokenizer", "--num-prompts": "--requests",
            "--request-rate": "--rate", "--max-concurrency": "--concurrency", "--input-len": "--input",
            "--output-len": "--output", "--random-input-len": "--input", "--random-output-len": "--output",
            "--dataset-path": "--workload", "--goodput": "--slo", "--seed": "--seed", "--temperature": "--temperature",
            "--top-p": "--top-p", "--header": "--header", "--extra-body": "--extra-body", "--profile": "--profile",
        },
        frozenset({
            "--backend", "--endpoint-type", "--endpoint", "--dataset-name", "--percentile-metrics",
            "--metric-percentiles", "--save-result", "--save-detailed", "--result-filename", "--result-dir",
            "--disable-tqdm", "--ignore-eos", "--trust-remote-code", "--num-warmups",
        }),
        "its rates are over the whole run with its start and its end, ours over a window under steady load",
        {"--input": "1024", "--output": "128", "--requests": "1000"},
    ),
    Peer(
        "aiperf profile",
        {
            "--url": _URL, "-u": _URL, "--model": "--model", "-m": "--model", "--tokenizer": "--tokenizer",
            "--request-count": "--requests", "--num-requests": "--requests", "--conversation-num": "--requests",
            "--request-rate": "--rate", "--arrival-pattern": "--arrival", "--concurrency": "--concurrency",
            "--benchmark-duration": "--duration", "--isl": "--input", "--synthetic-input-tokens-mean": "--input",
            "--osl": "--output", "--output-tokens-mean": "--output", "--input-file": "--workload",
            "--goodput": "--slo", "--random-seed": "--seed", "--header": "--header", "-H": "--header",
        },
        frozenset({
            "--endpoint-type", "--endpoint", "--streaming", "--ui", "--extra-inputs", "--warmup-request-count",
            "--workers-max", "--record-processors", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir",
            "--output-artifact-dir",
        }),
        "its TTFT begins when a request is sent, ours when it was due",
    ),
    Peer(
        "guidellm",
        {
            "--target": _URL, "--model": "--model", "--processor": "--tokenizer", "--tokenizer": "--tokenizer",
            "--max-seconds": "--duration", "--max-requests": "--requests", "--rate": "--rate", "--profile": "kind",
            "--rate-type": "kind", "--random-seed": "--seed", "--data": "--workload",
        },
        frozenset({
            "--backend", "--backend-type", "--constraint", "--output", "--outputs", "--output-path", "--output-dir",
            "--disable-console", "--request-type", "--warmup", "--cooldown",
        }),
        "its ITL is one mean of each request, ours the gaps of all tokens",
    ),
)  # fmt: skip
_GUIDELLM = {
    "target": _URL, "model": "--model", "kind": "kind", "rate": "--rate", "streams": "streams", "count": "--requests",
    "seconds": "--duration", "prompt_tokens": "--input", "output_tokens": "--output",
}  # fmt: skip
"""Keys of GuideLLM's ``key=value`` options."""
_KEYED = {"--backend", "--profile", "--constraint", "--data", "--output", "--tokenizer", "--processor"}
_GOODPUT = re.compile(r"(\w+):([\d.]+)")
_LATENCIES = {
    "ttft": "ttft", "time_to_first_token": "ttft", "tpot": "tpot", "inter_token_latency": "tpot", "e2el": "e2e",
    "request_latency": "e2e",
}  # fmt: skip
"""Latencies that vLLM and AIPerf bound in milliseconds."""
_ENDPOINTS = {"--endpoint", "--endpoint-type", "--backend", "--request-type"}
_DATASETS = ([], ["random"], ["sharegpt"], ["custom"])
"""Data sets of vLLM that ours has, or whose file is the workload."""
_PLACE = "127.0.0.1", "8000"
"""Host and port that vLLM's and AIPerf's commands take where none is given."""


def hint(option: str) -> str | None:
    """Our option for one of another load generator; None if none has it."""
    option = option.partition("=")[0]
    for peer in PEERS:
        if option in peer.needless:
            return f"of {peer.name}; leave it out, ours needs none"
        ours = peer.options.get(option)
        if ours is not None and ours.startswith("--"):
            return f"of {peer.name}; ours is {ours}"
        if ours is not None:
            return f"of {peer.name}; the address is the argument: bakeoff bench URL"
    return None


def translated(command: str) -> tuple[list[str], list[str]]:
    """A command of another load generator as arguments of ``bakeoff bench``.

    Args:
        command: the whole command, with the shell's variables replaced.

    Returns:
        The arguments, and lines that say how the measurement differs and what was left out.

    Raises:
        BadExperiment: it is no command of a known load generator.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise BadExperiment(f"--from cannot be read: {error}; write the whole command in quotes") from error
    peer = next((each for each in PEERS if words[: len(each.name.split())] == each.name.split()), None)
    if peer is None:
        names = ", ".join(f"'{each.name} …'" for each in PEERS)
        raise BadExperiment(f"--from knows {names}; write the whole command in quotes")
    ours, unknown = _meant(peer, words)
    arguments = list(_arguments(_shaped(ours)))
    notes = [f"as: bakeoff bench {shlex.join(arguments)}", f"{peer.name} would differ: {peer.differs}"]
    if "--concurrency" in arguments:
        notes[1] += "; its requests start together, and so do these; without --rules together they are spread out"
    return arguments, [*notes, *([f"left out, for ours has nothing like it: {', '.join(unknown)}"] if unknown else [])]


def _meant(peer: Peer, words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Our options with the values of theirs, and the options that ours have nothing like.

    Raises:
        BadExperiment: they are of several measurements.
    """
    ours: dict[str, list[str]] = {}
    unknown: list[str] = []
    for option, values in _options(words[len(peer.name.split()) :]):
        if peer.name == "guidellm" and option in _KEYED and values and "=" in values[0]:
            for key, value in _keyed(values[0]):
                ours.setdefault(_GUIDELLM.get(key, ""), []).append(value)
        elif name := peer.options.get(option):
            ours.setdefault(name, []).extend(values)
        elif option not in peer.needless or (option == "--dataset-name" and values[:1] not in _DATASETS):
            unknown.append(" ".join([option, *values[:1]]) if option == "--dataset-name" else option)
    if endpoint := next((name for name in ("embeddings", "rerank") if _asks_for(words, name)), None):
        ours = {name: values for name, values in ours.items() if name not in {"--input", "--output"}}
        ours["--workload"] = [endpoint]
    if "--workload" not in ours:
        ours |= {name: [value] for name, value in peer.defaults.items() if name not in ours}
    if kinds := {"sweep", "throughput"} & set(ours.get("kind", [])):
        raise BadExperiment(
            f"--from cannot take a {kinds.pop()}: bakeoff search finds the highest load, and bench takes --rate or "
            "--concurrency"
        )
    return ours, unknown


def _asks_for(words: Sequence[str], kind: str) -> bool:
    """Whether a command is of embeddings or ranks, by its endpoint or backend."""
    named = (values[0] for option, values in _options(words) if option in _ENDPOINTS and values)
    return any(kind in value for value in named)


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the words up to the next one; words before the first are commands of the tool."""
    option, values = "", list[str]()
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            if option:
                yield option, values
            option, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if option:
        yield option, values


def _keyed(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        key, _, value = part.partition("=")
        yield key.strip(), value.strip()


def _shaped(ours: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Our options, after what several of theirs say together."""
    shaped = {name: list(values) for name, values in ours.items()}
    kinds, streams = shaped.pop("kind", []), shaped.pop("streams", [])
    rate = shaped.get("--rate", ["inf"])[-1]
    if "synchronous" in kinds:
        shaped.pop("--rate", None)
        shaped["--concurrency"] = ["1"]
    elif "concurrent" in kinds:
        shaped.pop("--rate", None)
        shaped["--concurrency"] = streams or rate.split(",")
    elif "constant" in kinds:
        shaped["--arrival"] = ["constant"]
    if rate == "inf":
        shaped.pop("--rate", None)
        if "--concurrency" not in shaped and "--requests" in shaped:  # all of them at once
            shaped["--concurrency"] = shaped["--requests"]
    elif len(rates := ",".join(shaped.get("--rate", [])).split(",")) > 1:
        raise BadExperiment(f"--from takes one rate, not {', '.join(rates)}; measure each with a command of its own")
    elif "--rate" in shaped and "--concurrency" in shaped:
        shaped["--max-in-flight"] = shaped.pop("--concurrency")
    if "--slo" in shaped:
        bounds = [found for text in shaped["--slo"] for found in _GOODPUT.findall(text)]
        shaped["--slo"] = [f"{_LATENCIES.get(name, name)}<{value}ms" for name, value in bounds]
    if "--concurrency" in shaped:
        shaped["--rules"] = ["together"]
    return shaped


def _arguments(shaped: Mapping[str, list[str]]) -> Iterator[str]:
    host, port = (shaped.get(name, [default])[-1] for name, default in zip(("host", "port"), _PLACE, strict=True))
    url = shaped.get(_URL, [f"{host}:{port}"])[-1]
    yield url if "://" in url else f"http://{url}"
    for name, values in shaped.items():
        if name == "--profile":
            yield name
        elif name in {"--concurrency", "--header", "--slo"}:
            for value in values:
                yield from (name, value)
        elif name.startswith("--") and values:
            yield from (name, values[-1])
