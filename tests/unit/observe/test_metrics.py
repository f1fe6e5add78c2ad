"""The statistics of an engine, and its metrics page."""

import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksrv.errors import DeadlineExceeded, InferenceError, InvalidRequest, NotFound
from ksrv.observe.metrics import exposition
from ksrv.request import BatchOutputs
from tests.unit.engine.engine_models import engine, request, source, tensor


def counted(milliseconds):
    """An engine that has answered, refused and failed requests; None if none expired as it ran."""
    go = threading.Event()

    def run(batch):
        timings = {"inference": 2_000_000}
        outputs = BatchOutputs([tensor("y", batch.tensors["x"].data)], timings=timings)
        for place, part in enumerate(batch.requests):
            if part.id == "bad":
                outputs.failures[place] = InferenceError("bad")
            if part.id == "late":
                go.wait(60)
        return outputs

    made = engine(source(batch=4, version="7"), run=run)
    for rows in (1, 1, 3):
        made.infer(request(rows))
    with pytest.raises(InferenceError):
        made.infer(request(id="bad"))
    with pytest.raises(InvalidRequest):
        made.infer(request(9))
    with pytest.raises(NotFound):
        made.infer(request(model="x" * 1000))
    late = time.monotonic_ns() + milliseconds * 1_000_000
    with pytest.raises(DeadlineExceeded) as caught:
        made.infer(request(id="late", deadline_ns=late))
    go.set()
    made.infer(request(2))  # waits for the late one to be over
    if "while the handler ran" in caught.value.message:
        return made
    made.close()  # it came too late for its handler
    return None


@pytest.fixture
def served():
    milliseconds = 5
    while (made := counted(milliseconds)) is None:
        milliseconds *= 2
    yield made
    made.close()


def test_statistics_count_every_request_once(served):
    (found,) = served.statistics("m", "7")
    assert (found.name, found.version) == ("m", "7")
    assert found.success.count == 4
    assert found.fail.count == 3
    assert (found.failed, found.invalid, found.expired) == (1, 1, 1)
    assert found.compute_infer.count == 4
    assert found.compute_infer.ns == 4 * 2_000_000
    assert found.execution_count == 6
    assert found.inference_count == 1 + 1 + 3 + 1 + 1 + 2
    sizes = {batch.batch_size: batch.compute_infer.count for batch in found.batches}
    assert sizes == {1: 4, 2: 1, 3: 1}
    assert found.last_inference_ms >= (time.time() - 60) * 1000


def test_counts_survive_a_reload(served):
    before = served.statistics()[0]
    served.load("m")
    served.infer(request())
    after = served.statistics()[0]
    assert after.success.count == before.success.count + 1
    assert after.expired == before.expired
    served.load("m")
    assert served.statistics()[0].success.count == after.success.count


def samples(served):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(served).decode())
        for sample in family.samples
    }


def test_the_metrics_page(served):
    found = samples(served)
    model = (("model", "m"), ("version", "7"))

    def value(name, **labels):
        return found[(name, *sorted((*model, *labels.items())))]

    assert value("ksrv_requests_total", outcome="success") == 4
    assert value("ksrv_requests_total", outcome="failed") == 1
    assert value("ksrv_requests_total", outcome="expired") == 1
    assert value("ksrv_requests_total", outcome="invalid") == 1
    assert value("ksrv_rejected_requests_total", reason="full") == 0
    assert value("ksrv_model_ready") == 1
    assert value("ksrv_pending_requests") == 0
    assert value("ksrv_request_duration_seconds_count") == 4
    assert value("ksrv_stage_duration_seconds_sum", stage="inference") == pytest.approx(0.008)
    assert value("ksrv_stage_duration_seconds_bucket", stage="inference", le="0.001") == 0
    assert value("ksrv_stage_duration_seconds_bucket", stage="inference", le="0.0025") == 4
    assert value("ksrv_batch_size_bucket", le="2.0") == 5
    assert value("ksrv_batch_size_sum") == 9
    assert found[("ksrv_unknown_model_requests_total",)] == 1
    assert found[("ksrv_worker_resident_bytes",)] > 0


def test_unknown_names_do_not_lengthen_the_page(served):
    before = len(samples(served))
    for n in range(50):
        with pytest.raises(NotFound):
            served.infer(request(model=f"nope{n}"))
    assert len(samples(served)) == before
