"""``claude-code``: recorded sessions of a coding agent, one JSON file each.

The WEKA sessions of Claude Code in callanjfox/kv-cache-tester (Apache-2.0): lengths, 64-token blocks, and the client's
delay before each request (a tool that ran or a human who read). Times are relative to the start of the session.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import BlockHashes, blocks_of
from bakeoff.workloads.traces.checks import BlockTokens, InputTokens, OutputTokens, Seconds
from bakeoff.workloads.traces.reading import bad, decoded, whole
from bakeoff.workloads.traces.row import TraceRow

_SUFFIXES = (".json", ".json.gz")


class _Session(msgspec.Struct, frozen=True):
    block_size: BlockTokens
    requests: list[msgspec.Raw]
    id: str | None = None
    hash_id_scope: str = "local"


class _Request(msgspec.Struct, frozen=True):
    input_tokens: InputTokens = msgspec.field(name="in")
    output_tokens: OutputTokens = msgspec.field(name="out")
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    think_time: Seconds | None = None
    t: Seconds | None = None
    api_time: Seconds | None = None


class _Streamed(_Request, frozen=True, tag_field="type", tag="s"):
    pass


class _NotStreamed(_Request, frozen=True, tag_field="type", tag="n"):
    pass


class _SubAgent(msgspec.Struct, frozen=True, tag_field="type", tag="subagent"):
    """Requests that a sub-agent sent while the session waited; their hash ids belong to another session."""


_SESSIONS = msgspec.json.Decoder(_Session)
_REQUESTS: msgspec.json.Decoder[_Streamed | _NotStreamed | _SubAgent] = msgspec.json.Decoder(
    _Streamed | _NotStreamed | _SubAgent
)


class ClaudeCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of session files, in the order of their names, or one such file."""

    path: str
    """The folder, or a file ``*.json`` or ``*.json.gz``."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        has_rows, files = False, dict[str, Path]()
        for file in session_files(self.path):
            for row in _rows(file, files):
                has_rows = True
                yield row
        if not has_rows:
            raise bad(self.path, None, "has no requests")

    def notes(self) -> list[str]:
        """What is left out of the trace and what is added."""
        return [
            "claude-code: lengths, prefix blocks and think times as recorded; sessions have no common clock",
            "claude-code: a missing think time is that from the previous answer's end (t + api_time)",
            "claude-code: requests of sub-agents are left out; an answer abandoned at 0 tokens is requested with 1",
            "claude-code: a prompt's last, partial block has no hash in the trace and is not shared",
        ]


def session_files(path: str) -> list[Path]:
    """The JSON files in a folder, sorted by name, or the single file at ``path``.

    Raises:
        BadTrace: the folder has no such file, or nothing is at ``path``.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise bad(path, None, "does not exist; give a folder of session files, or one of them")
    files = sorted(file for file in place.iterdir() if file.name.endswith(_SUFFIXES))
    if not files:
        raise bad(path, None, f"has no session files ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)})")
    return files


def _rows(file: Path, files: dict[str, Path]) -> Iterator[TraceRow]:
    """Requests of one session; ``files`` maps each session read so far to its file."""
    session = decoded(file, None, whole(file), _SESSIONS)
    name = session.id or file.name.partition(".")[0]
    if files.setdefault(name, file) != file:
        raise bad(file, None, f"repeats the session {name!r} of {files[name].name}; remove one of the files")
    hashes = BlockHashes("" if session.hash_id_scope == "global" else name)
    last_blocks = BlockHashes(name, "last blocks")
    last: _Request | None = None
    for number, raw in enumerate(session.requests, 1):
        request = decoded(file, f"request {number}", raw, _REQUESTS)
        if isinstance(request, _SubAgent):
            continue
        blocks = [hashes[hash_id] for hash_id in request.hash_ids]
        expected = blocks_of(request.input_tokens, session.block_size)
        if blocks and len(blocks) not in (expected, request.input_tokens // session.block_size):
            size = f"{request.input_tokens} tokens make {expected} blocks of {session.block_size}"
            problem = f"has {len(blocks)} hash_ids, but {size}"
            raise bad(file, f"request {number}", f"{problem}; its block_size does not match its hash_ids")
        if blocks and len(blocks) < expected:
            blocks.append(last_blocks[number])
        yield TraceRow(
            None,
            request.input_tokens,
            max(1, request.output_tokens),
            name,
            None if last is None else _think_s(request, last),
            tuple(blocks),
            session.block_size if blocks else 0,
        )
        last = request


def _think_s(request: _Request, last: _Request) -> float | None:
    """Pause before a request, in seconds; None if the session does not tell."""
    if request.think_time is not None or request.t is None or last.t is None:
        return request.think_time
    return max(0.0, request.t - last.t - (last.api_time or 0.0))
