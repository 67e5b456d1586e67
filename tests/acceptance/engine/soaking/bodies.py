"""Request bodies of the soak: random ones that the server must answer, and ones that it must refuse."""

import random
from typing import Any

from tests.acceptance.engine.soaking.client import CHAT, TEXT

Body = dict[str, Any]

WORDS = ("the", "engine", "keeps", "every", "block", "and", "gives", "it", "back", "when", "hello", "world", "ends")
PREFIXES = [" ".join(WORDS[i:] + WORDS[:i]) * 2 for i in range(6)]  # shared by prompts
HELLO = [{"role": "user", "content": "hello"}]
UNKNOWN_ROUTES = (("GET", "/nope", 404), ("POST", "/v1/embeddings", 404), ("GET", TEXT, 405), ("PUT", CHAT, 405))
PAGES = ("/metrics", "/health", "/version", "/v1/models", "/openapi.json")
NESTING = 100_000  # brackets


def words(rng: random.Random, max_count: int) -> str:
    """A text of 1 to `max_count` words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, max_count)))


def prompt(rng: random.Random) -> str | list[int]:
    """Text, often with a shared prefix, or token ids."""
    if rng.random() < 0.2:
        return [rng.randrange(3, 250) for _ in range(rng.randint(1, 120))]
    return rng.choice(PREFIXES) * (rng.random() < 0.6) + words(rng, 12)


def _settings(rng: random.Random) -> Body:
    """Sampling fields, each included with probability 0.3."""
    fields: Body = {
        "temperature": rng.choice([0, 0.7, 1.5]),
        "top_p": rng.choice([0.1, 0.9, 1]),
        "top_k": rng.choice([-1, 1, 40]),
        "min_p": rng.choice([0, 0.05]),
        "seed": rng.getrandbits(40),
        "repetition_penalty": rng.choice([0.8, 1.3]),
        "presence_penalty": rng.choice([-1, 1.5]),
        "frequency_penalty": rng.choice([-0.5, 0.5]),
        "logit_bias": {str(rng.randrange(3, 250)): rng.choice([-100, 5])},
        "watermark": rng.choice([{}, {"delta": 5, "gamma": 0.5, "key": 7}]),
        "stop": rng.choice(["e", ["th", "qu"], [" never", "so"]]),
        "ignore_eos": True,
        "priority": rng.randint(-2, 2),
        "cache_salt": rng.choice(["red", "blue"]),
        "return_token_ids": True,
        "n": rng.choice([1, 2, 3]),
    }
    return {name: value for name, value in fields.items() if rng.random() < 0.3}


def generation(rng: random.Random, *, max_tokens: int = 32) -> tuple[str, Body]:
    """Path and body of a request that must be answered."""
    body = _settings(rng) | {"max_tokens": rng.randint(1, max_tokens)}
    if rng.random() < 0.5:
        if rng.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 2}
        turns = [{"role": "user", "content": words(rng, 30)}, {"role": "assistant", "content": "yes"}]
        return CHAT, body | {"messages": turns * rng.randint(0, 2) + HELLO}
    if rng.random() < 0.2:
        body |= {"logprobs": rng.randint(0, 5)}
    return TEXT, body | {"prompt": prompt(rng)}


def num_choices(body: Body) -> int:
    """Number of choices in the answer to a request with one prompt."""
    return body.get("n", 1)


def mistake(rng: random.Random) -> tuple[str, Body | bytes]:
    """Path and body of a request that must be refused with a 400."""
    return rng.choice(
        [
            (TEXT, b"{"),
            (TEXT, b'{"prompt": "\xff"}'),
            (TEXT, b'{"prompt": ' + b"[" * NESTING),
            (TEXT, b"".join([b'{"prompt": "', rng.randbytes(30).hex().encode(), b'", "max_tokens": 1']) + b"}}"),
            (CHAT, b""),
            (CHAT, {}),
            (CHAT, {"messages": HELLO, "no_such_field": rng.random()}),
            (CHAT, {"messages": [{"role": "user", "content": 5}]}),
            (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": 1}}),
            (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}),
            (TEXT, {"prompt": 7}),
            (TEXT, {"prompt": ["a", 3]}),
            (TEXT, {"prompt": ""}),
            (TEXT, {"prompt": [10**9]}),
            (TEXT, {"prompt": "x", "max_tokens": "many"}),
            (TEXT, {"prompt": "x", "max_tokens": 10**9}),
            (TEXT, {"prompt": "x", "temperature": -rng.random() - 0.1}),
            (TEXT, {"prompt": "x", "n": 129}),
            (TEXT, {"prompt": "x", "stop": [""]}),
            (TEXT, {"prompt": "x", "logit_bias": {"word": 1}}),
            (TEXT, {"prompt": "x", "best_of": 2, "stream": True}),
            (TEXT, {"prompt": "x", "guided_regex": "("}),
            (TEXT, {"prompt": "x", "guided_regex": "a", "guided_json": {}}),
            (TEXT, {"prompt": "x", "guided_json": {"type": "nonsense"}}),
            (TEXT, {"prompt": "x", "guided_json": "[" * NESTING}),
        ]
    )


def too_long(rng: random.Random) -> tuple[str, Body]:
    """Path and body of a request whose prompt is too long, which must be refused with a 400, too."""
    if rng.random() < 0.5:
        return TEXT, {"prompt": [5] * rng.randint(2_500, 20_000)}
    return CHAT, {"messages": [{"role": "user", "content": "far too long " * rng.randint(2_500, 10_000)}]}
