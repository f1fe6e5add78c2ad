"""Reads the keys of a config.json for stateful models, which keep a state for each sequence of requests."""

from ksrv.dialects.openvino.config_keys import ModelKeys
from ksrv.model.spec import SequenceLimits
from ksrv.repository.report import Report

STATEFUL_HANDLER = "ksrv.dialects.openvino.stateful_model:StatefulModel"
MOST_SEQUENCES = 500
"""OpenVINO Model Server's default for max_sequence_number."""
IDLE_MS = 5 * 60_000
"""The idle timeout: how often OpenVINO Model Server looks for idle sequences by default."""
A_DAY_MS = 24 * 60 * 60_000
"""The idle timeout with `idle_sequence_cleanup: false`, because ksrv has no sequences without an idle timeout."""

_ONLY_WITH_STATE = ("idle_sequence_cleanup", "low_latency_transformation", "max_sequence_number")


def read_sequences(keys: ModelKeys, report: Report) -> SequenceLimits | None:
    """Return the limits on a model's sequences, or None if the model is not stateful."""
    if not keys.stateful:
        for key in _ONLY_WITH_STATE:
            if getattr(keys, key) is not None:
                report.ignored[key] = "the model is not stateful"
        return None
    limits = SequenceLimits(
        max=keys.max_sequence_number or MOST_SEQUENCES,
        idle_timeout_ms=A_DAY_MS if keys.idle_sequence_cleanup is False else IDLE_MS,
        several_rows=True,  # the state has as many rows as the request
    )
    report.applied["stateful"] = (
        f"the request parameters sequence_id, sequence_start and sequence_end replace OpenVINO Model Server's inputs "
        f"sequence_id and sequence_control_input; {limits.max} sequences may be open, and one ends after "
        f"{limits.idle_timeout_ms} ms without a request"
    )
    if keys.low_latency_transformation:
        report.applied["low_latency_transformation"] = "loops become variables"
    return limits
