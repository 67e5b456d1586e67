"""``sessions``: traffic that was written down before, one session a line, by ``bakeoff workloads sample`` or anyone."""

from collections.abc import Iterator

import msgspec

from workloads.errors import BadTrace
from workloads.rng import Seed
from workloads.tokenizer import Tokenizer
from workloads.traces.reading import lines
from workloads.types import Session


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sends the sessions of a file of JSON lines, each a :class:`~workloads.types.Session`."""

    path: str
    """The file; it may end in ``.gz``."""

    def own_rate_per_s(self) -> float | None:
        """Unknown without reading the whole file."""
        return None

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:  # noqa: ARG002  (nothing is drawn)
        """The file's sessions as they are; ends with the file.

        Raises:
            BadTrace: a line is no session.
        """
        decoder = msgspec.json.Decoder(Session)
        for number, line in lines(self.path):
            try:
                session = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise BadTrace(f"{self.path}, row {number}: no session ({error}); make the file with sample") from error
            for turn in session.turns:
                if (turn.messages is None) == (turn.prompt is None):
                    raise BadTrace(f"{self.path}, row {number}: a turn needs either messages or prompt")
            yield session

    def notes(self) -> list[str]:
        """Where they come from."""
        return [f"sessions of {self.path}"]
