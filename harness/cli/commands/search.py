"""The command ``bakeoff search``."""

from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command, in_panels
from bakeoff.harness.cli.exits import EXIT_INVALID, EXIT_OK
from bakeoff.harness.cli.measured import destination, is_address, workload_data
from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    Headers,
    InputTokens,
    Json,
    Out,
    OutputTokens,
    Ray,
    Source,
    Texts,
    Workers,
    WorkloadOptions,
    texts,
)
from bakeoff.harness.cli.output import print_line, print_notice, standard_output

if TYPE_CHECKING:
    from bakeoff.results import Run
    from bakeoff.results.log.search import EngineSearch

_NEAR_LOW = 1.5
"""Up to this multiple of the lowest level, the answer may lie below the range."""
Tiers = Annotated[list[str] | None, cyclopts.Parameter(name="--tier", negative="")]


def search(
    experiment: Source,
    *,
    slo: Texts | None = None,
    tier: Tiers = None,
    over: Literal["rate", "concurrency", "agents"] | None = None,
    low: float | None = None,
    high: float | None = None,
    around: str | None = None,
    trials: int = 20,
    minutes: float | None = None,
    resolution: float = 0.05,
    alpha: float = 0.05,
    resume: str | None = None,
    workers: Workers = None,
    ray: Ray = None,
    engine: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    api_key_env: str | None = None,
    header: Headers | None = None,
    workload: str | None = None,
    option: WorkloadOptions = None,
    scale: float | None = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    max_foreign_share: float | None = None,
    out: Out = DEFAULT_OUT,
) -> "Run":
    """Find the highest load at which each engine meets its objectives.

    Of a running server, its address is enough: the answer says how many users it carries, within five minutes. Single
    trials are noisy, so the search is a noisy bisection and each answer has an interval.

    Examples
    --------
    bakeoff search http://127.0.0.1:8000 --slo 'ttft_p90<500ms'
    bakeoff search experiment.toml --slo 'ttft_p99<500ms,tpot_p99<50ms' --low 1 --high 64
    bakeoff search agents.toml --over agents --tier 'fast=ttft_p90<2s' --tier 'basic=ttft_p90<8s'

    Parameters
    ----------
    experiment
        TOML file; its loads bound the range and give the arrival process. Or the base URL of a running server, which is
        searched for concurrent users.
    slo
        Bounds of each request (ttft<500ms) and of every trial (ttft_p99<500ms, attainment>=99%), with commas or by
        repeating the option. Default: those of the file.
    tier
        Name and objectives, such as 'fast=interactivity_p90>60,ttft_p90<1s', instead of --slo; repeat it for several
        answers in one run, whose trials count for every tier.
    over
        Search arrival rates or concurrency levels; agents is concurrency, which counts sessions in progress. Default:
        the kind of the file's first load; of a server concurrency.
    low
        Lowest level. Default: the file's lowest load, or 1/32 of a single load; of a server 1 user.
    high
        Highest level. Default: the file's highest load, or 32 times a single load; of a server 256 users.
    around
        Expected answer, which saves trials: a level, or the run folder of an earlier search.
    trials
        Maximum trials per engine and tier.
    minutes
        Maximum minutes per engine and tier; no trial begins that is expected to last longer. Default: none; of a server
        5.
    resolution
        Stop when the interval is within ± this share of the answer.
    alpha
        Share of searches whose interval may miss the true capacity.
    resume
        Run folder of a search whose finished trials are reused if they would be the same measurement, or latest for the
        newest search of this experiment in --out.
    workers
        Worker processes of the client. Default: client.workers of the file.
    ray
        Ray cluster that runs the workers. Default: client.ray of the file.
    engine
        Of a server: adapter for its API. Default: detected.
    model
        Of a server: model name in requests. Default: what the server reports.
    tokenizer
        Of a server: folder with tokenizer.json, or approximate. Default: as for bakeoff bench.
    api_key_env
        Of a server: environment variable that holds its API key.
    header
        Of a server: header of each request, as 'NAME: VALUE'; repeat the option for several.
    workload
        Of a server: name from bakeoff workloads list, or path of a trace, prompt set or preset. Default: chat.
    option
        Of a server: workload option as key=value; repeat for several.
    scale
        Of a server: factor on the prompt and answer lengths of presets and traces. Default: 1.
    input_tokens
        Of a server: tokens of each prompt, of random text in place of --workload. Default: 128, with --output.
    output_tokens
        Of a server: tokens of each answer, with random prompts. Default: 32, with --input.
    max_foreign_share
        Of a server: share of the CPU that others may use in a VALID trial. Default: 0.2.
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs: the run is measured in runs/, and
        copied there while it goes on.
    """
    from bakeoff.harness.conduct.policies.search_config import (
        search_config,
        search_warnings,
        tiers_of,
        with_requests_for,
    )
    from bakeoff.harness.conduct.run import capacity_search, create_run, run_into
    from bakeoff.harness.errors import BadExperiment, RunInterrupted
    from bakeoff.harness.experiment.bench import SEARCH_MINUTES, identified_line, searched_server
    from bakeoff.harness.experiment.reading import loaded_experiment, with_client, with_slo
    from bakeoff.results import load
    from bakeoff.results.log.search import Over
    from bakeoff.results.log.store import earlier_run

    url = str(experiment) if is_address(experiment) else None
    if url is not None:
        loaded = searched_server(
            url, over_rate=over == "rate", engine=engine, model=model, tokenizer=tokenizer, api_key_env=api_key_env,
            header=header, workload=workload_data(workload or "chat", option or [], scale, input_tokens, output_tokens),
            max_foreign_share=max_foreign_share,
        )  # fmt: skip
        print_line(identified_line(loaded, [url]))
        minutes = SEARCH_MINUTES if minutes is None else minutes
    else:
        of_server = (engine, model, tokenizer, api_key_env, header, max_foreign_share)
        if any(each is not None for each in (*of_server, workload, option, scale, input_tokens, output_tokens)):
            raise BadExperiment(
                "the file of an experiment names server and workload; give their options with a URL alone"
            )
        loaded = loaded_experiment(experiment)
    loaded = with_client(loaded, workers, ray)
    wanted = ",".join(texts(slo))
    if not tier:
        loaded = with_slo(loaded, wanted)
        if wanted and not loaded.objectives:
            raise BadExperiment(f"'{wanted}' bounds each request; bound the trial, too, as in {wanted},attainment>=99%")
        wanted = ",".join(loaded.objectives)
    if bool(wanted) == bool(tier):
        raise BadExperiment("give either --slo or --tier, such as --slo 'ttft_p90<1s'; see bakeoff search --help")
    kind = None if over is None else Over.CONCURRENCY if over == "agents" else Over(over)
    config = search_config(
        loaded, wanted or tiers_of(tier or []), over=kind, low=low, high=high, around=around,
        resolution=resolution, alpha=alpha, trials=trials, minutes=minutes,
    )  # fmt: skip
    loaded = loaded if url is None else with_requests_for(loaded, config)
    for line in search_warnings(loaded, config):
        print_line(f"note: {line}")
    root, store = destination(out)
    earlier = earlier_run(root, f"{loaded.name}-search", resume, print_notice) if resume else None
    folder = create_run(loaded, root, earlier, search=config)
    interrupted = run_into(folder, loaded, earlier, capacity_search(config), store=store)
    run = load(folder.path)
    if interrupted:
        raise RunInterrupted(run)
    return run


def _show(run: "Run", *, json: Json = False) -> None:
    """Print the answers and write the run's page.

    Parameters
    ----------
    json
        Print the search as JSON.
    """
    from bakeoff.harness.cli.output import print_json
    from bakeoff.results.report import print_frontier, print_search, write_html
    from bakeoff.results.report.search_lines import search_sentence
    from bakeoff.results.run.capacity import capacities
    from bakeoff.results.run.frontier import frontier

    page = write_html(run)
    points, shares = frontier([run]), capacities(run)
    if json:
        sentence = search_sentence(run.search) if run.search is not None else None
        answers = {"answer": sentence, "search": run.search, "capacities": shares, "frontier": points}
        print_json({"run": str(run.path), "report": str(page), **answers})
        return
    console = standard_output()
    if run.search is not None:
        print_search(run.search, console, shares)
    if len({point.engine for point in points}) > 1:
        print_frontier(points, console)
    console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)


def _advice(engine: "EngineSearch", lowest: float) -> str:
    from bakeoff.results.log.search import Ended

    more = "raise --minutes" if engine.ended is Ended.MINUTES else "raise --trials"
    if engine.level is None or not engine.judged:
        return f"; {more}" if engine.ended is Ended.MINUTES else ""
    return f"; {more}, or lower --low" if 1 < engine.level <= _NEAR_LOW * lowest else f"; {more}"


def _exit_code(run: "Run") -> int:
    from bakeoff.results.report.search_lines import search_lines
    from bakeoff.results.text.format import plain

    if run.search is None or not run.search.engines:
        print_notice(plain(run.manifest.failure or "nothing was searched"))
        return EXIT_INVALID
    answers = zip(run.search.engines, search_lines(run.search), strict=True)
    unanswered = [(engine, line) for engine, line in answers if not engine.has_level]
    for engine, line in unanswered:
        print_notice(f"{plain(line)}{_advice(engine, run.search.config.low)}")
    return EXIT_INVALID if unanswered else EXIT_OK


_PANELS = {
    "Objectives": "experiment slo tier alpha",
    "Levels": "over low high around resolution",
    "Trials": "trials minutes resume workers ray",
    "Of a server": "engine model tokenizer api_key_env header workload option scale input_tokens output_tokens "
    "max_foreign_share",
    "Output": "out json",
}
COMMANDS = [Command("search", in_panels(command(search, _show, _exit_code), _PANELS), Title.MEASURE, 40)]
