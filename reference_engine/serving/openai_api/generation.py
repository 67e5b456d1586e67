"""POST /v1/completions and /v1/chat/completions, from the request to the answer."""

import asyncio
import uuid
from collections.abc import Sequence

from aiohttp import HttpVersion11, web

from bakeoff.reference_engine.core.request import FinishReason, Request
from bakeoff.reference_engine.engine.beam_search import conflicting_flag
from bakeoff.reference_engine.engine.memory import FreedMemory
from bakeoff.reference_engine.errors import EngineUnavailableError, RequestError
from bakeoff.reference_engine.serving.core.streams import TokenStream
from bakeoff.reference_engine.serving.front_end_log import HttpTrace
from bakeoff.reference_engine.serving.openai_api.answers import DONE, encode, sse
from bakeoff.reference_engine.serving.openai_api.bodies import read_body
from bakeoff.reference_engine.serving.openai_api.choices import (
    Choice,
    OpenChoices,
    TokenEvent,
    best_of,
    share_prompt_logprobs,
)
from bakeoff.reference_engine.serving.openai_api.chunks import ChunkEncoder, DirectWriter
from bakeoff.reference_engine.serving.openai_api.failures import failure_answer, unknown_model
from bakeoff.reference_engine.serving.openai_api.fields import (
    ChatFields,
    CompletionFields,
    GenerationFields,
    StreamOptions,
    answers_of,
    candidates_of,
)
from bakeoff.reference_engine.serving.openai_api.formats import AnswerFormat, ChatFormat, TextFormat, final_usage_of
from bakeoff.reference_engine.serving.openai_api.parsing import (
    MAX_PROMPTS,
    chat_prompt,
    completion_prompts,
    parse_body,
    sampling_params,
)
from bakeoff.reference_engine.serving.openai_api.reading import Reading
from bakeoff.reference_engine.serving.openai_api.structured_output import grammar_of
from bakeoff.reference_engine.serving.openai_api.tools import tools_of
from bakeoff.reference_engine.serving.service import Service, Serving

_LARGE_BODY_BYTES = 1 << 20
_MOST_BODY_BYTES = 64 << 20
_OTHER_BYTES = 1 << 20  # tools, schemas, biases
_BYTES_PER_TOKEN = 16  # of a prompt in JSON, escapes included; three times as many as in most
_GIVE_BACK_S = 3.0  # from the end of a large body until its prompt is encoded or refused
_SESSION_HEADER = "X-Session-ID"  # requests with one value go to one replica, which has their prefixes
_SEED_MASK = (1 << 63) - 1  # JSON allows any integer
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class GenerationRoutes:
    """The two handlers.

    Args:
        service: the model being served.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._freed = FreedMemory()
        self._giving_back: asyncio.TimerHandle | None = None

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        trace = self._service.front_end_log.trace()
        serving = self._service.ready()
        fields = parse_body(await self._body(http, serving), CompletionFields)
        self._check_model_name(fields)
        prompts = await completion_prompts(fields, serving.tokenizer, serving.facts.limits.max_model_len)
        answer_id = f"cmpl-{uuid.uuid4().hex}"
        form = TextFormat(answer_id, serving.facts.config.model_name, return_token_ids=bool(fields.return_token_ids))
        return await self._generate(http, fields, _Job(answer_id, prompts, form, serving, trace))

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        trace = self._service.front_end_log.trace()
        serving = self._service.ready()
        fields = parse_body(await self._body(http, serving), ChatFields)
        self._check_model_name(fields)
        tokenizer, tools = serving.tokenizer, tools_of(fields)
        prompts = [await chat_prompt(fields, tokenizer, serving.facts.limits.max_model_len, tools)]
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        form = ChatFormat(answer_id, serving.facts.config.model_name, return_token_ids=bool(fields.return_token_ids))
        reading = Reading.of(tokenizer, tools, prompts[0])
        return await self._generate(http, fields, _Job(answer_id, prompts, form, serving, trace, reading=reading))

    async def _body(self, http: web.Request, serving: Serving) -> bytes:
        """The body; after the last of large ones, memory that is free then goes back to the system.

        Raises:
            RequestError: see `read_body`.
        """
        body = await read_body(http, _most_bytes(serving))
        if len(body) >= _LARGE_BODY_BYTES:
            if self._giving_back is not None:
                self._giving_back.cancel()
            self._giving_back = asyncio.get_running_loop().call_later(_GIVE_BACK_S, self._give_back)
        return body

    def _give_back(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._freed.give_back)

    def _check_model_name(self, fields: GenerationFields) -> None:
        name = self._service.config.model_name
        if fields.model is not None and fields.model != name:
            raise unknown_model(fields.model, name)

    async def _generate(self, http: web.Request, fields: GenerationFields, job: "_Job") -> web.StreamResponse:
        grammar = await grammar_of(fields, job.serving.grammars)
        choices: list[Choice] = []
        leaders: list[Request] = []
        for prompt in job.prompts:
            group: list[Request] = []
            for number in range(candidates_of(fields)):
                seed = self._service.next_seed() if fields.seed is None else (fields.seed + number) & _SEED_MASK
                group.append(job.request(prompt, fields, grammar, index=len(choices), seed=seed))
                choices.append(job.choice(len(choices), group[-1], fields))
            # The prompt is computed once; then the others are forked off and share its blocks.
            group[0].siblings = tuple(group[1:])
            leaders.append(group[0])
        trace = job.trace
        if trace is not None:
            trace.parsed(job.serving.engines)
        stream = job.serving.engines.submit(leaders, session=http.headers.get(_SESSION_HEADER))
        try:
            if fields.stream:
                return await _answer_in_stream(http, fields.stream_options or StreamOptions(), job, choices, stream)
            return await _answer_whole(job, choices, stream, answers_of(fields))
        finally:
            # Also reached when aiohttp cancels the handler because the client has disconnected.
            metrics = self._service.metrics
            metrics.count_finished(FinishReason.STOP, stream.num_finished_early)
            metrics.count_finished(FinishReason.ABORT, stream.close())
            if trace is not None:
                trace.ended([choice.request_id for choice in choices])


def _most_bytes(serving: Serving) -> int:
    """Bytes of the largest body: of everything but prompts, and of as many and as long prompts as may be sent."""
    return min(_OTHER_BYTES + MAX_PROMPTS * serving.facts.limits.max_model_len * _BYTES_PER_TOKEN, _MOST_BODY_BYTES)


class _Job:
    """A parsed request; `reading` says how its answers are read, of a chat."""

    def __init__(
        self,
        answer_id: str,
        prompts: Sequence[list[int]],
        form: AnswerFormat,
        serving: Serving,
        trace: HttpTrace | None,
        *,
        reading: Reading | None = None,
    ) -> None:
        self.answer_id = answer_id
        self.prompts = prompts
        self.form = form
        self.serving = serving
        self.trace = trace
        self.reading = reading

    def choice(self, index: int, request: Request, fields: GenerationFields) -> Choice:
        """A choice of the answer; see `Choice`."""
        if self.reading is None:
            choice = Choice(index, request, fields, self.serving.tokenizer)
            if isinstance(fields, CompletionFields) and fields.echo:
                choice.echo = self._prompt_text(request, fields)
            return choice
        skips = fields.skip_special_tokens and not self.reading.has_special_marks
        choice = Choice(index, request, fields, self.serving.tokenizer, skip_special_tokens=skips)
        choice.reader = self.reading.reader()
        return choice

    def _prompt_text(self, request: Request, fields: CompletionFields) -> str:
        if isinstance(fields.prompt, str):
            return fields.prompt
        prompt = request.token_ids[: request.prompt_len]
        return self.serving.tokenizer.decode(prompt, skip_special_tokens=fields.skip_special_tokens)

    def request(
        self, prompt: list[int], fields: GenerationFields, grammar: str | None, *, index: int, seed: int
    ) -> Request:
        params = sampling_params(
            fields,
            prompt_len=len(prompt),
            seed=seed,
            eos_token_ids=self.serving.facts.eos_token_ids,
            limits=self.serving.facts.limits,
            grammar=grammar,
            beam_conflict=conflicting_flag(self.serving.facts.config),
            defaults=self.serving.sampling_defaults,
        )
        name = f"{self.answer_id}-{index}"
        return Request(name, prompt, params, fields.cache_salt, priority=fields.priority or 0)


async def _answer_whole(job: _Job, choices: list[Choice], stream: TokenStream, count: int) -> web.Response:
    """`count`: number of answers for each prompt, the best of those generated."""
    open_choices = OpenChoices(choices, stream)
    collected: list[list[TokenEvent]] = [[] for _ in choices]
    while outputs := await stream.next_outputs():
        for output in outputs:
            event = open_choices.push(output)
            if event is not None:
                collected[event.index].append(event)
    events = dict(zip([choice.request_id for choice in choices], collected, strict=True))
    usage = final_usage_of(choices, job.prompts)  # answers that are dropped count too
    num_candidates = len(choices) // len(job.prompts)
    share_prompt_logprobs(choices, num_candidates)
    best = best_of(choices, num_candidates, count)
    answer = job.form.whole([(choice, events[choice.request_id]) for choice in best], usage)
    return web.Response(body=encode(answer), content_type="application/json")


async def _answer_in_stream(
    http: web.Request, options: StreamOptions, job: _Job, choices: list[Choice], stream: TokenStream
) -> web.StreamResponse:
    """Streams an answer: one write for all tokens of a step, the last ones together with the end of the stream."""
    encoder = ChunkEncoder(OpenChoices(choices, stream), job.form, job.prompts, options)
    response = web.StreamResponse(headers=_SSE_HEADERS)
    sink: DirectWriter | None = None
    trace = job.trace
    if http.version >= HttpVersion11:
        response.enable_chunked_encoding()
        sink = DirectWriter(http, encoder, trace)
    await response.prepare(http)
    unsent, is_begun = b"", False
    try:
        # aiohttp must do the first write, because it sends the headers.
        while outputs := await stream.next_outputs(sink if is_begun else None):
            unsent = encoder.encode(outputs)
            if trace is not None:
                trace.writes(len(outputs))
            if unsent and not stream.is_over:
                await response.write(unsent)  # waits if the client reads too slowly
                unsent, is_begun = b"", True
        if options.include_usage:
            unsent += sse(job.form.usage(final_usage_of(choices, job.prompts)))
    except (EngineUnavailableError, RequestError) as error:
        unsent = sse(failure_answer(error))
    await response.write_eof(unsent + DONE)
    return response
