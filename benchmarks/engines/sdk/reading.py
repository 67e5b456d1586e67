"""What a reader made of one answer, whoever it was."""

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """One answer as it was read.

    Attributes:
        text: all that was said, thoughts included.
        output_tokens: as the server counted them; None where it did not.
        prompt_tokens: the same.
        finish: why it ended; None where it did not say.
        ids: of the tokens; None where the reader has none.
        error: what went wrong, in the reader's words.
    """

    text: str = ""
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish: str | None = None
    ids: list[int] | None = None
    error: str | None = None


def differences(ours: Reading, theirs: Reading, hidden: int) -> list[str]:
    """How two readings of one answer differ; empty for not at all.

    Args:
        ours: by our dialect.
        theirs: by the service's own client; what it does not tell is not compared.
        hidden: thoughts that were counted and never shown, which we take out of the count.
    """
    found = [] if ours.text == theirs.text else [f"text {ours.text!r} is not {theirs.text!r}"]
    if ours.error or theirs.error:
        return found + _error_differences(ours, theirs)
    output = None if theirs.output_tokens is None else theirs.output_tokens - hidden
    pairs = (
        ("output tokens", ours.output_tokens, output),
        ("prompt tokens", ours.prompt_tokens, theirs.prompt_tokens),
        ("finish", ours.finish, theirs.finish),
        ("ids", ours.ids, theirs.ids),
    )
    return found + [f"{name} {a} is not {b}" for name, a, b in pairs if b is not None and a != b]


def _error_differences(ours: Reading, theirs: Reading) -> list[str]:
    """Both must have failed, and theirs say all that ours says, but for the words ``HTTP 429``."""
    if not ours.error or not theirs.error:
        return [f"error {ours.error!r} is not {theirs.error!r}"]
    parts = [part for part in ours.error.split(": ") if not part.startswith("HTTP ")]
    return [f"{part!r} is not in {theirs.error!r}" for part in parts if part not in theirs.error]
