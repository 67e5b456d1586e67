"""Checks, before any engine starts, that the engines support what the workload needs.

An engine that cannot force the length of its answers, or that treats completions as chats, is accepted; notes below the
tables state this.
"""

from collections.abc import Mapping, Sequence

from bakeoff.engines import Engine
from bakeoff.engines.dialects import holds_to_schema
from bakeoff.engines.errors import BadOption
from bakeoff.harness.client.rendering import asking
from bakeoff.harness.errors import BadExperiment
from bakeoff.workloads import Tokenizer, Turn


def refuse_unmet(
    engines: Mapping[str, Engine],
    turns: Sequence[Turn],
    workload: str,
    tokenizer: Tokenizer | None = None,
    *,
    is_live: bool = False,
) -> None:
    """Refuse an engine that lacks a feature which the workload needs.

    Args:
        engines: by label.
        turns: a sample of the workload.
        workload: its name.
        tokenizer: the model's; renders chats for engines that take only text.
        is_live: whether conversations hold the engine's own answers.

    Raises:
        BadExperiment: an engine's API has no field for a setting of ``[request]``.
        BadExperiment: conversations are to hold the engine's own answers, and are no chats.
        BadExperiment: answers must follow a JSON schema, and an engine's API has no such parameter.
    """
    if is_live and any(turn.messages is None for turn in turns):
        raise BadExperiment(
            f"workload '{workload}' sends no chats, which a live history needs; set its option api to 'chat'"
        )
    with_schema = [turn for turn in turns if turn.json_schema is not None]
    for label, engine in engines.items():
        ask = asking(engine.dialect, tokenizer)
        try:
            for turn in turns[:1]:
                ask(turn, "")
        except BadOption as error:
            raise BadExperiment(f"engine '{label}': {error}") from error
        if unsupported := [turn for turn in with_schema if not holds_to_schema(ask, turn)]:
            api = "completions" if unsupported[0].messages is None else "chats"
            raise BadExperiment(
                f"engine '{label}' cannot hold {api} to a JSON schema, which workload '{workload}' needs; "
                "remove the engine, or choose another workload or api"
            )
