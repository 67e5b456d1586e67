"""Asks a running server for the log-probabilities of given tokens: ``prompt_logprobs``, vLLM's extension.

The reference engine has it, too. llama.cpp reports log-probabilities only of the tokens that it generates.

The request is one of ``/v1/completions`` with the prompt as token ids. ``choices[0].prompt_logprobs`` of the answer has
one entry per prompt token: null for the first, then an object that maps token ids to log-probability and rank. It holds
the k likeliest tokens and the prompt's own token.
"""

from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from bakeoff.engines import Deployment
from bakeoff.engines.base import access_to
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.identification import identify, only_model
from bakeoff.engines.secrets import conceal
from bakeoff.engines.server import redirection
from bakeoff.harness.errors import EvaluationFailed

_LIMIT_S = 600.0
_PATH = "/v1/completions"
_FIELD = "prompt_logprobs"
_NO_SUPPORT = (
    f"does not return prompt log-probabilities ({_FIELD} of {_PATH}, which vLLM and the reference engine have); "
    "evaluate the model's folder instead: bakeoff models eval DIR"
)


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one token at one position; other fields of the server are ignored."""

    logprob: float


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: list[dict[int, TokenLogprob] | None] | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice]


class Prediction(msgspec.Struct, frozen=True):
    """Prediction of a server's model for one token of a prompt, given the tokens before it.

    Attributes:
        logprob: log-probability of the token, in nats.
        likeliest: the model's likeliest token.
    """

    logprob: float
    likeliest: int


class PromptScorer:
    """Scores prompts with one model of a server.

    Args:
        session: for the requests.
        deployment: address and credentials.
        model: its name in requests.
    """

    def __init__(self, session: aiohttp.ClientSession, deployment: Deployment, model: str) -> None:
        access = access_to(deployment)
        self.url, self.model = endpoint(deployment.url or "").base_url, model
        self._session = session
        self._address, self._headers = self.url + access.path(_PATH), access.headers

    async def predictions(self, ids: Sequence[int]) -> list[Prediction]:
        """One prediction for each token of a prompt but the first.

        Raises:
            EvaluationFailed: the server cannot be reached, refuses, or does not return prompt log-probabilities.
        """
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, _FIELD: 1}
        limit = aiohttp.ClientTimeout(total=_LIMIT_S)
        try:
            request = self._session.post(
                self._address, json=body, headers=self._headers, timeout=limit, allow_redirects=False
            )
            async with request as answer:
                status, content, place = answer.status, await answer.read(), redirection(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EvaluationFailed(f"{self.url} cannot be reached: {str(error) or type(error).__name__}") from error
        if place:
            raise EvaluationFailed(f"{self.url} redirects to {place.removesuffix(_PATH)}; give that address with --url")
        if status != 200:
            raise EvaluationFailed(f"{self.url} {_refusal(status, content)}")
        try:
            entries = msgspec.json.decode(content, type=_Answer).choices[0].prompt_logprobs
        except (msgspec.MsgspecError, IndexError) as error:
            raise EvaluationFailed(f"{self.url} sent a malformed completion: {error}") from error
        if entries is None:
            raise EvaluationFailed(f"{self.url} {_NO_SUPPORT}")
        if len(entries) != len(ids):
            raise EvaluationFailed(
                f"{self.url} returned {len(entries)} prompt log-probabilities for {len(ids)} tokens; a proxy may have "
                "changed the prompt"
            )
        return [self._prediction(token, entry) for token, entry in zip(ids[1:], entries[1:], strict=True)]

    def _prediction(self, token: int, entry: dict[int, TokenLogprob] | None) -> Prediction:
        own = (entry or {}).get(token)
        if not entry or own is None:
            raise EvaluationFailed(f"{self.url} returned no log-probability of the prompt's token {token}")
        return Prediction(own.logprob, max(entry, key=lambda other: entry[other].logprob))


async def served_model(deployment: Deployment, name: str | None = None) -> tuple[str, str | None]:
    """The name of a server's model, and the checkpoint that the server says it loaded.

    Args:
        deployment: address and credentials.
        name: None for the server's only model.

    Raises:
        BadOption: the address is invalid, or the key's variable is not set.
        NotIdentified: it cannot be reached, or does not serve exactly one model.
    """
    conceal(*deployment.secrets())
    identity = await identify(deployment)
    return name or only_model(identity, endpoint(deployment.url or "").base_url), identity.checkpoint


def _refusal(status: int, content: bytes) -> str:
    """Meaning of an HTTP error; servers that do not know the field name it in the error."""
    message = " ".join(_error_message(content).split())
    if status in {400, 422} and _FIELD in message:
        return _NO_SUPPORT
    return f"answered HTTP {status}: {message[:300] or 'no message'}"


def _error_message(content: bytes) -> str:
    """The message of OpenAI's error object, or of vLLM's older one; else the body."""
    try:
        body: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return content.decode(errors="replace")
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else content.decode(errors="replace")
