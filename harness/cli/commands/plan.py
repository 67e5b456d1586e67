"""The command ``bakeoff plan``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command, in_panels
from bakeoff.harness.cli.options import File, Files, Json, Texts, WorkloadOptions, files, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bakeoff.harness.sizing.plan import Plan
    from bakeoff.harness.sizing.prefix_cache import SessionLoad

    Prices = float | Texts | Mapping[str, float]
else:
    Prices = Texts


def plan(
    model: str,
    *,
    gpu: Texts | None = None,
    gpus: File | None = None,
    machine: File | None = None,
    precision: str = "bf16",
    kv: str = "bf16",
    tensor_parallel: int | None = None,
    workload: File | None = None,
    option: WorkloadOptions = None,
    sessions: int | None = None,
    input_tokens: Annotated[int | None, cyclopts.Parameter(name="--input")] = None,
    output_tokens: Annotated[int | None, cyclopts.Parameter(name="--output")] = None,
    cached_share: float | None = None,
    cached_discount: float = 0.0,
    sequences: int = 256,
    step_tokens: int | None = None,
    memory_fraction: float = 0.9,
    price: Prices | None = None,
    slo: Texts | None = None,
    rate: float | None = None,
    from_run: Files | None = None,
    engine: str | None = None,
    seed: int = 1,
) -> "Plan":
    """Plan memory, latency and cost of a model on GPUs before renting them.

    docs/plan.md has every formula. Nothing is measured; --from-run calibrates the plan with what was.

    Examples
    --------
    bakeoff plan llama-3.1-8b --gpu h100 --rate 4
    bakeoff plan smollm2-135m --gpu h200 --input 1000 --output 200
    bakeoff plan llama-3.1-8b --gpu h100 --from-run runs/RUN

    Parameters
    ----------
    model
        Name of a known model, such as llama-3.1-8b; its config.json; or the folder of that.
    gpu
        Name of a GPU, such as h200; repeat the option for several. Default: all that are known.
    gpus
        TOML file with more GPUs, like harness/sizing/gpus.toml.
    machine
        Output of bakeoff lab machine --json; its devices are the GPUs cpu, cuda:0 and so on.
    precision
        Of the weights: bf16, fp8, w8a8, int8, int4, int4-zp, nf4, mxfp4, q8_0, q4_0, fp16 or fp32.
    kv
        Of the KV cache: bf16, fp8, int8, int4 or fp32.
    tensor_parallel
        GPUs that split each layer. Default: the fewest that hold the model; with --slo, 1, 2, 4 and 8 are tried.
    workload
        Name or path of a workload, as in bakeoff workloads show, whose sessions are in progress: plans the prefix cache
        that they need.
    option
        Option of the workload as key=value. May be given several times.
    sessions
        Sessions of the workload in progress at once. Default: 8.
    input_tokens
        Tokens of each prompt. Default: the mean of --workload, else 1024.
    output_tokens
        Tokens of each answer. Default: the mean of --workload, else 256.
    cached_share
        Share of each prompt that is in the prefix cache. Default: what each GPU's cache finds of --workload, else 0.
    cached_discount
        Share of the price of a prompt token that is not charged for a cached one.
    sequences
        Requests that a server runs at once.
    step_tokens
        Tokens that a server computes per step. Default: 8192, on a CPU 512.
    memory_fraction
        Share of a GPU's memory that the engine may take.
    price
        Price of a GPU hour: 3.5 for all GPUs, or h200=3.5; repeat the option for several.
    slo
        Objectives, such as 'ttft_p90<500ms,itl_p90<50ms', or one for each time the option is given. Needs --rate.
    rate
        Requests per second that arrive in all.
    from_run
        Run folder of this model on the first --gpu: fits the engine's efficiency and prints the error of each
        prediction. Repeat the option for several runs.
    engine
        Engine of --from-run whose fit the plan uses. Default: the first.
    seed
        Random seed of the arrivals.
    """
    from bakeoff.harness.sizing.plan import Question, make_plan, prices

    question = Question(
        model=model,
        gpu=texts(gpu),
        gpus=None if gpus is None else Path(gpus),
        machine=None if machine is None else Path(machine),
        precision=precision,
        kv=kv,
        tensor_parallel=tensor_parallel,
        load=_load(workload, option or [], sessions),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_share=cached_share,
        cached_discount=cached_discount,
        sequences=sequences,
        step_tokens=step_tokens,
        memory_fraction=memory_fraction,
        price=prices(price or ()),
        slo=",".join(texts(slo)) or None,
        rate=rate,
        from_run=files(from_run),
        engine=engine,
        seed=seed,
    )
    return make_plan(question)


def _load(workload: "File | None", options: "list[str]", sessions: int | None) -> "SessionLoad | None":
    """The sessions in progress.

    Raises:
        BadPlan: an option needs a workload.
        WorkloadError: there is no such workload, or an option is wrong.
    """
    from bakeoff.harness.errors import BadPlan
    from bakeoff.harness.sizing.prefix_cache import IN_PROGRESS, SessionLoad
    from bakeoff.harness.traffic.profile.selection import select

    if workload is None:
        if options or sessions is not None:
            raise BadPlan(f"{'--option' if options else '--sessions'} belongs to a --workload; give that, too")
        return None
    selection = select(str(workload), options)
    return SessionLoad(
        selection.target, selection.option_texts, selection.workload, IN_PROGRESS if sessions is None else sessions
    )


def _show(
    plan: "Plan", *, out: Annotated[Path | None, cyclopts.Parameter(name="--out")] = None, json: Json = False
) -> None:
    """Print a plan.

    Parameters
    ----------
    out
        HTML page to write.
    json
        Print the plan as JSON.
    """
    from bakeoff.harness.cli.output import print_result
    from bakeoff.harness.sizing.table import print_plan

    print_result(plan, print_plan, json=json)
    if out is not None:
        from bakeoff.harness.sizing.page import write_page

        write_page(plan, out)


_PANELS = {
    "Model": "model precision kv tensor_parallel",
    "Hardware": "gpu gpus machine memory_fraction price",
    "Traffic": "workload option sessions input_tokens output_tokens rate cached_share cached_discount seed",
    "Engine": "engine sequences step_tokens from_run",
    "Objectives and output": "slo out json",
}
COMMANDS = [Command("plan", in_panels(command(plan, _show), _PANELS), Title.PREPARE, 20)]
