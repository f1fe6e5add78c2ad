"""The statistics of an engine, and its metrics page."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksrv.errors import InferenceError, InvalidRequest, NotFound
from ksrv.request import ExecutorOutputs
from ksrv.server.shared.statistics import ServerStatistics
from ksrv.server.shared.worker_table import State, shared_table
from tests.support.engine.engine_models import engine, request, source, tensor


@pytest.fixture
def served():
    def run(batch):
        timings = {"inference": 2_000_000}
        outputs = ExecutorOutputs([tensor("y", batch.tensors["x"].data)], timings=timings)
        for place, part in enumerate(batch.requests):
            if part.id == "bad":
                outputs.failures[place] = InferenceError("bad")
        return outputs

    made = engine(source(batch=4, version="7"), run=run)
    for rows in (1, 1, 3, 2):
        made.submit(request(rows), caller_blocks=True).wait()
    with pytest.raises(InferenceError):
        made.submit(request(id="bad"), caller_blocks=True).wait()
    with pytest.raises(InvalidRequest):
        made.submit(request(9), caller_blocks=True).wait()
    with pytest.raises(NotFound):
        made.submit(request(model="x" * 1000), caller_blocks=True).wait()
    yield made
    made.close()


def test_counts_survive_a_reload(served):
    before = served.statistics()[0]
    served.load("m")
    served.submit(request(), caller_blocks=True).wait()
    after = served.statistics()[0]
    assert after.success.count == before.success.count + 1
    assert after.failed == before.failed
    served.load("m")
    assert served.statistics()[0].success.count == after.success.count


def samples(served, table=None):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(
            ServerStatistics(served, table=table).metrics_page().decode()
        )
        for sample in family.samples
    }


def test_metrics_page_has_every_family(served):
    found = samples(served)
    model = (("model", "m"), ("version", "7"))

    def value(name, **labels):
        return found[(name, *sorted((*model, *labels.items())))]

    assert value("ksrv_requests_total", outcome="success") == 4
    assert value("ksrv_requests_total", outcome="failed") == 1
    assert value("ksrv_requests_total", outcome="invalid") == 1
    assert value("ksrv_rejected_requests_total", reason="full") == 0
    assert value("ksrv_model_ready") == 1
    assert value("ksrv_pending_requests") == 0
    assert value("ksrv_request_duration_seconds_count") == 4
    assert value("ksrv_stage_duration_seconds_sum", stage="inference") == pytest.approx(0.008)
    assert value("ksrv_stage_duration_seconds_bucket", stage="inference", le="0.001") == 0
    assert value("ksrv_stage_duration_seconds_bucket", stage="inference", le="0.0025") == 4
    assert value("ksrv_batch_size_bucket", le="2.0") == 4
    assert value("ksrv_batch_size_sum") == 8
    assert found[("ksrv_unknown_model_requests_total",)] == 1
    resident = found[("ksrv_worker_resident_bytes",)]
    assert 0 < resident <= found[("process_virtual_memory_bytes",)]
    assert found[("process_resident_memory_bytes",)] == resident
    assert 0 < found[("process_open_fds",)] <= found[("process_max_fds",)]
    assert 0 < found[("process_cpu_seconds_total",)] <= time.process_time()


def test_client_chosen_batch_sizes_are_limited():
    made = engine(source())
    sent = 1100
    for rows in range(1, sent + 1):
        made.submit(request(rows), caller_blocks=True).wait()
    (found,) = made.statistics()
    assert len(found.batches) <= 1024
    assert sum(batch.compute_infer.count for batch in found.batches.values()) == sent
    assert found.inference_count == sent * (sent + 1) // 2
    assert sorted(found.batches)[:1000] == list(range(1, 1001))
    made.close()


def test_process_values_are_on_the_page(served):
    assert not any(name[0].startswith("ksrv_last_reload") for name in samples(served))
    values = shared_table()
    values.restarts += 1
    found = samples(served, values)
    assert found[("ksrv_server_worker_restarts_total",)] == 1
    assert found[("ksrv_last_reload_successful",)] == 1
    assert found[("ksrv_last_reload_timestamp_seconds",)] == 0
    assert ("ksrv_certificate_expiry_timestamp_seconds",) not in found
    values.note_reload(accepted=False)
    values.certificate_expiry = 1_900_000_000
    found = samples(served, values)
    assert found[("ksrv_last_reload_successful",)] == 0
    assert found[("ksrv_last_reload_timestamp_seconds",)] > time.time() - 3600
    assert found[("ksrv_certificate_expiry_timestamp_seconds",)] == 1_900_000_000
    values.note_reload(accepted=True)
    assert samples(served, values)[("ksrv_last_reload_successful",)] == 0
    values.workers[values.allocate()].state = State.READY
    values.end_reload()
    assert samples(served, values)[("ksrv_last_reload_successful",)] == 1
