"""Beam search by Transformers, and the comparison of the engine's hypotheses with its."""

import dataclasses

import torch

from bakeoff.reference_engine.core.request import BeamParams, SamplingParams

EXCUSED = 1e-4  # between the log-probabilities of the hypotheses in one place


@dataclasses.dataclass(frozen=True)
class ScoredHypothesis:
    """A hypothesis, its stop token included.

    Attributes:
        token_ids: at least one.
        log_prob: the sum over its tokens, after penalties.
    """

    token_ids: list[int]
    log_prob: float


@torch.inference_mode()
def transformers_beams(model, prompt: list[int], params: SamplingParams) -> list[ScoredHypothesis]:
    """All hypotheses that ``generate`` keeps for one prompt, best first."""
    beams, stops = params.beams, sorted(params.stop_token_ids)
    assert beams is not None
    ids = torch.tensor([prompt], device=model.device)
    answer = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=beams.width, num_return_sequences=beams.width,
        length_penalty=beams.length_penalty, early_stopping=beams.early_stopping, max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens or None, repetition_penalty=params.repetition_penalty, do_sample=False,
        eos_token_id=stops or None, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    hypotheses: list[ScoredHypothesis] = []
    for tokens, score in zip(answer.sequences.tolist(), answer.sequences_scores.tolist(), strict=True):
        output = tokens[len(prompt) :]
        length = next((place + 1 for place, token in enumerate(output) if token in params.stop_token_ids), len(output))
        hypotheses.append(ScoredHypothesis(output[:length], score * length**beams.length_penalty))
    return hypotheses


def agreement(actual: list[ScoredHypothesis], expected: list[ScoredHypothesis]) -> str:
    """``equal``; ``excused`` where each place is taken by hypotheses that rounding alone ranks; else ``different``."""
    if [hypothesis.token_ids for hypothesis in actual] == [hypothesis.token_ids for hypothesis in expected]:
        return "equal"
    near = all(abs(a.log_prob - b.log_prob) <= EXCUSED for a, b in zip(actual, expected, strict=True))
    return "excused" if near else "different"


def searched(llm, prompts: list[list[int]], params: SamplingParams) -> list[list[ScoredHypothesis]]:
    """The engine's hypotheses, all prompts at once; audits the page tables."""
    assert params.beams is not None
    answers = llm.generate(prompts, params, n=params.beams.width, ignore_eos=True)
    llm.engine.check_integrity()
    return [
        [
            ScoredHypothesis(completion.token_ids, completion.cumulative_logprob or 0.0)
            for completion in answer.completions
        ]
        for answer in answers
    ]


def beam_params(width: int, penalty: float, early, **sampling) -> SamplingParams:
    """Parameters of a search; keyword arguments as in `SamplingParams`."""
    return SamplingParams(beams=BeamParams(width, penalty, early), **sampling)
