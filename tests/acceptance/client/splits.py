"""10,000 random splits of recorded streams decode to the same records.

The client's protocol and decoder read streams recorded from real engines (``tests/harness/recordings``, and any
``*.http`` captures in ``--captures``), with HTTP chunks and reads split at random. The same streams are also read with
CRLF line ends, and with comments between events.
"""

import argparse
import random
from pathlib import Path

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.results.records import Outcome
from benchmarks.bars import Bars
from tests.harness.cutting import HEAD, chunked, decoded, random_cuts, received

RECORDINGS = Path(__file__).parents[3] / "tests" / "harness" / "recordings"


def bodies(captures: Path | None) -> dict[str, bytes]:
    streams = {path.name: path.read_bytes() for path in sorted(RECORDINGS.glob("*.sse"))}
    for path in sorted(captures.glob("*stream*.http")) if captures else ():
        _, _, body = path.read_bytes().replace(b"\r\n", b"\n").partition(b"\n\ndata:")
        if body:
            streams[path.name] = b"data:" + body
    for name, body in list(streams.items()):
        streams[f"{name}, CRLF"] = body.replace(b"\n", b"\r\n")
        streams[f"{name}, comments"] = body.replace(b"\n\n", b"\n\n: ping\n\n")
    return streams


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--captures", type=Path, help="a folder of *.http captures (request, blank line, answer)")
    options = parser.parse_args()
    streams = bodies(options.captures)
    rng, dialect, different, count, answers = random.Random(4), ReferenceDialect(), 0, 0, 0
    for name, body in streams.items():
        unsplit = decoded(received(HEAD + chunked(body, []), []), dialect)
        answers += unsplit.outcome is Outcome.OK and unsplit.total_chunk_tokens > 0
        for _ in range(-(-options.splits // len(streams))):
            wire = HEAD + chunked(body, random_cuts(len(body), rng))
            different += decoded(received(wire, random_cuts(len(wire), rng)), dialect) != unsplit
            count += 1
        print(f"{name}: {len(body)} bytes, {unsplit.outcome.value}, {unsplit.total_chunk_tokens} tokens")
    bars = Bars()
    bars.add("cuts_decoded_differently", different, "==", 0)
    bars.add("cuts_tried", count, ">=", 10_000)
    bars.add("recorded_answers", answers, ">=", 3)
    bars.finish()


if __name__ == "__main__":
    main()
