"""Configuration and statistics, as documents and as messages that Triton's client reads."""

import json
from types import SimpleNamespace

from ksrv.dialects.triton.extensions.descriptions import configuration, statistics_document
from ksrv.model.spec import ModelSpec
from ksrv.protocol import metadata
from tests.support.model_specs import CLASSIFIER


def test_config_leaves_out_the_batch_dimension_of_a_model_that_batches():
    found = configuration(CLASSIFIER)
    assert json.loads(json.dumps(found)) == found
    assert found["input"][0]["dims"] == [224, -1, 3]
    assert found["input"][1] == {
        "name": "text",
        "data_type": "TYPE_STRING",
        "dims": [],
    }
    assert found["parameters"] == {"top": {"string_value": "5"}, "name": {"string_value": "n"}}
    made = metadata.to_message("inference.ModelConfig", found)
    assert made.input[0].format == 1
    assert made.output[0].data_type == 14
    assert made.HasField("dynamic_batching")
    assert made.parameters["top"].string_value == "5"


def test_config_of_a_model_that_does_not_batch_keeps_the_whole_shape():
    found = configuration(ModelSpec("m", outputs=CLASSIFIER.outputs))
    assert found["max_batch_size"] == 0
    assert found["output"][0]["dims"] == [-1, 1000]
    assert "dynamic_batching" not in found


def test_statistics_are_rendered():
    def duration(count):
        return SimpleNamespace(count=count, ns=count * 10)

    entry = SimpleNamespace(
        name="m",
        version="1",
        last_inference_ms=1_700_000_000_000,
        inference_count=5,
        execution_count=2,
        success=duration(4),
        fail=duration(1),
        queue=duration(5),
        compute_input=duration(6),
        compute_infer=duration(7),
        compute_output=duration(8),
        cached={"hit": duration(9)},
        batches={
            3: SimpleNamespace(
                compute_input=duration(1),
                compute_infer=duration(2),
                compute_output=duration(3),
            )
        },
    )
    found = statistics_document([entry])
    assert found["model_stats"][0]["inference_stats"]["fail"] == {"count": 1, "ns": 10}
    assert found["model_stats"][0]["inference_stats"]["cache_hit"] == {"count": 9, "ns": 90}
    assert found["model_stats"][0]["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
    made = metadata.to_message("inference.ModelStatisticsResponse", found).model_stats[0]
    assert made.last_inference == 1_700_000_000_000
    assert made.batch_stats[0].compute_infer.ns == 20
