"""Checks, before any engine starts, that the engines support what the workload needs.

An engine that cannot force the length of its answers, or that treats completions as chats, is accepted; notes below the
tables state this.
"""

from collections.abc import Mapping, Sequence

from bakeoff.engines.dialects import Dialect, TakesTokenIds, holds_to_schema
from bakeoff.engines.errors import BadOption
from bakeoff.harness.client.wire.live_history import History
from bakeoff.harness.client.wire.rendering import asking, written_out
from bakeoff.harness.errors import BadExperiment
from bakeoff.workloads import Tokenizer, Turn


def refuse_unmet(
    dialects: Mapping[str, Dialect],
    turns: Sequence[Turn],
    workload: str,
    tokenizer: Tokenizer | None = None,
    history: History = History.RECORDED,
) -> None:
    """Refuse an engine that lacks a feature which the workload needs.

    Args:
        dialects: of the engines, by label.
        turns: a sample of the workload.
        workload: its name.
        tokenizer: the model's; renders chats for engines that take only text.
        history: which answers later calls of a conversation hold.

    Raises:
        BadExperiment: an engine's API has no field for a setting of ``[request]``.
        BadExperiment: conversations are to hold the engine's own answers, and are no chats; or they are to hold their
            token ids, and the tokenizer is not the model's or an engine takes or gives none.
        BadExperiment: answers must follow a JSON schema, and an engine's API has no such parameter.
    """
    if history.is_live and any(turn.messages is None for turn in turns):
        raise BadExperiment(
            f"workload '{workload}' sends no chats, which a live history needs; choose a workload of chats, or set the "
            "option api to 'chat' of one that has it"
        )
    if history is History.LIVE_IDS and (tokenizer is None or not tokenizer.is_exact):
        raise BadExperiment(
            "a history of token ids needs the model's tokenizer; name its folder (tokenizer in [model], --tokenizer of "
            "bench), or set history to 'live'"
        )
    with_schema = [turn for turn in turns if turn.json_schema is not None]
    for label, dialect in dialects.items():
        if history is History.LIVE_IDS and not (isinstance(dialect, TakesTokenIds) and dialect.takes_token_ids):
            raise BadExperiment(
                f"engine '{label}' takes or gives no token ids by its API; set history to 'live'. vllm and reference "
                "do, llama_cpp and sglang by one of their apis, and tensorrt_llm with its option token_ids"
            )
        ask = asking(dialect, tokenizer)
        try:
            for turn in turns[:1]:
                ask(written_out(turn, tokenizer) if history is History.LIVE_IDS and tokenizer else turn, "")
        except BadOption as error:
            raise BadExperiment(f"engine '{label}': {error}") from error
        if unsupported := [turn for turn in with_schema if not holds_to_schema(ask, turn)]:
            api = "completions" if unsupported[0].messages is None else "chats"
            raise BadExperiment(
                f"engine '{label}' cannot hold {api} to a JSON schema, which workload '{workload}' needs; "
                "remove the engine, or choose another workload or api"
            )
