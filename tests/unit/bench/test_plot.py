"""The picture of a load's results."""

from xml.etree import ElementTree

import pytest

from ksrv.bench.plot import plot
from ksrv.bench.report import Result


def result(throughput, milliseconds, url="http://a", loop="closed"):
    latency = {"p50": milliseconds, "p99": 3 * milliseconds} if milliseconds else {}
    return Result(url, loop, 1, None, 1.0, 10, throughput, throughput, latency)


@pytest.mark.parametrize(
    "results",
    [
        [result(100, 1)],
        [result(100, 1), result(100, 1)],
        [result(0.01, 1e5), result(1e6, 0.001)],
        [result(100, 1), result(0, None), result(50, 2, url="grpc://b<&>")],
    ],
)
def test_every_answered_load_is_a_point(results):
    root = ElementTree.fromstring(plot(results, "a <title> & more"))
    answered = [one for one in results if one.latency_ms]
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == 2 * len(answered)
    for circle in circles:
        assert 70 <= float(circle.get("cx")) <= 690
        assert 50 <= float(circle.get("cy")) <= 380
    assert "a <title> & more" in "".join(root.itertext())


def test_without_an_answer_there_is_no_picture():
    with pytest.raises(ValueError, match="nothing to plot"):
        plot([result(0, None)], "none")
