"""Dialect of ``transformers serve``: exact requests, since it refuses unknown fields."""

import json

from bakeoff.engines.dialects import TransformersDialect
from bakeoff.workloads import Message, Turn


def test_chat_forces_the_length_through_a_generation_config() -> None:
    request = TransformersDialect().request(Turn(12, 3, messages=(Message("user", "Hi"),)), "/models/smol")
    assert request.path == "/v1/chat/completions"
    body = json.loads(request.body)
    assert json.loads(body.pop("generation_config")) == {"do_sample": False, "eos_token_id": -1, "max_new_tokens": 3}
    assert body == {
        "model": "/models/smol",
        "stream": True,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_completion_forces_the_length_through_a_generation_config() -> None:
    request = TransformersDialect().request(Turn(5, 4, prompt="Hi"), "/models/smol")
    assert request.path == "/v1/completions"
    body = json.loads(request.body)
    assert json.loads(body.pop("generation_config"))["max_new_tokens"] == 4
    assert body == {"model": "/models/smol", "stream": True, "max_tokens": 4, "prompt": "Hi"}
    assert TransformersDialect.name == "transformers"
