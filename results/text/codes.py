"""Codes that findings quote, in words."""

from bakeoff.results.metrics.machine import PowerBasis

XIDS = {
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
}
"""Names of the best-known errors in NVIDIA's list (https://docs.nvidia.com/deploy/xid-errors)."""
WORDS = {
    "latency": {
        "ttft": "TTFT",
        "tpot": "TPOT",
        "normalized_latency": "the time per token",
        "chunk_gap": "the gap between chunks",
    },
    "claim": {"usage": "totals of usage", "ids": "token ids", "counts": "counts of each chunk"},
    "source": {
        "ids": "their ids",
        "counts": "the counts of their chunks",
        "chunks": "their chunks",
        "tokenizer": "the tokenizer",
        "apportioned": "the usage",
        "unplaced": "the usage",
        "estimated": "an estimate",
        "assumed": "their chunks",
    },
    "power_basis": {
        PowerBasis.COUNTED.value: "counted by the driver",
        PowerBasis.SAMPLED.value: "a share of the samples; the driver does not count it",
    },
}
"""Codes in words, by parameter."""
