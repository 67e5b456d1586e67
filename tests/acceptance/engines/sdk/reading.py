"""One answer as a client read it, and how two readings differ."""

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """One answer as it was read.

    Attributes:
        text: the whole text, thoughts included.
        output_tokens: as the server counted them; None if it did not.
        prompt_tokens: the same.
        finish: finish reason; None if the server gave none.
        ids: token ids; None if the reader has none.
        error: the reader's error message.
    """

    text: str = ""
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish: str | None = None
    ids: list[int] | None = None
    error: str | None = None


def differences(by_dialect: Reading, by_sdk: Reading, hidden: int) -> list[str]:
    """The differences of two readings of one answer, one line each.

    Args:
        by_dialect: by our dialect.
        by_sdk: by the service's own client; fields that it does not report are not compared.
        hidden: tokens of hidden thoughts, which the server counts and our dialect does not.
    """
    lines = [] if by_dialect.text == by_sdk.text else [f"text {by_dialect.text!r} is not {by_sdk.text!r}"]
    if by_dialect.error or by_sdk.error:
        return lines + _error_differences(by_dialect, by_sdk)
    output = None if by_sdk.output_tokens is None else by_sdk.output_tokens - hidden
    pairs = (
        ("output tokens", by_dialect.output_tokens, output),
        ("prompt tokens", by_dialect.prompt_tokens, by_sdk.prompt_tokens),
        ("finish", by_dialect.finish, by_sdk.finish),
        ("ids", by_dialect.ids, by_sdk.ids),
    )
    return lines + [f"{name} {a} is not {b}" for name, a, b in pairs if b is not None and a != b]


def _error_differences(by_dialect: Reading, by_sdk: Reading) -> list[str]:
    """Both must have failed, and the SDK's message must contain all parts of our dialect's but ``HTTP 429``."""
    if not by_dialect.error or not by_sdk.error:
        return [f"error {by_dialect.error!r} is not {by_sdk.error!r}"]
    parts = [part for part in by_dialect.error.split(": ") if not part.startswith("HTTP ")]
    return [f"{part!r} is not in {by_sdk.error!r}" for part in parts if part not in by_sdk.error]
