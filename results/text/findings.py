"""Findings as sentences: what happened, then what to do. The only module that words them."""

from collections.abc import Iterable

from bakeoff.results.findings import Finding, FindingCode, Parameter, Severity
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.metrics.objectives import Violation
from bakeoff.results.records import TrialRecord
from bakeoff.results.text.codes import WORDS, XIDS
from bakeoff.results.text.format import share_text, value_text

_REQUESTS_FAILED = (
    "{failed_requests} of {measured_requests} requests failed, {outcome_requests} of them as {outcome}: {error}; "
)
SENTENCES: dict[FindingCode, str] = {
    FindingCode.ENGINE_DIED: "the engine died: {detail}; read the end of its log",
    FindingCode.ENGINE_RESTARTED: (
        "the engine was restarted: its counter {counter} fell from {before} to {after}; find out why it ended"
    ),
    FindingCode.ENGINE_STOPPED: (
        "a signal, debugger or full terminal stopped {stopped_processes} of {processes} engine processes for "
        "{stopped_s}; let nothing stop them, and repeat"
    ),
    FindingCode.FAULT_FAILED: "the fault {fault} was not carried out: {error}; see its log, or correct [[faults]]",
    FindingCode.REQUESTS_LOST: (
        "{planned_requests} requests were planned and {logged_requests} were logged; report this bug of Bakeoff"
    ),
    FindingCode.IMPOSSIBLE_TIMES: (
        "{odd_requests} requests have tokens from before they were planned or sent, or in the wrong order; report this "
        "bug of Bakeoff, or of the tool that the file is from"
    ),
    FindingCode.FAILED_REQUESTS: _REQUESTS_FAILED + "lower the load or read the engine's log",
    FindingCode.NOT_FOUND: (
        _REQUESTS_FAILED
        + "correct the model's name (served_model_name or name in [model], --model of bench) or the url, or send a "
        "workload whose endpoint the server has"
    ),
    FindingCode.NOT_AUTHORISED: (
        _REQUESTS_FAILED
        + "put a valid key into an environment variable and name it in api_key_env (--api-key-env of bench)"
    ),
    FindingCode.REDIRECTED: (
        _REQUESTS_FAILED + "give the address to which the server redirects as url (--url of bench)"
    ),
    FindingCode.REQUEST_REFUSED: (
        _REQUESTS_FAILED
        + "change what requests carry (request in the experiment; --temperature or --extra-body of bench), or their "
        "lengths"
    ),
    FindingCode.RATE_LIMITED: (
        _REQUESTS_FAILED + "raise the limit of the server or account, or keep the load below it"
    ),
    FindingCode.RAMP_FAILED: (
        "the load was ended in its ramp, because every request failed: {failed_requests} of {measured_requests}, "
        "{outcome_requests} of them as {outcome}: {error}; read the engine's log"
    ),
    FindingCode.RAMP_FAILURES: (
        "{failed_requests} of {ramp_requests} requests failed in the ramp, the first as {outcome}: {error}; wait until "
        "the server is ready, or raise {ramp}"
    ),
    FindingCode.TOKENS_MISCOUNTED: (
        "the server's counts of {miscounted_requests} of {ok_requests} answers contradict what it sends, and nothing "
        "else counts them (the first: {claimed_tokens} tokens in {chunks} chunks of {text_bytes} bytes of text, and "
        "{asked_tokens} were requested); let the engine count what it sends, or give the model's tokenizer"
    ),
    FindingCode.SATURATED: (
        "the engine falls behind the arrivals: {first_in_flight} requests were in flight in the first tenth of the "
        "window and {last_in_flight} in the last; lower rate_per_s, or raise {ramp} if the load was still "
        "building up"
    ),
    FindingCode.HELD_BACK: (
        "max_in_flight held {held_share} of the requests back, half of these for more than {held_s}, so the engine was "
        "never offered {rate_per_s} requests/s; raise max_in_flight or lower rate_per_s"
    ),
    FindingCode.NOT_STEADY: "throughput changed by {change_share} across the window; raise {duration}",
    FindingCode.BECAME_SLOWER: (
        "the engine became slower {at_s} into the window: the median of {latency} rose from {before_s} to {after_s}, "
        "so no figure describes either state; find out what filled up, throttled or began then, and repeat"
    ),
    FindingCode.BECAME_FASTER: (
        "the engine became faster {at_s} into the window: the median of {latency} fell from {before_s} to {after_s}, "
        "so no figure describes either state; let it warm up first (or raise {ramp}), and let nothing else use it"
    ),
    FindingCode.WINDOW_TOO_SHORT: (
        "the window is {window_s} long and must be {needed_window_s} or more; raise trial.max_window_s or "
        "trial.max_requests, or give the workload more requests"
    ),
    FindingCode.WINDOW_EMPTY: ("no request began inside the window of {window_s}; raise {duration}, or the load"),
    FindingCode.SESSIONS_CUT: (
        "writing the window's prompts took so long that sessions in progress may have ended early in its last "
        "{unwritten_s}; repeat, on a machine whose cores are neither throttled nor shared"
    ),
    FindingCode.CLIENT_LOST: (
        "{detail}; find out what killed or stopped it (the machine may be out of memory), and repeat"
    ),
    FindingCode.FEWER_WORKERS: (
        "{lost_workers} of {planned_workers} workers of the client were lost in an earlier trial, and the others sent "
        "their share; repeat with all machines if trials of this run are compared"
    ),
    FindingCode.CLIENT_LATE: (
        "the client sent {late_share} of the requests more than {send_lag_s} late; add {workers}"
    ),
    FindingCode.CLIENT_OFF_RATE: "the client sent requests at {rate_share} of the planned rate; add {workers}",
    FindingCode.CLIENT_STALLED: (
        "the client's event loop was {loop_lag_s} late, more than {max_loop_lag_s}; "
        "give the client a core of its own (client.cores) or add {workers}"
    ),
    FindingCode.CLIENT_PAUSED: (
        "the machine paused the client: its event loop was {loop_lag_s} late, more than {max_loop_lag_s}, and idle in "
        "{idle_share} of its pauses; repeat, on a machine whose cores are neither throttled nor shared"
    ),
    FindingCode.CLIENT_ERROR: (
        "the client's error in {latency} is {error_s}, more than {max_error_share} of the typical {typical_s}, and it "
        "was busy in {busy_share} of its calibration; give it a core of its own (client.cores) or add {workers}"
    ),
    FindingCode.CACHE_NOT_COLD: (
        "{cached_tokens} of {prompt_tokens} prompt tokens came from the prefix cache, but the trial repeats at most "
        "{repeated_tokens} of its own; restart the engine, or change {seed}"
    ),
    FindingCode.SAMPLER_LOST: (
        "the machine was sampled in only {sampled_share} of the window, so foreign load and faults of GPUs may have "
        "gone unseen; find out what stopped or killed Bakeoff's sampler (the machine may be out of memory), and repeat"
    ),
    FindingCode.XID: ("the driver reported XID {xid} of {gpu}; read the kernel's and the engine's log, and repeat"),
    FindingCode.PROGRAM_XID: (
        "the driver reported XID {xid} of {gpu}, which programs cause; read the engine's log, and let nothing else "
        "use the GPU"
    ),
    FindingCode.ECC_UNCORRECTED: (
        "{gpu} had {errors} memory errors that could not be corrected, so answers may be wrong; reset it and repeat"
    ),
    FindingCode.THROTTLED: "{gpu} lowered its clocks for heat or a power brake for {held_s}; cool it and repeat",
    FindingCode.FOREIGN_LOAD: (
        "other processes used {foreign_share} of the machine, {foreign_cores} cores, more than {max_foreign_share}; "
        "end them and repeat"
    ),
    FindingCode.OUTPUT_LENGTH: (
        "{wrong_requests} of {ok_requests} answers are not as long as asked (the first has {output_tokens} instead of "
        "{asked_tokens} tokens); make the engine honour the length"
    ),
    FindingCode.INPUT_LENGTH: (
        "the engine counted {engine_tokens} prompt tokens where {planned_tokens} were planned, in {wrong_requests} of "
        "{ok_requests} requests; give the model's own tokenizer, with its chat template"
    ),
    FindingCode.PROMPT_LENGTH: (
        "{wrong_requests} of {planned_requests} planned prompts are not as long as the workload says (the first: "
        "{example}); choose lengths that the tokenizer can make"
    ),
    FindingCode.TOKENS_APPORTIONED: (
        "{apportioned_requests} of {ok_requests} answers tell only their total of tokens, so their ITL and, by the "
        "first chunk, their TPOT rest on a guess of the tokens in each chunk; let the engine return token ids"
    ),
    FindingCode.TOKENS_UNPLACED: (
        "{unplaced_requests} of {ok_requests} answers count tokens that are not in their text, more than those in it "
        "or of hidden reasoning, so they have no ITL and no TPOT, and tokens/s count what was not streamed; let the "
        "engine stream all tokens, those of its reasoning included"
    ),
    FindingCode.TOKENS_CONTRADICTED: (
        "the server's {claim} contradict the rest of {contradicted_requests} of {ok_requests} answers and are not used "
        "(the first has {used_tokens} tokens by {source}; its usage says {claimed_tokens}); let it count what it sends"
    ),
    FindingCode.BEHIND_END: (
        "{behind_requests} of {ok_requests} answers go on behind their end mark, with {behind_events} events of tokens "
        "that are not counted; find out whether a proxy sends a second answer"
    ),
    FindingCode.BLANK_BEGINNING: (
        "{blank_requests} of {ok_requests} answers begin with chunks of white space or characters without width, and "
        "the first character that anybody sees comes {blank_s} (median) after the TTFT; read it so"
    ),
    FindingCode.BUFFERED: (
        "{buffered_requests} of {ok_requests} answers arrived in one piece, so their TTFT is the time of the whole "
        "answer and they have no ITL; switch off the buffering of the proxy before the engine"
    ),
    FindingCode.RESENT: (
        "{resent_requests} of {measured_requests} requests were sent twice, since the server ended a used connection "
        "without a byte of an answer, where a client that does not try again sees a failure; their times count from "
        "the plan; let the server keep connections, or announce the close"
    ),
    FindingCode.HIDDEN_REASONING: (
        "{hidden_requests} of {ok_requests} answers have reasoning that was not streamed, {hidden_tokens} tokens on "
        "average: it is part of TTFT, and of no other figure but the hidden tokens; compare TTFT accordingly"
    ),
    FindingCode.THINKING_IN_TEXT: (
        "{thinking_requests} of {ok_requests} answers have thinking in their text, so it counts as visible; start the "
        "server with its reasoning parser"
    ),
    FindingCode.NOTHING_VISIBLE: (
        "{invisible_requests} of {ok_requests} answers end while the model is still reasoning; request longer answers, "
        "or less reasoning (request in the experiment, --reasoning-effort of bench)"
    ),
    FindingCode.ANSWERS_CUT: (
        "the server cut {cut_requests} of {ok_requests} answers (finish reason {reason}), so they are shorter than the "
        "model would have made them; switch its filter off, or send other prompts"
    ),
    FindingCode.LEFT_OPEN: (
        "{open_requests} of {ok_requests} responses stayed open behind their last event, for {open_s} (median), for "
        "which a closed loop waits; let the server or its proxy end them sooner"
    ),
    FindingCode.TOKENS_ASSUMED: (
        "{assumed_requests} of {ok_requests} answers do not say how many tokens their chunks hold, so one token per "
        "chunk is assumed, on which ITL, TPOT, output and normalised latency rest; let the engine return usage or "
        "token ids"
    ),
    FindingCode.TOKENS_ESTIMATED: (
        "{estimated_requests} of {ok_requests} answers do not say how many tokens they have, so output and the pace of "
        "tokens are estimated from their text; let the engine return usage, or give the model's tokenizer"
    ),
    FindingCode.CACHE_UNKNOWN: (
        "the prefix cache was to be {cache}, but the engine does not say what it hit; compare with a cold trial"
    ),
    FindingCode.CACHE_UNUSED: (
        "the prefix cache was to be {cache}, but only {cached_tokens} of {prompt_tokens} prompt tokens came from it; "
        "switch it on or enlarge it"
    ),
    FindingCode.UNCALIBRATED_PACE: (
        "the client's error was measured at {calibrated_chunks_per_s} chunks/s and the trial had "
        "{trial_chunks_per_s}; read its ± as a lower bound"
    ),
    FindingCode.SEVERAL_SERVERS: (
        "several servers answer in turn where the engine's metrics are read ({counter} fell from {before} to {after} "
        "and rose again); measure one of them, or give the address of each (urls; --url of bench)"
    ),
    FindingCode.ADDRESS_SLOW: (
        "{address} answers more slowly than the other addresses: its {latency} is {slower_share} longer for like "
        "requests; check its load, its settings and its machine"
    ),
    FindingCode.ADDRESS_IMBALANCE: (
        "{address} got {tokens_share} of the tokens, {tokens}, where an equal share is {equal_share}; change how "
        "requests are divided (balance, or the router's settings)"
    ),
    FindingCode.ADDRESS_CACHE: (
        "{address} found {hit_share} of its prompt tokens in its prefix cache and the other addresses {others_share}; "
        "check its cache, or keep conversations together (balance = 'by-session')"
    ),
    FindingCode.REPLICA_UNNAMED: (
        "{unnamed} of {answered} answers have no header {header}, so that their replica is not known; name the header "
        "that the router sends (replica_header), or leave it out"
    ),
    FindingCode.COUNTERS_DISAGREE: (
        "the engine counted {engine_tokens} output tokens under this load and the client {client_tokens}; "
        "make sure no other client uses the engine, and check how many tokens its chunks carry"
    ),
    FindingCode.BACKLOG_GREW: (
        "{first_in_flight} requests were in flight in the first tenth of the window and {last_in_flight} in the last, "
        "more than the arrivals explain: the engine may be falling behind; raise {ramp} and {duration} to "
        "tell"
    ),
    FindingCode.CAPACITY_UNCLEAR: (
        "requests queued at about {utilisation} times the engine's capacity, and {planned_requests} requests are too "
        "few to tell whether the queue stays bounded, so latencies depend on the length of the window; a verdict needs "
        "about {needed_requests} requests: raise {duration}"
    ),
    FindingCode.PLAN_ENDED_EARLY: (
        "the plan had requests for {planned_s} of {needed_window_s}, so the window is shorter; raise "
        "trial.max_requests if it is set and trial.ramp_s if not, or give the workload more requests"
    ),
    FindingCode.TURN_MIX: (
        "the mean turn of the window's requests is {window_turn} and that of the load in the long run {workload_turn}, "
        "so the window shows another load; raise {ramp} and {duration}"
    ),
    FindingCode.LENGTH_MIX: (
        "the window's requests ask for {window_tokens} tokens on average and those of the load in the long run for "
        "{workload_tokens}, so the window shows another load; raise {duration}"
    ),
    FindingCode.ENGINE_FROZE: (
        "no answer advanced for {silent_s}, {window_share} of the window, with {in_flight} requests in flight, and "
        "usual silences last {usual_s}; read the engine's log of that time"
    ),
    FindingCode.MEMORY_GROWS: (
        "the memory of {source} grew by {grown_mib} MiB, {growth_share}, through the window, and still grew in its "
        "second half; measure longer, to tell a leak from a cache that fills"
    ),
    FindingCode.LATENCY_DRIFTS: (
        "{latency} {direction} by {change_share} through the window; its figures are those of no one time, so see "
        "Latency over time, and measure longer"
    ),
    FindingCode.DRAIN_IN_RATES: (
        "the engine worked for {drain_s} of {window_s} after the last request was planned, and rates are over all of "
        "that time; compare them only with runs of the same load, or send a longer one"
    ),
    FindingCode.WINDOW_SHORT_FOR_QUEUE: (
        "at this load the requests in flight change so slowly that {window_s} show only a part of their course, and "
        "latencies of another window may be several times as long; raise {duration} to {needed_window_s}"
    ),
    FindingCode.SOME_FOREIGN_LOAD: (
        "other processes used {foreign_share} of the machine, {foreign_cores} cores; end them to be sure (above "
        "{max_foreign_share} the trial is INVALID)"
    ),
    FindingCode.POWER_CAPPED: (
        "{gpu} was at its power limit for {capped_share} of the window ({power_basis}); compare only runs under the "
        "same limit"
    ),
    FindingCode.EXPORTER_UNREAD: (
        "the page of {exporter} could not be read (times: {failures}), so figures of its GPUs are missing: {reason}; "
        "correct exporters, or start it"
    ),
    FindingCode.ENERGY_SOURCES_DISAGREE: (
        "{gpu} used {nvml_j} J by NVML and {exporter_j} J by its exporter; trust neither before you know why"
    ),
    FindingCode.HARDWARE_SLOWDOWN: (
        "the hardware of {gpu} lowered its clocks in {slowed_share} of the samples; check its cooling and power supply"
    ),
    FindingCode.IMPORTED: "{tool} measured this trial; its client's error is unknown, and nothing was sampled",
    FindingCode.ECC_UNCORRECTED_OF_CHIP: (
        "{errors} memory errors could not be corrected on the chip of {gpu}, in this or another MIG slice; reset it "
        "when no slice is in use"
    ),
    FindingCode.ECC_CORRECTED: "{gpu} corrected {errors} memory errors during the trial; watch whether more come",
    FindingCode.MEMORY_REPAIR_PENDING: "{gpu} replaces faulty memory at its next reset; reset it before the next run",
}
"""Template of each code; parameters are formatted by the unit suffix of their names."""
NOTES = {
    FindingCode.POWER_CAPPED: "{gpu} was at its power limit for {capped_share} of the window ({power_basis})",
    FindingCode.HARDWARE_SLOWDOWN: "the hardware of {gpu} lowered its clocks in {slowed_share} of the samples",
}
"""Templates of notes whose code is a warning elsewhere: nothing has to be done."""
_WITHOUT_LIMIT = "other processes used {foreign_share} of the machine, {foreign_cores} cores; end them to be sure"
"""Template of foreign load where ``trial.max_foreign_share`` is 1, so that no share makes a trial INVALID."""
_IDLE_CLIENT = (
    "the client's error in {latency} is {error_s}, more than {max_error_share} of the typical {typical_s}, though it "
    "was busy in {busy_share} of its calibration; repeat when nothing else runs on the machine, or give the client a "
    "core of its own (client.cores)"
)
"""Template of a client that other load delays: more workers would not help."""
_MOSTLY = 0.5
OPTIONS = {
    "duration": "trial.duration_s (--duration of bench)",
    "ramp": "trial.ramp_s (--ramp of bench)",
    "seed": "seed (--seed of bench)",
    "workers": "client.workers (--workers of bench)",
}
"""What sentences advise to change: keys of an experiment, and the options of bench that set them."""
_UNRECORDED = {
    "power_basis": "how this is known was not recorded",
    "busy_share": "an unknown share",
}
"""Texts of parameters that findings of earlier runs lack."""


def sentence(finding: Finding) -> str:
    """One sentence without a full stop. It may quote engine output: :func:`~bakeoff.results.text.format.plain` it."""
    texts = {name: _text(name, value) for name, value in finding.parameters.items()}
    return (_special_template(finding) or SENTENCES[finding.code]).format_map(OPTIONS | _UNRECORDED | texts)


def _special_template(finding: Finding) -> str | None:
    if finding.severity is Severity.NOTE:
        return NOTES.get(finding.code)
    if finding.code is FindingCode.SOME_FOREIGN_LOAD and finding.parameters["max_foreign_share"] == 1:
        return _WITHOUT_LIMIT
    if finding.code is FindingCode.CLIENT_ERROR and float(finding.parameters.get("busy_share", 1)) < _MOSTLY:
        return _IDLE_CLIENT
    return None


def sentences(findings: Iterable[Finding]) -> str:
    """Several findings in one line."""
    return "; also: ".join(map(sentence, findings))


def main_reason(records: Iterable[TrialRecord]) -> str | None:
    """The most frequent reason for which trials are INVALID, in the words of the first; None if none is."""
    found: dict[FindingCode, list[Finding]] = {}
    for record in records:
        for finding in record.invalidating:
            found.setdefault(finding.code, []).append(finding)
    return sentence(max(found.values(), key=len)[0]) if found else None


def violation_sentence(violation: Violation) -> str:
    """``ttft_p99<500ms: it was 550 ms``, or why the value is absent."""
    if violation.value.value is None:
        return f"{violation.objective}: {violation.value.reason}"
    return f"{violation.objective}: it was {value_text(CATALOGUE[violation.metric].unit, violation.value.value)}"


def _text(name: str, value: Parameter) -> str:
    if isinstance(value, str):
        return WORDS.get(name, {}).get(value, value)
    if name == "xid":
        return f"{value} ({XIDS.get(int(value), 'see NVIDIA’s list of XID errors')})"
    if name.endswith("_share"):
        return share_text(value, 1)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return value_text(Unit.SECONDS, value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"
