"""Dialect of the reference engine: forced length and token ids."""

import json

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.workloads import Message, Turn


def test_chat_forces_the_length_and_asks_for_ids() -> None:
    request = ReferenceDialect().request(Turn(12, 3, messages=(Message("user", "Hi"),)), "smol")
    assert request.path == "/v1/chat/completions"
    assert json.loads(request.body) == {
        "model": "smol",
        "stream": True,
        "max_tokens": 3,
        "min_tokens": 3,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_completion_forces_the_length_and_asks_for_ids() -> None:
    request = ReferenceDialect().request(Turn(5, 4, prompt="Hi"), "smol")
    assert request.path == "/v1/completions"
    body = json.loads(request.body)
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["return_token_ids"]) == (4, 4, True, True)
    assert body["prompt"] == "Hi"
    assert ReferenceDialect.name == "reference"
