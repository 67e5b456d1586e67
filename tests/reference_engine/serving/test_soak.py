"""`tests/acceptance/engine/soak.py` in seconds instead of half an hour: every kind of user, on a tiny model."""

import asyncio
import random

import aiohttp

from bakeoff.reference_engine.core.config import EngineConfig
from tests.acceptance.engine.soaking.client import Client
from tests.acceptance.engine.soaking.crowd import Tally, act
from tests.acceptance.engine.soaking.kinds import KINDS
from tests.acceptance.engine.soaking.watch import HELD, drift, left_over
from tests.reference_engine.server_calls import run

USERS = 4


def test_good_and_bad_users_together_leave_nothing_behind(serve, make_model, save_checkpoint, tmp_path):
    save_checkpoint(tmp_path, make_model(max_position_embeddings=1024))
    config = EngineConfig(
        model=str(tmp_path), dtype="float32", threads=1, num_blocks=72, max_num_seqs=8, max_num_batched_tokens=64
    )

    async def one_user(client, number, tally):
        rng = random.Random(number)
        kinds = [*KINDS]
        rng.shuffle(kinds)
        for kind in kinds:
            await act(client, kind, random.Random(f"{number} {kind}"), 60, tally)

    async def test():
        async with serve(config=config) as s, aiohttp.ClientSession() as session:
            client, tally = Client(session, s.client.host, s.client.port), Tally()
            await asyncio.gather(*(one_user(client, number, tally) for number in range(USERS)))
            left = await left_over(client, 20)
            async with s.client.get("/health") as answer:
                assert answer.status == 200
        assert tally.complaints == []
        assert sum(tally.outcomes.values()) == USERS * len(KINDS)
        assert left == dict.fromkeys(HELD, 0)

    run(test())


def test_what_is_not_in_order_is_counted_by_its_word():
    tally = Tally()
    for kind, outcome in (("whole", 200), ("whole", 500), ("stream", "stuck"), ("mistake", 200), ("too_big", None)):
        tally.add(kind, outcome, 1.0)
    assert (tally.unexpected(), tally.unexpected("stuck"), tally.unexpected("wrong", "broken")) == (2, 1, 0)
    assert len(tally.complaints) == 3
    assert "200 1, 500 1" in tally.table()


def test_drift_is_that_of_the_last_fifth_over_the_second():
    assert drift([100] * 4 + [200] * 4 + [7] * 8 + [210] * 4) == 210 / 200 - 1
    assert drift([5] * 9) != drift([5] * 9)  # too few to say anything
