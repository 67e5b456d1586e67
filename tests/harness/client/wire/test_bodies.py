"""Bodies that share their beginnings are rebuilt as they were, in any order, and few are held."""

import random

import pytest

from bakeoff.harness.client.wire.bodies import BodyBuilder, shared_bodies


def conversations(rng: random.Random) -> tuple[list[bytes], list[str]]:
    """Bodies of two conversations that grow by turns, one of which starts over in the middle."""
    texts = {"a": b"", "b": b""}
    bodies, names = [], []
    for number in range(12):
        name = rng.choice("ab")
        texts[name] = rng.randbytes(5000) if number == 7 else texts[name] + rng.randbytes(5000)
        bodies.append(b'{"max_tokens":%d,"messages":"' % 9**number + texts[name] + b'"}')
        names.append(name)
    return bodies, names


@pytest.mark.parametrize("seed", range(5))
def test_bodies_are_rebuilt_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    bodies, names = conversations(rng)
    shared = shared_bodies(bodies, names)
    assert [body.size for body in shared] == list(map(len, bodies))
    assert sum(body.own_size for body in shared) < 12 * 7000 < sum(map(len, bodies))
    builder, order = BodyBuilder(shared), list(range(12))
    rng.shuffle(order)
    assert {number: builder.build(number) for number in order} == dict(enumerate(bodies))


def test_short_bodies_are_kept_whole() -> None:
    bodies = [bytes(range(250)) * 16 + end for end in (b"1", b"2")]
    assert [(body.base, body.rest) for body in shared_bodies(bodies, ["", ""])] == [(None, body) for body in bodies]
