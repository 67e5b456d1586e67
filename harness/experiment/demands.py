"""What a workload asks that not every engine can do: refused before an engine starts.

An engine that cannot force the length of its answers, or that takes a completion as a chat, is not refused: it says so
in its notes, which stand below every table.
"""

from collections.abc import Mapping, Sequence

from engines import Engine
from engines.dialects import holds_to_schema
from harness.client.rendering import asking
from harness.errors import BadExperiment
from workloads import Tokenizer, Turn


def refuse_unmet(
    engines: Mapping[str, Engine], turns: Sequence[Turn], workload: str, tokenizer: Tokenizer | None = None
) -> None:
    """Compare what engines can do with what is asked of them.

    Args:
        engines: by label.
        turns: a sample of the workload.
        workload: its name.
        tokenizer: the model's; writes chats out for an engine that takes only text.

    Raises:
        BadExperiment: answers must follow a JSON schema, and an engine cannot be told one.
    """
    held = [turn for turn in turns if turn.json_schema is not None]
    for label, engine in engines.items():
        ask = asking(engine.dialect, tokenizer)
        if free := [turn for turn in held if not holds_to_schema(ask, turn)]:
            api = "completions" if free[0].messages is None else "chats"
            raise BadExperiment(
                f"engine '{label}' cannot hold {api} to a JSON schema, which workload '{workload}' asks; "
                "leave the engine out, or choose another workload or api"
            )
