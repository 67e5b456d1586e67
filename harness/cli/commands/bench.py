"""The command ``bakeoff bench``."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command, in_panels
from bakeoff.harness.cli.exits import EXIT_CANNOT_TELL, EXIT_NOT_MET, EXIT_OK
from bakeoff.harness.cli.measured import exit_code, measured, show_measured, workload_data
from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    DryRun,
    Headers,
    InputTokens,
    Json,
    JsonObject,
    Numbers,
    Out,
    OutputTokens,
    Ray,
    Texts,
    WorkloadOptions,
    texts,
)
from bakeoff.harness.cli.output import print_line, print_notice

if TYPE_CHECKING:
    from bakeoff.results import Run

DEFAULT_CONCURRENCY = (1, 8)
"""Default load levels of bench: a single user, and a moderate load."""


DEFAULT_REPEATS = 3
"""Default repeats of a comparison: the fewest with an interval."""


def bench(
    url: Texts,
    *,
    against: str | None = None,
    balance: str | None = None,
    replica_header: str | None = None,
    label: Texts | None = None,
    engine: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    workload: str = "chat",
    option: WorkloadOptions = None,
    skip_bad: bool = False,
    scale: float | None = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    rate: float | None = None,
    arrival: str = "poisson",
    concurrency: Numbers | None = None,
    max_in_flight: int | None = None,
    rules: str = "steady",
    history: Literal["recorded", "live", "live-ids"] = "recorded",
    slo: Texts | None = None,
    duration: float | None = None,
    requests: int | None = None,
    ramp: float = 5.0,
    repeats: int | None = None,
    seed: int = 1,
    temperature: float | None = None,
    top_p: float | None = None,
    reasoning_effort: str | None = None,
    extra_body: JsonObject | None = None,
    header: Headers | None = None,
    stream: bool = True,
    api_key_env: str | None = None,
    calibrate: bool = True,
    profile: bool = False,
    max_foreign_share: float = 0.2,
    workers: int = 1,
    ray: Ray = None,
    name: str = "bench",
    out: Out = DEFAULT_OUT,
) -> "Run":
    """Measure a running server; its address is enough.

    Detects the server's engine and model, then measures 1 and 8 concurrent requests for 30 seconds each. Answers are
    not compared with the model's; bakeoff run does that if its file names the weights (path in [model]).

    Examples
    --------
    bakeoff bench http://127.0.0.1:8000
    bakeoff bench http://127.0.0.1:8000 --rate 4 --duration 120 --repeats 3
    bakeoff bench http://127.0.0.1:8000 --against http://127.0.0.1:8001 --concurrency 8

    Parameters
    ----------
    url
        Base URL of the server. Several are replicas of one engine, among which requests are divided.
    against
        Base URL of another server to compare it with: their trials alternate, and the report says which is better.
    balance
        How requests are divided among several --url: round-robin, least-in-flight, by-session or prefix-aware.
        Default: round-robin.
    replica_header
        Header of a router's answers that names the replica.
    label
        Name of the server in tables; with --against repeat it for the other one. Default: the adapter's name.
    engine
        Adapter for the server's API. Default: detected.
    model
        Model name in requests. Default: what the server reports.
    tokenizer
        Folder with tokenizer.json, or approximate. Default: the server's model folder or the Hugging Face cache, else
        approximate.
    workload
        Name from bakeoff workloads list, or path of a trace, prompt set or preset.
    option
        Workload option as key=value, such as images=1; repeat for several.
    skip_bad
        Leave out the lines of a trace or prompt set that cannot be read, and count them.
    scale
        Factor on the prompt and answer lengths of presets and traces. Default: 1.
    input_tokens
        Tokens of each prompt, of random text in place of --workload. Default: 128, with --output.
    output_tokens
        Tokens of each answer, with random prompts. Default: 32, with --input.
    rate
        Open loop: session arrivals per second.
    arrival
        Arrival process of --rate; workload for its own times.
    concurrency
        Closed loop: sessions kept alive; repeat for several. Default: 1 and 8.
    max_in_flight
        With --rate: most requests in flight; others wait in the client, and their latency counts from when they were
        due.
    rules
        Rules of play: name from bakeoff workloads rules, or .toml file.
    history
        Which answers later calls of a conversation hold: the workload's own, or those that the server gave, as text
        (live) or as token ids (live-ids).
    slo
        Bound of each request (ttft<500ms) or trial (ttft_p90<500ms), which sets the exit code; repeat for several.
    duration
        Seconds of the measured window. Default: 30, or what the rules say.
    requests
        Sessions of the measured window, in place of --duration; it lasts at most 10 minutes.
    ramp
        Minimum seconds of load before the measured window.
    repeats
        Trials per level; 3 give an interval. Default: 1, with --against 3.
    seed
        Random seed of the traffic.
    temperature
        Temperature of sampling. Default: 0, greedy decoding.
    top_p
        Sample from the most probable tokens with this share of the probability.
    reasoning_effort
        How long a reasoning model thinks: none, low, medium, high, …
    extra_body
        JSON object merged into the body of each request; null leaves a field out: '{"temperature": null}'.
    header
        Header of each request, as 'NAME: VALUE'; repeat the option for several. {session} and {request} become ids.
        Default: X-Session-ID and X-Request-ID; an empty value leaves one out.
    stream
        Ask for streamed answers; else only their end is timed.
    api_key_env
        Environment variable that holds the server's API key.
    calibrate
        Also measure the client's own error (±).
    profile
        Repeat each level once while the server, on this machine and started as docs/profile.md says, records its
        requests, and print where the latency comes from.
    max_foreign_share
        Share of the CPU that others may use in a VALID trial.
    workers
        Worker processes of the client.
    ray
        Ray cluster of the workers: auto, or host:port. Default: none.
    name
        Name of the experiment and of its run folder.
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs: the run is measured in runs/, and
        copied there while it goes on.
    """
    from bakeoff.engines.addresses import Balance
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.harness.experiment.bench import identified, identified_line, json_object, split_headers
    from bakeoff.harness.experiment.config import TrialConfig
    from bakeoff.harness.experiment.reading import profiling

    if rate is not None and concurrency is not None:
        raise BadExperiment("bench needs one kind of load; give either a concurrency or a rate")
    levels = [concurrency] if isinstance(concurrency, int) else concurrency or DEFAULT_CONCURRENCY
    loads = [{"concurrency": level} for level in levels]
    if max_in_flight is not None and rate is None:
        raise BadExperiment("--max-in-flight caps an open loop; give --rate, or --concurrency alone")
    cap = {} if max_in_flight is None else {"max_in_flight": max_in_flight}
    if requests is not None and duration is not None:
        raise BadExperiment("--requests and --duration both set the length of the window; give one of them")
    headers, secret_headers = split_headers(header)
    given = {"temperature": temperature, "top_p": top_p, "reasoning_effort": reasoning_effort}
    request = {name: value for name, value in given.items() if value is not None}
    request |= {"body": json_object(extra_body, "--extra-body"), "headers": headers, "stream": stream}
    urls = texts(url)
    if not urls:
        raise BadExperiment("bench needs the address of a server; give --url")
    if against is not None and len(urls) > 1:
        raise BadExperiment("--against compares two servers; give one --url, or leave it out to divide requests")
    if balance is not None and len(urls) == 1:
        raise BadExperiment("--balance divides requests among several addresses; give --url for each of them")
    if balance is not None and balance not in set(Balance):
        raise BadExperiment(f"--balance must be one of {', '.join(Balance)}, not '{balance}'")
    addresses = {"urls": [{"url": each} for each in urls]} if len(urls) > 1 else {"url": urls[0]}
    chosen = {"balance": balance, "replica_header": replica_header, "api_key_env": api_key_env or None}
    server = {
        "headers": secret_headers,
        **addresses,
        **{name: value for name, value in chosen.items() if value is not None},
    }
    servers = [server] if against is None else [server, server | {"url": against}]
    longest_s, default_repeats = TrialConfig().max_window_s, 1 if against is None else DEFAULT_REPEATS
    options = [*(option or []), *(["skip_bad=true"] if skip_bad else [])]
    traffic = workload_data(workload, options, scale, input_tokens, output_tokens)
    data = {
        "name": name,
        "seed": seed,
        "repeats": default_repeats if repeats is None else repeats,
        "engines": _labelled(servers, texts(label) if label else []),
        "request": request,
        **({"slo": texts(slo)} if slo else {}),
        "workload": traffic | {"history": history},
        "loads": loads if rate is None else [{"rate_per_s": rate, "arrival": arrival, **cap}],
        "rules": rules,
        "trial": {"ramp_s": ramp, "max_foreign_share": max_foreign_share}
        | ({} if duration is None else {"duration_s": duration, "max_window_s": max(longest_s, duration)})
        | ({} if requests is None else {"min_requests": requests, "max_requests": requests}),
        "client": {"calibrate": calibrate, "ray": ray, "workers": workers},
        "quality": {"samples": 0},  # nothing here names the model's weights
    }
    asked = urls[:1] if against is None else [urls[0], against]
    experiment, listed = identified(data, urls=asked, engine=engine, model=model, tokenizer=tokenizer)
    if listed and experiment.model.name not in listed:
        # Not an error, because gateways know names that they do not list.
        print_notice(f"the server does not list a model '{model}'; it lists {', '.join(listed[:5])}")
    experiment = profiling(experiment) if profile else experiment
    if None in {engine, model, tokenizer} or against is not None or len(urls) > 1:
        print_line(identified_line(experiment, urls if len(urls) > 1 else asked))
    return measured(experiment, out)


def _labelled(servers: "list[dict[str, Any]]", labels: "list[str]") -> "list[dict[str, Any]]":
    """Servers with the names that they have in tables.

    Raises:
        BadExperiment: there are more or fewer names.
    """
    from bakeoff.harness.errors import BadExperiment

    if labels and len(labels) != len(servers):
        raise BadExperiment(f"--label names each server: give it once for each of {len(servers)}, or leave it out")
    return [server | {"label": name} for server, name in zip(servers, labels, strict=True)] if labels else servers


def _show(
    run: "Run",
    *,
    from_: Annotated[str | None, cyclopts.Parameter(name="--from")] = None,  # noqa: ARG001  (guarded.py replaces it)
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Print a run's table, and write its page and traces.

    Parameters
    ----------
    from_
        Whole command of another load generator, 'vllm bench serve …', 'aiperf profile …' or 'guidellm benchmark …': it
        is measured as it means it, in our options, which are printed.
    dry_run
        Say what would run and for how long, check everything, and send nothing.
    json
        Print the summary as JSON.
    """
    show_measured(run, dry_run=dry_run, json=json)


def _exit_code(run: "Run") -> int:
    """That of any run; with --slo, whether every engine meets it at every level."""
    from bakeoff.results.run.objectives import State, state_of

    codes = {State.MET: EXIT_OK, State.NOT_MET: EXIT_NOT_MET, State.OPEN: EXIT_CANNOT_TELL}
    return exit_code(run) or (codes[state_of(run)] if run.manifest.objectives else EXIT_OK)


_PANELS = {
    "Server": "url from_ against label balance replica_header engine model tokenizer api_key_env",
    "Traffic": "workload option skip_bad scale input_tokens output_tokens rules history seed",
    "Load": "rate arrival max_in_flight concurrency",
    "Requests": "temperature top_p reasoning_effort extra_body header stream",
    "Trials": "slo duration requests ramp repeats profile max_foreign_share calibrate workers ray",
    "Output": "name out dry_run json",
}
COMMANDS = [Command("bench", in_panels(command(bench, _show, _exit_code), _PANELS), Title.MEASURE, 20)]
