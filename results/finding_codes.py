"""What can be found about a trial: codes, causes and sentences. Code decides on :class:`FindingCode` alone."""

from enum import StrEnum


class Cause(StrEnum):
    """What caused a finding."""

    ENGINE = "engine"
    """Evidence against the engine: it died, failed or fell behind under this load."""
    CLIENT = "client"
    """The load generator was too slow or too imprecise."""
    MACHINE = "machine"
    """Something else on the machine disturbed the trial."""
    EXPERIMENT = "experiment"
    """The experiment asks for something that its trials cannot measure."""
    HARNESS = "harness"
    """A bug of Bakeoff."""


_REQUESTS_FAILED = (
    "{failed_requests} of {measured_requests} requests failed, {outcome_requests} of them as {outcome}: {error}; "
)
_OF_FAULTS = True


class FindingCode(StrEnum):
    """All findings, each declared here alone.

    Attributes:
        cause: what caused it.
        template: of its sentence. Parameters are formatted by the unit suffix of their names; other names are those of
            :data:`bakeoff.results.text.findings.OPTIONS`.
        of_faults: whether it is expected in a trial in which the harness kills, stops or slows a replica.
    """

    cause: Cause
    template: str
    of_faults: bool

    def __new__(cls, code: str, cause: Cause, template: str, of_faults: bool = False) -> "FindingCode":
        """Declare a finding."""
        member = str.__new__(cls, code)
        member._value_, member.cause, member.template, member.of_faults = code, cause, template, of_faults
        return member

    # fmt: off
    # INVALID, most severe first
    ENGINE_DIED = "engine_died", Cause.ENGINE, "the engine died: {detail}; read the end of its log"
    ENGINE_RESTARTED = "engine_restarted", Cause.ENGINE, (
        "the engine was restarted: its counter {counter} fell from {before} to {after}; find out why it ended"
    ), _OF_FAULTS
    ENGINE_STOPPED = "engine_stopped", Cause.MACHINE, (
        "a signal, debugger or full terminal stopped {stopped_processes} of {processes} engine processes for "
        "{stopped_s}; let nothing stop them, and repeat"
    ), _OF_FAULTS
    FAULT_FAILED = "fault_failed", Cause.EXPERIMENT, (
        "the fault {fault} was not carried out: {error}; see its log, or correct [[faults]]"
    )
    REQUESTS_LOST = "requests_lost", Cause.HARNESS, (
        "{planned_requests} requests were planned and {logged_requests} were logged; report this bug of Bakeoff"
    )
    IMPOSSIBLE_TIMES = "impossible_times", Cause.HARNESS, (
        "{odd_requests} requests have tokens from before they were planned or sent, or in the wrong order; report "
        "this bug of Bakeoff, or of the tool that the file is from"
    )
    FAILED_REQUESTS = "failed_requests", Cause.ENGINE, _REQUESTS_FAILED + "lower the load or read the engine's log"
    NOT_FOUND = "not_found", Cause.ENGINE, _REQUESTS_FAILED + (
        "correct the model's name (served_model_name or name in [model], --model of bench) or the url, or send a "
        "workload whose endpoint the server has"
    )
    """Like ``FAILED_REQUESTS``, where the server answered HTTP 404 or 405: it knows no such model, or no such path."""
    NOT_AUTHORISED = "not_authorised", Cause.EXPERIMENT, _REQUESTS_FAILED + (
        "put a valid key into an environment variable and name it in api_key_env (--api-key-env of bench)"
    )
    """The same for HTTP 401, 402 and 403: the server wants a key, or another one."""
    REDIRECTED = "redirected", Cause.EXPERIMENT, _REQUESTS_FAILED + (
        "give the address to which the server redirects as url (--url of bench)"
    )
    """The same for redirects, which no request follows."""
    REQUEST_REFUSED = "request_refused", Cause.ENGINE, _REQUESTS_FAILED + (
        "change what requests carry (request in the experiment; --temperature or --extra-body of bench), or their "
        "lengths"
    )
    """Like ``FAILED_REQUESTS``, where the server answered HTTP 400, 413 or 422: it does not take such requests."""
    RATE_LIMITED = "rate_limited", Cause.ENGINE, _REQUESTS_FAILED + (
        "raise the limit of the server or account, or keep the load below it"
    )
    """The same for HTTP 429: the server or the account limits what it takes."""
    RAMP_FAILED = "ramp_failed", Cause.ENGINE, (
        "the load was ended in its ramp, because every request failed: {failed_requests} of {measured_requests}, "
        "{outcome_requests} of them as {outcome}: {error}; read the engine's log"
    )
    TOKENS_MISCOUNTED = "tokens_miscounted", Cause.ENGINE, (
        "the server's counts of {miscounted_requests} of {ok_requests} answers contradict what it sends, and nothing "
        "else counts them (the first: {claimed_tokens} tokens in {chunks} chunks of {text_bytes} bytes of text, and "
        "{asked_tokens} were requested); let the engine count what it sends, or give the model's tokenizer"
    )
    SATURATED = "saturated", Cause.ENGINE, (
        "the engine falls behind the arrivals: {first_in_flight} requests were in flight in the first tenth of the "
        "window and {last_in_flight} in the last; lower rate_per_s, or raise {ramp} if the load was still building up"
    ), _OF_FAULTS
    """Open loop: the engine completed less work than was offered, beyond its noise."""
    HELD_BACK = "held_back", Cause.EXPERIMENT, (
        "max_in_flight held {held_share} of the requests back, half of these for more than {held_s}, so the engine "
        "was never offered {rate_per_s} requests/s; raise max_in_flight or lower rate_per_s"
    )
    """Open loop: ``max_in_flight`` held back more and more of it, so that the engine was not offered the load."""
    NOT_STEADY = "not_steady", Cause.EXPERIMENT, (
        "throughput changed by {change_share} across the window; raise {duration}"
    )
    """A trend across the window, in runs of earlier versions."""
    BECAME_SLOWER = "became_slower", Cause.ENGINE, (
        "the engine became slower {at_s} into the window: the median of {latency} rose from {before_s} to {after_s}, "
        "so no figure describes either state; find out what filled up, throttled or began then, and repeat"
    ), _OF_FAULTS
    BECAME_FASTER = "became_faster", Cause.MACHINE, (
        "the engine became faster {at_s} into the window: the median of {latency} fell from {before_s} to {after_s}, "
        "so no figure describes either state; let it warm up first (or raise {ramp}), and let nothing else use it"
    ), _OF_FAULTS
    TURN_MIX = "turn_mix", Cause.EXPERIMENT, (
        "the mean turn of the window's requests is {window_turn} and that of the load in the long run "
        "{workload_turn}, so the window shows another load; raise {ramp} and {duration}"
    )
    """Multi-turn sessions: the mix of turns in the window differs from that of the long run."""
    LENGTH_MIX = "length_mix", Cause.EXPERIMENT, (
        "the window's requests ask for {window_tokens} tokens on average and those of the load in the long run for "
        "{workload_tokens}, so the window shows another load; raise {duration}"
    )
    """Closed loop: the requested lengths in the window differ from those of the long run."""
    WINDOW_TOO_SHORT = "window_too_short", Cause.EXPERIMENT, (
        "the window is {window_s} long and must be {needed_window_s} or more; raise trial.max_window_s or "
        "trial.max_requests, or give the workload more requests"
    )
    WINDOW_EMPTY = "window_empty", Cause.EXPERIMENT, (
        "no request began inside the window of {window_s}; raise {duration}, or the load"
    )
    SESSIONS_CUT = "sessions_cut", Cause.MACHINE, (
        "writing the window's prompts took so long that sessions in progress may have ended early in its last "
        "{unwritten_s}; repeat, on a machine whose cores are neither throttled nor shared"
    )
    """Sessions in progress may have ended early in the window, because they were written for a shorter load."""
    CLIENT_LOST = "client_lost", Cause.MACHINE, (
        "{detail}; find out what killed or stopped it (the machine may be out of memory), and repeat"
    )
    FEWER_WORKERS = "fewer_workers", Cause.MACHINE, (
        "{lost_workers} of {planned_workers} workers of the client were lost in an earlier trial, and the others sent "
        "their share; repeat with all machines if trials of this run are compared"
    )
    """Workers that were lost before and not replaced, so the others had their share."""
    CLIENT_LATE = "client_late", Cause.CLIENT, (
        "the client sent {late_share} of the requests more than {send_lag_s} late; add {workers}"
    )
    CLIENT_OFF_RATE = "client_off_rate", Cause.CLIENT, (
        "the client sent requests at {rate_share} of the planned rate; add {workers}"
    )
    CLIENT_STALLED = "client_stalled", Cause.CLIENT, (
        "the client's event loop was {loop_lag_s} late, more than {max_loop_lag_s}; give the client a core of its own "
        "(client.cores, on Linux) or add {workers}"
    )
    """A worker's event loop was late because of its own work, or for an unknown reason."""
    CLIENT_PAUSED = "client_paused", Cause.MACHINE, (
        "the machine paused the client: its event loop was {loop_lag_s} late, more than {max_loop_lag_s}, and idle in "
        "{idle_share} of its pauses; repeat, on a machine whose cores are neither throttled nor shared"
    )
    CLIENT_ERROR = "client_error", Cause.CLIENT, (
        "the client's error in {latency} is {error_s}, more than {max_error_share} of the typical {typical_s}, and it "
        "was busy in {busy_share} of its calibration; give it a core of its own (client.cores, on Linux) or add "
        "{workers}"
    )
    CACHE_NOT_COLD = "cache_not_cold", Cause.EXPERIMENT, (
        "{cached_tokens} of {prompt_tokens} prompt tokens came from the prefix cache, but the trial repeats at most "
        "{repeated_tokens} of its own; restart the engine, or change {seed}"
    )
    SAMPLER_LOST = "sampler_lost", Cause.MACHINE, (
        "the machine was sampled in only {sampled_share} of the window, so foreign load and faults of GPUs may have "
        "gone unseen; find out what stopped or killed Bakeoff's sampler (the machine may be out of memory), and repeat"
    )
    XID = "xid", Cause.MACHINE, (
        "the driver reported XID {xid} of {gpu}; read the kernel's and the engine's log, and repeat"
    )
    """The driver reported an error of a GPU, by its number; a warning if it only cleaned up after a program."""
    PROGRAM_XID = "program_xid", Cause.ENGINE, (
        "the driver reported XID {xid} of {gpu}, which programs cause; read the engine's log, and let nothing else "
        "use the GPU"
    )
    """Like ``XID``, for an error that programs cause, such as an illegal address."""
    ECC_UNCORRECTED = "ecc_uncorrected", Cause.MACHINE, (
        "{gpu} had {errors} memory errors that could not be corrected, so answers may be wrong; reset it and repeat"
    )
    THROTTLED = "throttled", Cause.MACHINE, (
        "{gpu} lowered its clocks for heat or a power brake for {held_s}; cool it and repeat"
    )
    FOREIGN_LOAD = "foreign_load", Cause.MACHINE, (
        "other processes used {foreign_share} of the machine, {foreign_cores} cores, more than {max_foreign_share}; "
        "end them and repeat"
    )

    # Warnings
    RAMP_FAILURES = "ramp_failures", Cause.ENGINE, (
        "{failed_requests} of {ramp_requests} requests failed in the ramp, the first as {outcome}: {error}; wait "
        "until the server is ready, or raise {ramp}"
    )
    """Requests failed in the ramp, a larger share than the window may have."""
    OUTPUT_LENGTH = "output_length", Cause.ENGINE, (
        "{wrong_requests} of {ok_requests} answers are not as long as asked (the first has {output_tokens} instead of "
        "{asked_tokens} tokens); make the engine honour the length"
    )
    INPUT_LENGTH = "input_length", Cause.EXPERIMENT, (
        "the engine counted {engine_tokens} prompt tokens where {planned_tokens} were planned, in {wrong_requests} of "
        "{ok_requests} requests; give the model's own tokenizer, with its chat template"
    )
    PROMPT_LENGTH = "prompt_length", Cause.EXPERIMENT, (
        "{wrong_requests} of {planned_requests} planned prompts are not as long as the workload says (the first: "
        "{example}); choose lengths that the tokenizer can make"
    )
    TOKENS_APPORTIONED = "tokens_apportioned", Cause.ENGINE, (
        "{apportioned_requests} of {ok_requests} answers tell only their total of tokens, so their ITL and, by the "
        "first chunk, their TPOT rest on a guess of the tokens in each chunk; let the engine return token ids"
    )
    TOKENS_UNPLACED = "tokens_unplaced", Cause.ENGINE, (
        "{unplaced_requests} of {ok_requests} answers count tokens that are not in their text, more than those in it "
        "or of hidden reasoning, so they have no ITL and no TPOT, and tokens/s count what was not streamed; let the "
        "engine stream all tokens, those of its reasoning included"
    )
    TOKENS_CONTRADICTED = "tokens_contradicted", Cause.ENGINE, (
        "the server's {claim} contradict the rest of {contradicted_requests} of {ok_requests} answers and are not "
        "used (the first has {used_tokens} tokens by {source}; its usage says {claimed_tokens}); let it count what it "
        "sends"
    )
    BEHIND_END = "behind_end", Cause.ENGINE, (
        "{behind_requests} of {ok_requests} answers go on behind their end mark, with {behind_events} events of "
        "tokens that are not counted; find out whether a proxy sends a second answer"
    )
    BLANK_BEGINNING = "blank_beginning", Cause.ENGINE, (
        "{blank_requests} of {ok_requests} answers begin with chunks of white space or characters without width, and "
        "the first character that anybody sees comes {blank_s} (median) after the TTFT; read it so"
    )
    RESENT = "resent", Cause.ENGINE, (
        "{resent_requests} of {measured_requests} requests were sent twice, since the server ended a used connection "
        "without a byte of an answer, where a client that does not try again sees a failure; their times count from "
        "the plan; let the server keep connections, or announce the close"
    )
    HIDDEN_REASONING = "hidden_reasoning", Cause.ENGINE, (
        "{hidden_requests} of {ok_requests} answers have reasoning that was not streamed, {hidden_tokens} tokens on "
        "average: it is part of TTFT, and of no other figure but the hidden tokens; compare TTFT accordingly"
    )
    THINKING_IN_TEXT = "thinking_in_text", Cause.EXPERIMENT, (
        "{thinking_requests} of {ok_requests} answers have thinking in their text, so it counts as visible; start the "
        "server with its reasoning parser"
    )
    NOTHING_VISIBLE = "nothing_visible", Cause.EXPERIMENT, (
        "{invisible_requests} of {ok_requests} answers end while the model is still reasoning; request longer "
        "answers, or less reasoning (request in the experiment, --reasoning-effort of bench)"
    )
    ANSWERS_CUT = "answers_cut", Cause.EXPERIMENT, (
        "the server cut {cut_requests} of {ok_requests} answers (finish reason {reason}), so they are shorter than "
        "the model would have made them; switch its filter off, or send other prompts"
    )
    """The server ended answers early, as content filters do."""
    LEFT_OPEN = "left_open", Cause.ENGINE, (
        "{open_requests} of {ok_requests} responses stayed open behind their last event, for {open_s} (median), for "
        "which a closed loop waits; let the server or its proxy end them sooner"
    )
    TOKENS_ASSUMED = "tokens_assumed", Cause.ENGINE, (
        "{assumed_requests} of {ok_requests} answers do not say how many tokens their chunks hold, so one token per "
        "chunk is assumed, on which ITL, TPOT, output and normalised latency rest; let the engine return usage or "
        "token ids"
    )
    TOKENS_ESTIMATED = "tokens_estimated", Cause.ENGINE, (
        "{estimated_requests} of {ok_requests} answers do not say how many tokens they have, so output and the pace "
        "of tokens are estimated from their text; let the engine return usage, or give the model's tokenizer"
    )
    """Answers that came as a whole do not say how many tokens they have."""
    BUFFERED = "buffered", Cause.ENGINE, (
        "{buffered_requests} of {ok_requests} answers arrived in one piece, so their TTFT is the time of the whole "
        "answer and they have no ITL; switch off the buffering of the proxy before the engine"
    )
    CACHE_UNKNOWN = "cache_unknown", Cause.ENGINE, (
        "the prefix cache was to be {cache}, but the engine does not say what it hit; compare with a cold trial"
    )
    CACHE_UNUSED = "cache_unused", Cause.ENGINE, (
        "the prefix cache was to be {cache}, but only {cached_tokens} of {prompt_tokens} prompt tokens came from it; "
        "switch it on or enlarge it"
    )
    UNCALIBRATED_PACE = "uncalibrated_pace", Cause.CLIENT, (
        "the client's error was measured at {calibrated_chunks_per_s} chunks/s and the trial had "
        "{trial_chunks_per_s}; read its ± as a lower bound"
    )
    SEVERAL_SERVERS = "several_servers", Cause.EXPERIMENT, (
        "several servers answer in turn where the engine's metrics are read ({counter} fell from {before} to {after} "
        "and rose again); measure one of them, or give the address of each (urls; --url of bench)"
    ), _OF_FAULTS
    ADDRESS_SLOW = "address_slow", Cause.ENGINE, (
        "{address} answers more slowly than the other addresses: its {latency} is {slower_share} longer for like "
        "requests; check its load, its settings and its machine"
    ), _OF_FAULTS
    ADDRESS_IMBALANCE = "address_imbalance", Cause.ENGINE, (
        "{address} got {tokens_share} of the tokens, {tokens}, where an equal share is {equal_share}; change how "
        "requests are divided (balance, or the router's settings)"
    ), _OF_FAULTS
    ADDRESS_CACHE = "address_cache", Cause.ENGINE, (
        "{address} found {hit_share} of its prompt tokens in its prefix cache and the other addresses {others_share}; "
        "check its cache, or keep conversations together (balance = 'by-session')"
    ), _OF_FAULTS
    REPLICA_UNNAMED = "replica_unnamed", Cause.EXPERIMENT, (
        "{unnamed} of {answered} answers have no header {header}, so that their replica is not known; name the header "
        "that the router sends (replica_header), or leave it out"
    )
    COUNTERS_DISAGREE = "counters_disagree", Cause.ENGINE, (
        "the engine counted {engine_tokens} output tokens under this load and the client {client_tokens}; make sure "
        "no other client uses the engine, and check how many tokens its chunks carry"
    ), _OF_FAULTS
    PLAN_ENDED_EARLY = "plan_ended_early", Cause.EXPERIMENT, (
        "the plan had requests for {planned_s} of {needed_window_s}, so the window is shorter; raise "
        "trial.max_requests if it is set and trial.ramp_s if not, or give the workload more requests"
    )
    BACKLOG_GREW = "backlog_grew", Cause.EXPERIMENT, (
        "{first_in_flight} requests were in flight in the first tenth of the window and {last_in_flight} in the last, "
        "more than the arrivals explain: the engine may be falling behind; raise {ramp} and {duration} to tell"
    ), _OF_FAULTS
    """Open loop: more requests were in flight at the end than the arrivals explain, and the engine shows no queue."""
    CAPACITY_UNCLEAR = "capacity_unclear", Cause.EXPERIMENT, (
        "requests queued at about {utilisation} times the engine's capacity, and {planned_requests} requests are too "
        "few to tell whether the queue stays bounded, so latencies depend on the length of the window; a verdict "
        "needs about {needed_requests} requests: raise {duration}"
    ), _OF_FAULTS
    """Open loop: requests queue, and too few were sent to tell whether the load is within the engine's capacity."""
    MEMORY_GROWS = "memory_grows", Cause.ENGINE, (
        "the memory of {source} grew by {grown_mib} MiB, {growth_share}, through the window, and still grew in its "
        "second half; measure longer, to tell a leak from a cache that fills"
    ), _OF_FAULTS
    LATENCY_DRIFTS = "latency_drifts", Cause.ENGINE, (
        "{latency} {direction} by {change_share} through the window; its figures are those of no one time, so see "
        "Latency over time, and measure longer"
    ), _OF_FAULTS
    ENGINE_FROZE = "engine_froze", Cause.ENGINE, (
        "no answer advanced for {silent_s}, {window_share} of the window, with {in_flight} requests in flight, and "
        "usual silences last {usual_s}; read the engine's log of that time"
    ), _OF_FAULTS
    DRAIN_IN_RATES = "drain_in_rates", Cause.EXPERIMENT, (
        "the engine worked for {drain_s} of {window_s} after the last request was planned, and rates are over all of "
        "that time; compare them only with runs of the same load, or send a longer one"
    )
    """Varying load: a fair part of the makespan, over which rates are taken, came after the last planned request."""
    WINDOW_SHORT_FOR_QUEUE = "window_short_for_queue", Cause.EXPERIMENT, (
        "at this load the requests in flight change so slowly that {window_s} show only a part of their course, and "
        "latencies of another window may be several times as long; raise {duration} to {needed_window_s}"
    ), _OF_FAULTS
    """Open loop: the requests in flight change so slowly that latencies of the window are a matter of luck."""
    SOME_FOREIGN_LOAD = "some_foreign_load", Cause.MACHINE, (
        "other processes used {foreign_share} of the machine, {foreign_cores} cores; end them to be sure (above "
        "{max_foreign_share} the trial is INVALID)"
    )
    POWER_CAPPED = "power_capped", Cause.MACHINE, (
        "{gpu} was at its power limit for {capped_share} of the window ({power_basis}); compare only runs under the "
        "same limit"
    )
    """A GPU was at its power limit: a warning if for most of the window, else a note."""
    EXPORTER_UNREAD = "exporter_unread", Cause.EXPERIMENT, (
        "the page of {exporter} could not be read (times: {failures}), so figures of its GPUs are missing: {reason}; "
        "correct exporters, or start it"
    )
    ENERGY_SOURCES_DISAGREE = "energy_sources_disagree", Cause.MACHINE, (
        "{gpu} used {nvml_j} J by NVML and {exporter_j} J by its exporter; trust neither before you know why"
    )
    HARDWARE_SLOWDOWN = "hardware_slowdown", Cause.MACHINE, (
        "the hardware of {gpu} lowered its clocks in {slowed_share} of the samples; check its cooling and power supply"
    )
    """A GPU's hardware lowered its clocks: a warning if for most of the window, else a note."""
    IMPORTED = "imported", Cause.CLIENT, (
        "{tool} measured this trial; its client's error is unknown, and nothing was sampled"
    )
    """Measured by another tool, which stored neither its client's error nor telemetry."""

    # Notes
    ECC_UNCORRECTED_OF_CHIP = "ecc_uncorrected_of_chip", Cause.MACHINE, (
        "{errors} memory errors could not be corrected on the chip of {gpu}, in this or another MIG slice; reset it "
        "when no slice is in use"
    )
    """Like `ECC_UNCORRECTED`, for a chip with several MIG slices; one in the engine's own slice comes with an XID."""
    ECC_CORRECTED = "ecc_corrected", Cause.MACHINE, (
        "{gpu} corrected {errors} memory errors during the trial; watch whether more come"
    )
    MEMORY_REPAIR_PENDING = "memory_repair_pending", Cause.MACHINE, (
        "{gpu} replaces faulty memory at its next reset; reset it before the next run"
    )
    # fmt: on
