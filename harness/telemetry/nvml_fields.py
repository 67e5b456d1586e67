"""NVML field values: many counters in one call, each with its own return code.

Counters of throttled time (``*_s``) are nanoseconds since the driver was loaded. Drivers without such a field may have
the same counter behind the older ``nvmlDeviceGetViolationStatus``. PCIe counters of some drivers are 32 bits wide and
wrap every 4 GiB; they are continued here, which is exact below 43 GB/s at ten readings a second.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pynvml

from bakeoff.results.records import TelemetryRecord

Values = dict[str, float | int | str | None]
_ALL_LINKS = 0xFFFFFFFF
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
"""Member of the union ``nvmlValue_t`` by the type that a field states."""
REFUSED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_DEPRECATED,
}  # fmt: skip
"""Errors that later calls would repeat."""
_FIELD_REFUSED = {*REFUSED, pynvml.NVML_ERROR_INVALID_ARGUMENT}
"""The same for fields and policies: a number that the driver does not know is an invalid argument."""


def code_of(error: Any) -> int:  # noqa: ANN401  (pynvml leaves the attribute undeclared)
    """NVML's return code."""
    return error.value


class Readings:
    """Values of one record, and the reasons of those that are absent."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.reasons: dict[str, str] = {}

    def mark_absent(self, name: str, reason: str) -> None:
        """Mark a value as absent."""
        self.values[name], self.reasons[name] = None, reason

    def record(self, t_ns: int, source: str) -> TelemetryRecord:
        """The record of these readings."""
        return TelemetryRecord(t_ns, source, self.values, self.reasons)


class Field(NamedTuple):
    """One field.

    Attributes:
        number: NVML's id.
        factor: to the unit of our name.
        scope: NVML's scope, such as a link.
        policy: performance policy with the same counter, for drivers without the field.
        wraps: whether a 32-bit value starts again at 0.
    """

    number: int
    factor: float = 1e-9
    scope: int = 0
    policy: int | None = None
    wraps: bool = False


POWER = {"power_w": Field(pynvml.NVML_FI_DEV_POWER_INSTANT, 1e-3)}
POWER_AVERAGE = {"power_average_w": Field(pynvml.NVML_FI_DEV_POWER_AVERAGE, 1e-3)}
HELD_BACK = {
    "power_cap_s": Field(pynvml.NVML_FI_DEV_PERF_POLICY_POWER, policy=pynvml.NVML_PERF_POLICY_POWER),
    "heat_driver_s": Field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN),
    "heat_hardware_s": Field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    "power_brake_s": Field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN),
    "heat_limit_s": Field(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, policy=pynvml.NVML_PERF_POLICY_THERMAL),
}
"""Counters of throttled time that decide about a trial; ``heat_limit_s`` only on older drivers, which have no other
one of heat. They are read at every tick, or time before the window would count into it."""
POLICIES = {
    name: Field(number, policy=policy)
    for name, number, policy in (
        ("sync_boost_s", pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, pynvml.NVML_PERF_POLICY_SYNC_BOOST),
        ("board_limit_s", pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, pynvml.NVML_PERF_POLICY_BOARD_LIMIT),
        ("low_utilization_s", pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, pynvml.NVML_PERF_POLICY_LOW_UTILIZATION),
        ("reliability_limit_s", pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY, pynvml.NVML_PERF_POLICY_RELIABILITY),
        (
            "below_app_clocks_s",
            pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS,
            pynvml.NVML_PERF_POLICY_TOTAL_APP_CLOCKS,
        ),
        (
            "below_base_clocks_s",
            pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS,
            pynvml.NVML_PERF_POLICY_TOTAL_BASE_CLOCKS,
        ),
    )
}
"""The other performance policies, which explain a clock frequency."""
LINKS = {
    "pcie_tx_bytes": Field(pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1, wraps=True),
    "pcie_rx_bytes": Field(pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1, wraps=True),
    "nvlink_tx_bytes": Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 1024, _ALL_LINKS),
    "nvlink_rx_bytes": Field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 1024, _ALL_LINKS),
}
"""Bytes since the driver was loaded. ``nvmlDeviceGetPcieThroughput`` is not used: it measures for 20 ms per call."""


class FieldReader:
    """Reads a set of fields; refused ones are not requested again.

    Args:
        nvml: the NVML binding.
        handle: of the GPU.
        fields: by our name.
    """

    def __init__(self, nvml: Any, handle: Any, fields: Mapping[str, Field]) -> None:  # noqa: ANN401
        self._nvml = nvml
        self._handle = handle
        self._fields = dict(fields)
        self._policies: dict[str, int] = {}
        self._totals: dict[str, tuple[int, int]] = {}

    def read(self, into: Readings) -> None:
        """Add the fields' values, or why they are absent.

        Raises:
            pynvml.NVMLError: the whole call fails for now.
        """
        for (name, field), answer in zip(list(self._fields.items()), self._answers(), strict=True):
            if answer.nvmlReturn in _FIELD_REFUSED:
                self._fall_back(name, field, str(pynvml.NVMLError(answer.nvmlReturn)), into)
            elif answer.nvmlReturn != pynvml.NVML_SUCCESS:
                into.mark_absent(name, str(pynvml.NVMLError(answer.nvmlReturn)))
            elif answer.valueType not in _MEMBERS:
                reason = f"NVML answers with a value of the unknown type {answer.valueType}"
                self._fall_back(name, field, reason, into)
            else:
                into.values[name] = self._number(name, field, answer)
        for name, policy in list(self._policies.items()):
            try:
                into.values[name] = self._violation_s(policy)
            except pynvml.NVMLError as error:
                into.mark_absent(name, str(error))
                if code_of(error) in _FIELD_REFUSED:
                    del self._policies[name]

    def _answers(self) -> list[Any]:
        """An answer to each field; a driver that refuses the call refuses every field."""
        if not self._fields:
            return []
        fields = [(field.number, field.scope) for field in self._fields.values()]
        try:
            return list(self._nvml.nvmlDeviceGetFieldValues(self._handle, fields))
        except pynvml.NVMLError as error:
            if code_of(error) not in _FIELD_REFUSED:
                raise
            return [pynvml.c_nvmlFieldValue_t(nvmlReturn=code_of(error)) for _ in fields]

    def _fall_back(self, name: str, field: Field, reason: str, into: Readings) -> None:
        """Stop requesting a refused field; from now on its counter is read by the older call, if it has one."""
        del self._fields[name]
        if field.policy is None:
            into.mark_absent(name, reason)
        else:
            self._policies[name] = field.policy

    def _violation_s(self, policy: int) -> float:
        return self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy).violationTime / 1e9

    def _number(self, name: str, field: Field, answer: Any) -> float | int:  # noqa: ANN401
        raw = getattr(answer.value, _MEMBERS[answer.valueType])
        if field.wraps and answer.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            before, total = self._totals.get(name, (raw, raw))
            total += (raw - before) % 2**32
            self._totals[name] = raw, total
            return total * field.factor
        return raw * field.factor
