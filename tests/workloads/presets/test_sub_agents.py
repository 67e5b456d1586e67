"""Sessions with sub-agents: who waits for whom, how long prompts are, and what a load can reach."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bakeoff.workloads import BadOption, PresetTraffic, Seed, Session, Tokenizer, Turn, workload
from bakeoff.workloads.distributions import Distribution, Fixed, Quantiles, Uniform
from bakeoff.workloads.outline import outlines
from bakeoff.workloads.presets import NaturalArrival, Preset, Shared, SubAgents
from bakeoff.workloads.presets.drawing import DrawnSession, DrawnTurn
from bakeoff.workloads.presets.preset import preset_from
from bakeoff.workloads.prompts import prompt_reader
from tests.workloads.replays import common_tokens

SEED = Seed.of("7")
TWO, TWO_OR_THREE = Fixed(2.0), Quantiles((0, 0.75, 0.750001, 1), (2, 2, 3, 3))
WITH_SUB_AGENTS = ("agent-coding", "deep-research")


def fixed(*, start_share: float = 1.0, at_once: Distribution = TWO, **changes: Any) -> SubAgents:
    """Sub-agents of three requests whose lengths and pauses do not vary."""
    lengths = {"input": Fixed(70.0), "output": Fixed(9.0), "last_output": Fixed(25.0), "append": Fixed(7.0)}
    pauses = {"think_s": Fixed(4.0), "start_pause_s": Fixed(2.0), "join_pause_s": Fixed(3.0)}
    return SubAgents(
        **{"start_share": start_share, "at_once": at_once, "turns": Fixed(3.0), **lengths, **pauses, **changes}
    )


def traffic(sub_agents: SubAgents, turns: int = 3, **changes: Any) -> PresetTraffic:
    preset = Preset(
        summary="small",
        source="nobody",
        arrival=NaturalArrival("poisson"),
        input=Fixed(100.0),
        output=Fixed(10.0),
        last_output=Fixed(30.0),
        turns=Fixed(float(turns)),
        append=Fixed(5.0),
        think_s=Fixed(20.0),
        shared=Shared(40, groups=2),
        sub_agents=sub_agents,
    )
    return PresetTraffic("small", msgspec.structs.replace(preset, **changes))


def drawn(made: PresetTraffic, count: int) -> list[DrawnSession]:
    return list(itertools.islice(made.drawing(SEED).sessions(), count))


def built_in(name: str, **options: Any) -> PresetTraffic:
    made = workload(name, options)
    assert isinstance(made, PresetTraffic)
    return made


def calls_of(turns: Sequence[DrawnTurn | Turn], agent: str) -> list[int]:
    return [number for number, turn in enumerate(turns) if turn.agent == agent]


def names(turns: Sequence[DrawnTurn | Turn]) -> set[str]:
    return {turn.agent for turn in turns} - {""}


def by_launch(turns: Sequence[DrawnTurn | Turn]) -> dict[int, list[str]]:
    """The sub-agents that start after each call of the main agent."""
    started: dict[int, list[str]] = {}
    for agent in sorted(names(turns)):
        (launch,) = turns[calls_of(turns, agent)[0]].parents or ()
        assert turns[launch].agent == ""
        started.setdefault(launch, []).append(agent)
    return started


def test_a_session_by_hand() -> None:
    """Two sub-agents after the first and the second of three calls: 2 s, then twice 4 s, and 3 s before the join."""
    (session,) = drawn(traffic(fixed()), 1)
    told = [(t.agent, t.parents, t.think_s, t.input_tokens, t.output_tokens) for t in session.turns]
    assert told == [
        ("", (), 0.0, 100, 10),
        ("agent_1", (0,), 2.0, 70, 9),
        ("agent_2", (0,), 2.0, 70, 9),
        ("agent_1", (1,), 4.0, 86, 9),
        ("agent_2", (2,), 4.0, 86, 9),
        ("agent_1", (3,), 4.0, 102, 25),
        ("agent_2", (4,), 4.0, 102, 25),
        ("", (0, 5, 6), 3.0, 160, 10),
        ("agent_3", (7,), 2.0, 70, 9),
        ("agent_4", (7,), 2.0, 70, 9),
        ("agent_3", (8,), 4.0, 86, 9),
        ("agent_4", (9,), 4.0, 86, 9),
        ("agent_3", (10,), 4.0, 102, 25),
        ("agent_4", (11,), 4.0, 102, 25),
        ("", (7, 12, 13), 3.0, 220, 30),
    ]


def test_nobody_waits_for_a_background_sub_agent_and_its_result_is_not_appended() -> None:
    (session,) = drawn(traffic(fixed(background_share=1.0)), 1)
    main = calls_of(session.turns, "")
    assert [session.turns[number].parents for number in main] == [(), (main[0],), (main[1],)]
    assert [session.turns[number].think_s for number in main] == [0.0, 20.0, 20.0]
    assert [session.turns[number].input_tokens for number in main] == [100, 115, 130]
    assert len(names(session.turns)) == 4


def test_a_session_that_starts_none_is_a_chain() -> None:
    sessions = drawn(traffic(fixed(start_share=0.1)), 20)
    chains = [session for session in sessions if not names(session.turns)]
    assert chains
    assert all(turn.parents is None for session in chains for turn in session.turns)


@pytest.mark.parametrize("name", WITH_SUB_AGENTS)
def test_a_join_waits_for_all_that_it_should(name: str) -> None:
    """And appends what they answered last; other calls of an agent follow its previous one alone."""
    made, joins, backgrounds = built_in(name), 0, 0
    for session in drawn(made, 80):
        turns, main = session.turns, calls_of(session.turns, "")
        waited = {parent for turn in turns for parent in turn.parents or ()}
        started = by_launch(turns) if names(turns) else {}
        for before, number in itertools.pairwise(main):
            ends = [calls_of(turns, agent)[-1] for agent in started.get(before, ())]
            awaited = [end for end in ends if end in waited]
            backgrounds += len(ends) - len(awaited)
            assert set(turns[number].parents or (number - 1,)) == {before, *awaited}
            if awaited and not turns[number].is_fresh:
                joins += 1
                grown = turns[before].input_tokens + turns[before].output_tokens
                assert turns[number].input_tokens == grown + sum(turns[end].output_tokens for end in awaited)
        assert main[-1] not in started
        for agent in names(turns):
            own = calls_of(turns, agent)
            assert [turns[number].parents for number in own[1:]] == [(number,) for number in own[:-1]]
    assert joins > 50
    assert (backgrounds > 3) == (name == "agent-coding")


def test_shares_and_numbers_are_those_of_the_preset() -> None:
    shared = Shared(40, groups=2)
    made = traffic(fixed(start_share=0.3, at_once=TWO_OR_THREE, background_share=0.2, shared=shared), turns=21)
    sessions = drawn(made, 100)
    started = [agents for session in sessions for agents in by_launch(session.turns).values()]
    assert len(started) / (100 * 20) == pytest.approx(0.3, abs=0.04)
    assert sum(len(agents) == 3 for agents in started) / len(started) == pytest.approx(0.25, abs=0.06)
    ends = waited = 0
    for session in sessions:
        parents = {parent for turn in session.turns for parent in turn.parents or ()}
        for agent in names(session.turns):
            ends += 1
            waited += calls_of(session.turns, agent)[-1] in parents
    assert 1 - waited / ends == pytest.approx(0.2, abs=0.04)
    groups = [group for session in sessions for group in session.sub_agent_groups.values()]
    assert len(groups) == ends
    assert sum(group == 2 for group in groups) / ends == pytest.approx(2 / 3, abs=0.05), "Zipf's law over 2 and 3"


def test_each_session_is_drawn_from_its_number_alone_and_sub_agents_change_no_length_of_the_main_agent() -> None:
    made = built_in("agent-coding")
    without = msgspec.structs.replace(made, preset=msgspec.structs.replace(made.preset, sub_agents=None))
    assert drawn(made, 12)[:5] == drawn(made, 5)
    for session, alone in zip(drawn(made, 12), drawn(without, 12), strict=True):
        main = [session.turns[number] for number in calls_of(session.turns, "")]
        assert [turn.output_tokens for turn in main] == [turn.output_tokens for turn in alone.turns]
        assert main[0].input_tokens == alone.turns[0].input_tokens


@pytest.mark.parametrize("name", WITH_SUB_AGENTS)
@pytest.mark.parametrize("reach_s", [0.0, 30.0, 90.0])
def test_within_a_load_are_the_first_calls_that_pauses_alone_let_it_reach(name: str, reach_s: float) -> None:
    made, left_out = built_in(name), 0
    for cut, whole in zip(drawn(made.within(reach_s), 20), drawn(made, 20), strict=True):
        turns, before_s = whole.turns, list[float]()
        for number, turn in enumerate(turns):
            parents = turn.parents if turn.parents is not None else range(max(0, number - 1), number)
            before_s.append(max((before_s[parent] + turns[parent].think_s for parent in parents), default=0.0))
        assert cut.turns == turns[: len(cut.turns)]
        assert all(passed <= reach_s for passed in before_s[: len(cut.turns)])
        assert all(passed > reach_s for passed in before_s[len(cut.turns) :])
        left_out += len(turns) - len(cut.turns)
    assert left_out


def written(made: PresetTraffic, tokenizer: Tokenizer, count: int) -> list[Session]:
    return list(itertools.islice(made.sessions(tokenizer, SEED), count))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), [("agent-coding", 0.02), ("deep-research", 0.05)])
def test_each_agent_extends_its_own_prompt_and_answer(small: Tokenizer, name: str, scale: float) -> None:
    made, reader, extended = built_in(name, scale=scale, max_input_tokens=2000), prompt_reader(small), 0
    for numbers, session in zip(drawn(made, 3), written(made, small, 3), strict=True):
        for agent in {"", *names(session.turns)}:
            own = calls_of(session.turns, agent)
            ids = {number: list(reader.ids(session.turns[number])) for number in own}
            for before, number in itertools.pairwise(own):
                if numbers.turns[number].is_fresh:
                    continue
                extended += 1
                assert ids[number][: len(ids[before])] == ids[before]
                assert len(ids[number]) > len(ids[before]) + session.turns[before].output_tokens
    assert extended > 50


def test_sub_agents_of_a_kind_share_their_system_prompt_and_no_more(small: Tokenizer) -> None:
    made = traffic(fixed(input=Fixed(120.0), shared=Shared(60, groups=2)))
    made = msgspec.structs.replace(made, api="completions")
    reader, first_prompts = prompt_reader(small), list[tuple[int, list[int]]]()
    for numbers, session in zip(drawn(made, 4), written(made, small, 4), strict=True):
        for agent, group in numbers.sub_agent_groups.items():
            first_prompts.append((group, list(reader.ids(session.turns[calls_of(session.turns, agent)[0]]))))
    before = len(small.encode_prompt(""))
    for (group, ids), (other_group, other_ids) in itertools.combinations(first_prompts, 2):
        # A tokenizer trained on a page of text may split the first word, which has no space before it.
        assert common_tokens(ids, other_ids) == pytest.approx(before + 60 * (group == other_group), abs=4)
    assert {group for group, _ in first_prompts} == {2, 3}
    primers = [list(reader.ids(primer.turns[0])) for primer in made.primers(small, SEED)]
    assert len(primers) == 4, "two of the main agents, two of sub-agents"
    assert all(common_tokens(primers[group], ids) >= 60 for group, ids in first_prompts)


def test_chosen_sessions_and_outlines_have_the_same_graph(small: Tokenizer) -> None:
    made = built_in("deep-research", scale=0.05, max_input_tokens=1000)
    whole = written(made, small, 3)
    chosen = list(made.chosen(small, SEED, {0: 9, 2: 4}))
    assert [session.turns for session in chosen] == [whole[0].turns[:9], whole[2].turns[:4]]
    for outline, session in zip(outlines(made, SEED), whole, strict=False):
        links = [(turn.agent, turn.parents, turn.lags_s, turn.think_s) for turn in outline.turns]
        assert links == [(turn.agent, turn.parents, turn.lags_s, turn.think_s) for turn in session.turns]


def test_a_sub_agent_compacts_its_own_prompt() -> None:
    made = traffic(fixed(turns=Fixed(40.0), append=Uniform(40, 60)), turns=2, max_input_tokens=600)
    (session,) = drawn(made, 1)
    for agent in ("agent_1", "agent_2"):
        own = [session.turns[number] for number in calls_of(session.turns, agent)]
        assert sum(turn.is_fresh for turn in own) > 3
        assert max(turn.input_tokens for turn in own) <= 600
    assert [turn.is_fresh for turn in session.turns if not turn.agent] == [True, False]


BASE = """
summary = "short"
source = "nobody"
arrival = { process = "poisson" }
input = { family = "fixed", value = 40 }
output = { family = "fixed", value = 4 }
[sub_agents]
at_once = { family = "fixed", value = 2 }
input = { family = "fixed", value = 40 }
output = { family = "fixed", value = 4 }
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("start_share = 0", "start_share must be above 0 and at most 1, not 0.0"),
        ("start_share = 0.1\nbackground_share = 2", "background_share must lie between 0 and 1, not 2.0"),
        ("start_share = 0.1\nshared = { tokens = 0 }", "shared.groups and shared.tokens must be at least 1"),
        ("start_share = 0.1\njoin_s = 2", "has no option 'join_s'"),
        ("", "Object missing required field `start_share`"),
    ],
)
def test_bad_sub_agents_are_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(BadOption) as caught:
        preset_from(f"{BASE}{line}\n", "preset x")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
