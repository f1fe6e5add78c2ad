"""`ksrv bench` against a real server, and --find-batching with the servers that it starts."""

import gc
import json
import time

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from ksrv.bench import batching
from ksrv.bench.load import Endpoint, Load, run
from ksrv.cli.main import main
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double, write_model, write_slow

pytestmark = pytest.mark.long

QUICK = ("--seconds", "0.4", "--warm-up", "0.1")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_double(root)
    write_slow(root, seconds=0.1)
    with Server(root) as running:
        yield running


def bench(*arguments, environment=None):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], env=environment)


def test_closed_loops_over_both_protocols(server):
    done = bench(
        "double", "--url", server.url, "--url", f"grpc://{server.grpc}",
        "--concurrency", "1,2", "--rows", 2, "--json", *QUICK,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert [(one["url"][:4], one["connections"]) for one in results] == [
        ("http", 1), ("http", 2), ("grpc", 1), ("grpc", 2)
    ]  # fmt: skip
    for one in results:
        assert one["loop"] == "closed" and one["requests"] > 0 and not one["errors"]
        assert one["rows_per_second"] == pytest.approx(2 * one["throughput"])
        assert 0 < one["latency_ms"]["p50"] <= one["latency_ms"]["p99"] <= one["latency_ms"]["max"]
        assert one["server_cores"] >= 0 and one["server_bytes"] > 1 << 20
        assert one["batch_rows"] >= 2


@pytest.mark.parametrize("loop", [("--concurrency", 1), ("--rate", 50, "--connections", 1)])
def test_the_time_that_counts_begins_when_all_is_ready(server, monkeypatch, loop):
    """A process with many objects takes long to collect garbage: longer than is measured here."""
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: (time.sleep(1.5), collect()))
    done = bench("double", "--url", server.url, *loop, "--json", *QUICK)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert result["requests"] > 0 and not result["unsent"]


def test_failed_start_of_a_process_is_reported_at_once():
    endpoint = Endpoint("https://127.0.0.1:1", ca="/no/such/authority.pem")
    with pytest.raises(FileNotFoundError):
        run(endpoint, [], Load(connections=2, processes=2, warm_up=0.1, seconds=0.1))


def test_an_open_loop_that_asks_for_too_much_shows_it(server):
    done = bench("slow", "--url", server.url, "--rate", 200, "--connections", 2, "--json", *QUICK)
    (result,) = json.loads(done.stdout)["results"]
    assert result["loop"] == "open" and result["rate"] == 200
    assert result["throughput"] < 50  # two connections, 0.1 s each
    assert result["latency_ms"]["p90"] > 200
    assert result["unsent"] > 0 and "could not be sent" in done.stderr


def test_the_table_and_a_file(server, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    done = bench(
        "double", tmp_path / "x.npy", "--concurrency", 1, *QUICK,
        environment={"KSRV_URL": server.url},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "req/s" in done.output and "http 1 conn" in done.output


def test_processes_share_the_load(server):
    done = bench(
        "double", "--url", server.url, "--concurrency", 3, "--processes", 2, "--json", *QUICK
    )
    (result,) = json.loads(done.stdout)["results"]
    assert result["requests"] > 0 and not result["errors"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nope"], 1, "404"),
        (["double", "--shape", "x=1,3", "--concurrency", "1", *QUICK], 1, "expects [-1, 4]"),
        (["double", "--concurrency", "0"], 2, "positive"),
        (["double", "--concurrency", "1", "--rate", "5"], 2, "closed loop"),
        (["double", "--shape", "x"], 2, "--shape"),
        (["double", "/no/such/file"], 1, "No such file"),
        (["double", "--seconds", "0"], 2, "positive"),
        (["double", "--plot", "p.gif"], 2, "ends with .pdf, .png, .svg"),
        (["double", "--loadgen", "server", "--goal", "5"], 2, "server alone takes --rate"),
        (["double", "--loadgen", "server", "--rate", "5"], 2, "needs --goal"),
        (["double", "--loadgen", "offline", "--rate", "5"], 2, "server alone takes --rate"),
        (["double", "--loadgen", "offline", "--goal", "5"], 2, "no other scenario takes"),
        (["double", "--loadgen", "offline", "--concurrency", "5"], 2, "no --concurrency"),
    ],
)
def test_invalid_options_are_reported(server, arguments, status, text):
    done = bench(*arguments, "--url", server.url)
    assert done.exit_code == status, done.output
    assert text in done.output


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_plot_of_two_loads(server, tmp_path, suffix):
    pytest.importorskip("matplotlib", reason="make test-packages installs it")
    file = tmp_path / f"latencies.{suffix}"
    done = bench("double", "--url", server.url, "--concurrency", "1,2", "--plot", file, *QUICK)
    assert done.exit_code == 0, done.output
    assert file.stat().st_size > 5000
    if suffix == "svg":
        assert "closed loop, 2 connections" in file.read_text()


def test_plot_that_cannot_be_written_is_reported(server, tmp_path):
    pytest.importorskip("matplotlib", reason="make test-packages installs it")
    file = tmp_path / "none" / "latencies.svg"
    done = bench("double", "--url", server.url, "--concurrency", "1", "--plot", file, *QUICK)
    assert done.exit_code == 1 and "latencies.svg cannot be written" in done.output


@pytest.mark.parametrize(
    ("scenario", "least"),
    [
        (("single-stream",), "result_90.00_percentile_latency_ns"),
        (("offline",), "result_samples_per_second"),
        (("server", "--rate", 400, "--goal", 5000), "result_completed_samples_per_sec"),
    ],
)
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_loadgen_runs_its_scenarios(server, tmp_path, scenario, least, protocol):
    pytest.importorskip("mlperf_loadgen", reason="make test-packages installs it")
    url = server.url if protocol == "rest" else f"grpc://{server.grpc}"
    done = bench(
        "double", "--url", url, "--loadgen", *scenario, "--loadgen-logs", tmp_path / "logs",
        "--connections", 4, "--seconds", 2, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["result_validity"] == "VALID" and found[least] > 0
    assert "Result is : VALID" in (tmp_path / "logs" / "mlperf_log_summary.txt").read_text()


def test_loadgen_run_with_too_few_queries_is_not_valid(server, tmp_path):
    pytest.importorskip("mlperf_loadgen", reason="make test-packages installs it")
    done = bench(
        "double", "--url", server.url, "--loadgen", "server", "--rate", 50, "--goal", 5000,
        "--loadgen-logs", tmp_path, "--seconds", 1,
    )  # fmt: skip
    assert done.exit_code == 1
    assert "Result is : INVALID" in done.output and "more queries" in done.output


def test_failed_request_of_loadgen_is_reported(server, tmp_path):
    pytest.importorskip("mlperf_loadgen", reason="make test-packages installs it")
    done = bench(
        "double", "--url", server.url, "--loadgen", "offline", "--loadgen-logs", tmp_path,
        "--shape", "x=1,3",
    )  # fmt: skip
    assert done.exit_code == 1 and "expects [-1, 4]" in done.output


@pytest.fixture
def few_trials(monkeypatch):
    monkeypatch.setattr(batching, "CONNECTIONS", (1, 4))
    monkeypatch.setattr(batching, "MOST_BATCH", 2)
    monkeypatch.setattr(batching, "DELAYS_MS", (1,))


@pytest.mark.usefixtures("few_trials")
def test_the_best_settings_are_found_and_are_a_section_of_model_yaml(tmp_path):
    folder = write_double(tmp_path)
    before = (folder / "model.yaml").read_text()
    done = bench(folder, "--find-batching", "--goal", 500, "--trial-seconds", 0.1)
    assert done.exit_code == 0, done.output
    section = yaml.safe_load(done.stdout.rpartition("\n\n")[2])
    assert set(section) == {"batching", "instances", "threads"}
    assert (folder / "model.yaml").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["double"]


CALLS = """
from ksrv import BaseHandler


class Calls(BaseHandler):
    def inference(self, x):
        return self.context.models["double"].infer({"x": x})
"""


@pytest.mark.usefixtures("few_trials")
def test_pipeline_without_batches_is_measured_beside_the_models_that_it_calls(tmp_path):
    write_double(tmp_path)
    tensors = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
    kept = f"# a pipeline\nbatching: off  # whole shapes\ncalls: [double]\n{tensors}"
    write_model(tmp_path, "calls", CALLS, kept)
    find = ["--find-batching", "--goal", 5000, "--trial-seconds", 0.05, "--write"]
    done = bench(tmp_path / "calls", *find)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "calls" / "model.yaml").read_text()
    assert kept in written
    section = yaml.safe_load(done.stdout.rpartition("\n\n")[2])
    assert set(section) == {"instances", "threads"}
    assert {key: yaml.safe_load(written)[key] for key in section} == section
    (tmp_path / "double" / "handler.py").unlink()
    (tmp_path / "double" / "model.yaml").unlink()
    (tmp_path / "double").rmdir()
    done = bench(tmp_path / "calls", *find)
    assert done.exit_code == 1 and "no such model" in done.output
    assert (tmp_path / "calls" / "model.yaml").read_text() == written


@pytest.mark.usefixtures("few_trials")
def test_unreachable_goal_is_reported(tmp_path):
    folder = write_slow(tmp_path, seconds=0.3)
    done = bench(folder, "--find-batching", "--goal", 1, "--trial-seconds", 0.4, "--json")
    assert done.exit_code == 1, done.output
    assert "no settings reach p99 <= 1 ms" in done.stderr
    assert json.loads(done.stdout)["best"]["rows_per_second"] == 0


def test_a_token_and_tls_are_used(tmp_path):
    write_double(tmp_path / "models")
    key, cert = self_signed(tmp_path / "tls")
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    settings = {"tls_cert": str(cert), "tls_key": str(key), "token_file": str(tokens)}
    with Server(tmp_path / "models", **settings) as server:
        urls = ["--url", server.url, "--url", f"grpcs://{server.grpc}", "--concurrency", "2"]
        given = ["double", *urls, "--ca", cert, "--json", *QUICK]
        done = bench(*given, "--token-file", tokens)
        assert done.exit_code == 0, done.output
        results = json.loads(done.stdout)["results"]
        assert all(one["requests"] and not one["errors"] for one in results)
        refused = bench(*given)
        assert refused.exit_code == 1 and "401" in refused.output
