"""Finds calls of functions in the text of an answer, while it is written."""

from collections.abc import Mapping
from typing import Any

from bakeoff.reference_engine.engine.detokenizer import overlap
from bakeoff.reference_engine.serving.openai_api.tool_formats import (
    CallPart,
    Calls,
    NotACallError,
    Scanner,
    ToolFormat,
)


class CallReader:
    """Finds the calls in the text of one answer.

    Args:
        form: of the model's calls.
        schemas: see `Calls`.
        most: the same.
    """

    def __init__(self, form: ToolFormat, schemas: Mapping[str, Mapping[str, Any]], most: int | None = None) -> None:
        self._form = form
        self._calls = Calls(schemas, most)
        self._held = ""
        self._is_behind_call = self._is_end_passed = False
        self._scanner: Scanner | None = None  # of the call at which the text is
        self._scanned: list[str] = []  # its text so far
        self._earlier = 0  # calls before it
        if not form.begin:
            self._start("")

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls.count > 0

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[CallPart]]:
        """The ordinary text and the pieces of calls that a token adds.

        The beginning of a possible call is held back, and so are blanks, which are dropped where a call follows.
        """
        content: list[str] = []
        self._held += text
        while self._held or (is_last and self._scanner is not None):
            if self._scanner is not None:
                self._scan(self._scanner, content, is_last=is_last)
            elif not self._find(content, is_last=is_last):
                break
        return "".join(content), self._calls.take()

    def _find(self, content: list[str], *, is_last: bool) -> bool:
        """Moves the text before a call to `content`; returns whether one begins there."""
        begin = self._form.begin
        if self._is_behind_call and not self._pass_end(is_last=is_last):
            return False
        before, is_there, behind = self._held.partition(begin) if begin else (self._held, "", "")
        if is_there:
            content.append(before.rstrip())
            self._held = behind
            self._start(begin)
            return True
        free = len(before)
        if begin and not is_last:
            free = len(before[: free - overlap(before, begin)].rstrip())
        content.append(before[:free])
        self._held = before[free:]
        return False

    def _pass_end(self, *, is_last: bool) -> bool:
        """Drops the end of a call and the blanks around it; returns whether other text follows, or none can."""
        behind, end = self._held.lstrip(), "" if self._is_end_passed else self._form.end
        if end and behind.startswith(end):
            behind, end, self._is_end_passed = behind.removeprefix(end).lstrip(), "", True
        self._held = behind
        if not is_last and (not behind or (end and end.startswith(behind))):
            return False
        self._is_behind_call = self._is_end_passed = False
        return True

    def _start(self, begin: str) -> None:
        self._scanner, self._scanned, self._earlier = self._form.scan(self._calls), [begin], self._calls.count
        next(self._scanner)

    def _scan(self, scanner: Scanner, content: list[str], *, is_last: bool) -> None:
        text, self._held = self._held, ""
        for stop, char in enumerate(text, 1):
            try:
                scanner.send(char)
            except StopIteration as ended:
                unread: str = ended.value
                self._scanner, self._is_behind_call = None, True
                self._held = unread + text[stop:]
                return
            except NotACallError:
                self._scanned.append(text[:stop])
                self._leave(content)
                self._held = text[stop:]
                return
        self._scanned.append(text)
        if is_last:
            self._leave(content)

    def _leave(self, content: list[str]) -> None:
        """Ends a scan within what is no call, or no whole one; its text is ordinary if no call has begun in it."""
        self._scanner = None
        if self._calls.count == self._earlier:
            content += self._scanned
