"""A running virtual engine: its queue, slots and crashes."""

import asyncio
from collections import deque

from bakeoff.engines import Access, Server
from bakeoff.harness.client.wire.transport import Ended, StreamLog
from bakeoff.harness.host.clock import LoopClock
from bakeoff.harness.truth.answered import CompletionRequest
from bakeoff.harness.virtual.answer import HANGS, STATUS, Answer, answer_of, chunks_of, refusal
from bakeoff.harness.virtual.batch import Batch
from bakeoff.harness.virtual.draws import Batched
from bakeoff.harness.virtual.engine import Fault, VirtualEngine
from bakeoff.harness.virtual.prefix_cache import PrefixCache, Room, Use
from bakeoff.harness.virtual.served import Ending, Served
from bakeoff.harness.virtual.site import Site
from bakeoff.results.records import Phase, StreamEnd
from bakeoff.results.units import NS_PER_S

_REFUSAL_S = 0.001
"""Time of a reply with an error status. If it were 0, a closed loop would repeat it forever at one instant."""
_NOTICE_S = 0.005
"""Time from the reset of its connections until the exit of the process is noticed."""


class Exchange:
    """One request in progress.

    Args:
        request: the request.
        prompt: text of the prompt, if the engine has a cache.
        log: filled at the end of the exchange; ``served`` is current until then.
        ended: called at the end.
        trial: id of its trial.
        phase: as sent by the client.
    """

    __slots__ = (
        "answer",
        "ended",
        "log",
        "phase",
        "prompt",
        "request",
        "room",
        "served",
        "timer",
        "trial",
        "use",
    )

    def __init__(
        self, request: CompletionRequest, prompt: str, log: StreamLog, ended: Ended, *, trial: str | None, phase: Phase
    ) -> None:
        self.request: CompletionRequest = request
        self.prompt: str = prompt
        self.log: StreamLog = log
        self.ended = ended
        self.trial: str | None = trial
        self.phase: Phase = phase
        self.served: Served | None = None
        self.answer: Answer | None = None
        self.room: Room | None = None
        self.use: Use | None = None
        self.timer: asyncio.TimerHandle | None = None


class VirtualServer(Server):
    """One start of a virtual engine.

    Args:
        base_url: its address.
        site: the engine over all its starts.
        engine: model of this server.
        owned: whether its exit is visible, as for a process that we started; else it only stops answering.
        cache: prefix cache; None without one.
        replica: number of this server among those of the engine; each has random draws of its own.
    """

    def __init__(
        self,
        base_url: str,
        site: Site,
        engine: VirtualEngine,
        *,
        owned: bool,
        cache: PrefixCache | None = None,
        replica: int = 0,
    ) -> None:
        super().__init__(base_url, Access())
        self._site = site
        self._engine = engine
        self._start = site.starts
        self._owned = owned
        self._cache = cache
        self._factor = engine.slowdown * site.start_factor(self._start)
        self._clock = LoopClock()
        path = (self._start, replica) if replica else (self._start,)
        self._service_rng = site.rng("service", *path)
        self._fault_rng = site.rng("fault", *path)
        self._length_rng = site.rng("length", *path)
        self._free_slots = self._engine.slots
        self._queue: deque[Exchange] = deque()
        self._live: dict[StreamLog, Exchange] = {}
        service = self._engine.service
        self._batch = Batch(service, self._close) if isinstance(service, Batched) else None
        self._requests = 0
        self._deaths = [death for death in self._engine.deaths if death.befalls(self._start)]
        self.is_down: bool = False
        for death in self._deaths:
            if death.at_s is not None:
                asyncio.get_running_loop().call_later(death.at_s, self._die, death.exit_status)

    @property
    def has_cache(self) -> bool:
        """Whether it has a prefix cache, and so needs the texts of prompts."""
        return self._cache is not None

    @property
    def dial_s(self) -> float:
        """Seconds to open one connection to it."""
        return self._engine.dial_s

    def receive(self, exchange: Exchange) -> None:
        """Handle a request that arrives now; never calls ``ended`` from within."""
        self._requests += 1
        fault = self._draw_fault()
        if self.is_down or fault is Fault.REFUSED:
            self._refuse_connection(exchange, StreamEnd.REFUSED, "the virtual engine does not listen")
            return
        now_ns = self._clock.now_ns()
        exchange.log.sent_ns = now_ns
        exchange.served = self._served(exchange, fault, now_ns)
        self._site.served.append(exchange.served)
        self._live[exchange.log] = exchange
        if fault is not None and fault in STATUS:
            self._refuse(exchange, fault)
        else:
            if self._cache:
                exchange.room = self._cache.room(exchange.prompt, exchange.served.tokens)
            self._queue.append(exchange)
            self._begin_queued(now_ns)
        for death in self._deaths:
            if death.is_due(self._requests, len(self._live)):
                asyncio.get_running_loop().call_soon(self._die, death.exit_status)

    def drop(self, log: StreamLog) -> None:
        """Drop an exchange for its client: fill its log with what has arrived, without calling ``ended``."""
        exchange = self._live.pop(log, None)
        if exchange is None:
            return
        now_ns = self._clock.now_ns()
        self._note(exchange, now_ns, Ending.DROPPED)
        is_served = exchange.timer is not None or (self._batch is not None and exchange in self._batch)
        if is_served and not self._engine.aborts:
            return  # it is served to its end
        self._halt(exchange)
        if exchange.answer:
            self._free_slot(exchange, now_ns)
        elif self._engine.aborts and exchange in self._queue:
            self._queue.remove(exchange)
            self._begin_queued(now_ns)

    async def ask(
        self,
        method: str,  # noqa: ARG002
        path: str,
        body: object = None,  # noqa: ARG002
        *,
        timeout_s: float = 0.0,  # noqa: ARG002
    ) -> tuple[int, bytes]:
        """Empty the cache if the request is for that; reply to every request with an empty object."""
        if self._cache and "cache" in path:
            self._cache.empty()
        return (0, b"") if self.is_down else (200, b"{}")

    def _draw_fault(self) -> Fault | None:
        if not self._engine.faults:
            return None
        drawn = self._fault_rng.random()
        for fault in Fault:
            drawn -= self._engine.faults.get(fault, 0.0)
            if drawn < 0:
                return fault
        return None

    def _served(self, exchange: Exchange, fault: Fault | None, now_ns: int) -> Served:
        request, engine = exchange.request, self._engine
        tokens = request.tokens
        if engine.own_lengths is not None:
            tokens = max(1, min(tokens, round(engine.own_lengths.draw(self._length_rng))))
        elif engine.short_share > 0 and self._length_rng.random() < engine.short_share:
            tokens = max(1, round(tokens * engine.short_length))
        return Served(
            start=self._start,
            trial=exchange.trial,
            phase=exchange.phase,
            prompt_tokens=request.prompt_tokens,
            asked_tokens=request.tokens,
            tokens=tokens,
            fault=fault,
            arrived_ns=now_ns,
        )

    def _begin_queued(self, now_ns: int) -> None:
        """Begin requests in the order in which they came, as long as there are slots and room in the cache."""
        while self._queue and self._free_slots != 0:
            room = self._queue[0].room
            if self._cache and room and not self._cache.has(room):
                return
            self._begin(self._queue.popleft(), now_ns)

    def _begin(self, exchange: Exchange, now_ns: int) -> None:
        served = exchange.served
        assert served is not None
        if self._free_slots is not None:
            self._free_slots -= 1
        served.begun_ns = now_ns
        if self._cache and exchange.room:
            exchange.use = self._cache.use(exchange.room)
            served.cached_tokens = exchange.request.cached_tokens = exchange.use.full.hit_tokens
        factor = self._factor * self._site.trial_factor(exchange.trial)
        exchange.answer = answer = answer_of(
            exchange.request, served.tokens, served.fault, engine=self._engine, factor=factor, rng=self._service_rng
        )
        if self._batch is not None:
            uncached = exchange.request.prompt_tokens - (served.cached_tokens or 0)
            self._batch.add(exchange, answer, uncached, now_ns, factor, hangs=served.fault in HANGS)
        elif answer.close_ns is not None:
            end_ns = now_ns + answer.close_ns
            loop = asyncio.get_running_loop()
            exchange.timer = loop.call_at(end_ns / NS_PER_S, self._close, exchange, end_ns)

    def _halt(self, exchange: Exchange) -> None:
        """Compute nothing more for an exchange."""
        if exchange.timer:
            exchange.timer.cancel()
        if self._batch is not None:
            self._batch.remove(exchange)

    def _close(self, exchange: Exchange, now_ns: int) -> None:
        """Send the last bytes, and end the exchange."""
        answer, served, log = exchange.answer, exchange.served, exchange.log
        assert answer is not None
        assert served is not None
        self._free_slot(exchange, now_ns)
        if self._live.pop(log, None) is None:  # its client has dropped it
            return
        self._note(exchange, now_ns, Ending.FAULT if served.fault else Ending.COMPLETE)
        if answer.closing and log.read_ns and log.read_ns[-1] == now_ns:
            log.reads[-1] += answer.closing
        elif answer.closing:
            log.status = 200
            log.read_ns.append(now_ns)
            log.reads.append(answer.closing)
        log.end, log.ended_ns = answer.end, now_ns
        log.detail = None if answer.end is StreamEnd.COMPLETE else "the virtual engine reset the connection"
        exchange.ended(log)

    def _refuse(self, exchange: Exchange, fault: Fault) -> None:
        log = exchange.log

        def answer() -> None:
            if self._live.pop(log, None) is None:
                return
            now_ns = self._clock.now_ns()
            log.status, log.read_ns, log.reads = STATUS[fault], [now_ns], [refusal(fault)]
            self._note(exchange, now_ns, Ending.FAULT)
            log.end, log.ended_ns = StreamEnd.COMPLETE, now_ns
            exchange.ended(log)

        asyncio.get_running_loop().call_later(_REFUSAL_S, answer)

    def _refuse_connection(self, exchange: Exchange, end: StreamEnd, detail: str) -> None:
        """End an exchange that never reached the server."""
        log = exchange.log
        self._live[log] = exchange

        def end_exchange() -> None:
            if self._live.pop(log, None) is not None:
                log.end, log.detail, log.ended_ns = end, detail, self._clock.now_ns()
                exchange.ended(log)

        asyncio.get_running_loop().call_soon(end_exchange)

    def _note(self, exchange: Exchange, now_ns: int, ending: Ending) -> None:
        """Record what has been sent by now in ``served`` and in the log."""
        served, answer, log = exchange.served, exchange.answer, exchange.log
        if served is None:
            return
        served.ended_ns, served.ending = now_ns, ending
        if answer is None or served.begun_ns is None:
            return
        times_ns = [due_ns for after_ns in answer.chunk_ns if (due_ns := served.begun_ns + after_ns) <= now_ns]
        if times_ns:
            log.status = 200
        served.chunk_ns, served.chunk_tokens = times_ns, answer.chunk_tokens[: len(times_ns)]
        log.read_ns.extend(times_ns)
        log.reads.extend(chunks_of(exchange.request, served.chunk_tokens, self._engine))

    def _free_slot(self, exchange: Exchange, now_ns: int) -> None:
        """Free the slot and the blocks of an exchange, and begin what was waiting for them."""
        self._release(exchange)
        if self._free_slots is not None:
            self._free_slots += 1
        self._begin_queued(now_ns)

    def _release(self, exchange: Exchange) -> None:
        """Stop using cached blocks."""
        if self._cache and exchange.use:
            self._cache.release(exchange.use)
            exchange.use = None

    def _die(self, exit_status: int) -> None:
        if self.is_down:
            return
        self.is_down = True
        now_ns = self._clock.now_ns()
        self._queue.clear()
        for log, exchange in list(self._live.items()):
            if exchange.served is None:  # its connection is refused
                continue
            del self._live[log]
            self._halt(exchange)
            self._release(exchange)
            self._note(exchange, now_ns, Ending.DIED)
            log.end, log.detail, log.ended_ns = StreamEnd.RESET, "the virtual engine died", now_ns
            exchange.ended(log)
        if self._owned:
            asyncio.get_running_loop().call_later(_NOTICE_S, self._notice, exit_status)

    def _notice(self, exit_status: int) -> None:
        self.exit_status = exit_status
        self.ended.set()

    def crash(self) -> None:
        """Die as a killed process does."""
        self._die(-9)

    def revive(self) -> None:
        """Listen again, with nothing in progress and an empty cache."""
        self.is_down, self._free_slots = False, self._engine.slots
        if self._cache:
            self._cache.empty()

    def stop(self) -> None:
        """Stop the engine: nothing listens from now on."""
        self.is_down = True
