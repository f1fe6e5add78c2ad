"""The flags of `ksrv serve`, without a server."""

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.server.settings_sources import SERVICE_VARIABLE, fields


@pytest.fixture
def run(monkeypatch):
    for name in list(__import__("os").environ):
        if name.startswith("KSRV_"):
            monkeypatch.delenv(name)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, [*arguments])


def test_every_setting_is_a_flag_of_serve(run):
    text = run("serve", "--help").output
    for key, field in fields().items():
        if key != "models":
            assert field.flag in text


@pytest.mark.parametrize(
    ("arguments", "http", "grpc"),
    [
        (["--port", "18080"], "127.0.0.1:18080", "127.0.0.1:9000"),
        (["--host", "0.0.0.0"], "0.0.0.0:8080", "0.0.0.0:9000"),
        (["--host", "::1", "--port", "0"], "[::1]:0", "[::1]:9000"),
        (["--host", "0.0.0.0", "--grpc", "off"], "0.0.0.0:8080", "off"),
    ],
)
def test_host_and_port_make_addresses(run, arguments, http, grpc):
    lines = run("serve", ".", "--print-config", *arguments).output.splitlines()
    assert f"http = '{http}'  (flag --http)" in lines
    assert [line for line in lines if line.startswith(f"grpc = '{grpc}'")]


def test_the_help_of_serve_has_sections(run):
    text = run("serve", "--help").output
    assert "\nLimits:\n" in text and "\nAddresses:\n" in text
    assert "\nMore:\n" not in text, "a setting has no section in ksrv/cli/serve.py"
    assert "--limits-client-rate N " in text and "--drain-delay SECONDS " in text


@pytest.mark.parametrize("flag", ["--metrics-compat", "--allowed-origins", "--load-model"])
def test_the_help_says_that_a_flag_takes_several_values(run, flag):
    _, _, behind = run("serve", "--help").output.partition(f"  {flag} ")
    own = " ".join(behind.partition("\n  --")[0].partition("\n\n")[0].split())
    assert own.endswith("May be repeated, or separated by commas.")


def test_print_config_shows_values_and_sources(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KSRV_THREADS", "3")
    file = tmp_path / "ksrv.yaml"
    file.write_text("workers: 2\n")
    done = run(
        "serve", str(tmp_path), "--config", str(file), "--limits-body", "64M", "--insecure",
        "--no-metrics", "--allowed-origins", "http://a", "--allowed-origins", "http://b",
        "--print-config",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for line in [
        f"models = ('{tmp_path}',)  (flag --models)",
        "threads = 3  (environment variable KSRV_THREADS)",
        f"workers = 2  (settings file {file})",
        f"limits.body = {64 << 20}  (flag --limits-body)",
        "insecure = True  (flag --insecure)",
        "metrics = False  (flag --metrics)",
        "allowed_origins = ('http://a', 'http://b')  (flag --allowed-origins)",
        "http = '127.0.0.1:8080'  (default)",
    ]:
        assert line in done.output.splitlines()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "at least one model"),
        (("/no/such/place",), "/no/such/place"),
        ((".", "--limits-body", "big"), "'limits.body'"),
        ((".", "--config", "/no/such/file.yaml"), "/no/such/file.yaml"),
        ((".", "--http", "8080"), "HOST:PORT"),
        ((".", "--port", "8080", "--http", "127.0.0.1:1"), "expected it without --port"),
        ((".", "--host=0.0.0.0", "--http", "127.0.0.1:1"), "expected it without --host"),
        ((".", "--port", "65536"), "65535"),
        ((".", "--port", "http"), "integer"),
        ((".", "--log-level", "loud"), "'debug', 'info', 'warning', 'error'"),
        ((".", "--ready-when", "never"), "'all', 'any'"),
        ((".", "--grpc", "::1:80"), "[ADDRESS]:PORT"),
        ((".", "--token-file", "/no/such/tokens"), "'token_file'"),
        ((".", "--allowed-origins", "app.example"), "got 'app.example'"),
        ((".", "--metrics-compat", "triton,mlserver"), "'metrics_compat'"),
    ],
)
def test_invalid_option_prints_one_sentence(run, arguments, text):
    done = run("serve", *arguments)
    assert done.exit_code != 0
    assert text in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("KSRV_HTPP", "did you mean KSRV_HTTP?"),
        ("KSRV_LIMITS__BDOY", "did you mean KSRV_LIMITS__BODY?"),
        ("KSRV_LIMITS_BODY", "did you mean KSRV_LIMITS__BODY?"),
        ("KSRV_ZZZZZZ", "is not read\n"),
    ],
)
def test_a_variable_that_is_no_setting_is_a_warning(run, monkeypatch, variable, nearest):
    monkeypatch.setenv(variable, "x")
    done = run("serve", ".", "--print-config")
    assert done.exit_code == 0
    assert f"Warning: environment variable {variable} is not a setting" in done.stderr
    assert nearest in done.stderr


def test_gunicorn_cmd_args_is_a_warning(run, monkeypatch):
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--workers 4")
    done = run("serve", ".", "--print-config")
    assert done.exit_code == 0
    assert "Warning: ksrv serve does not read GUNICORN_CMD_ARGS" in done.stderr


@pytest.mark.parametrize("service", ["KSRV", "KSRV_GRPC", "KSRV_2_HTTP"])
def test_variables_of_kubernetes_services_are_ignored(run, monkeypatch, service):
    for name, value in {
        "SERVICE_HOST": "10.0.0.5",
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_HTTP_METRICS": "8080",
        "PORT": "tcp://10.0.0.5:8080",
        "PORT_8080_TCP": "tcp://10.0.0.5:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.5",
        "PORT_53_UDP_ADDR": "10.0.0.5",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    done = run("serve", ".", "--print-config")
    assert (done.exit_code, done.stderr) == (0, "")


def test_no_setting_collides_with_a_kubernetes_variable():
    for field in fields().values():
        assert not SERVICE_VARIABLE.fullmatch(field.variable)


@pytest.mark.parametrize(
    ("files", "path", "texts"),
    [
        ([], "none", ["no such file"]),
        (["weights.pth"], "weights.pth", ["weights.pth", "model.yaml", "class:"]),
        (["notes.md"], "notes.md", ["notes.md", ".onnx"]),
        (["broken.mar"], "broken.mar", ["broken.mar"]),
        (["m/model.yaml"], "m", ["model.yaml", "handler: or a model:"]),
        (["m/weights.pth", "m/model.yml"], "m", ["holds no model", "model.yml is not read"]),
        (["r/a/x.txt", "r/b/config.pbtxt"], "r", ["none of its 2", "no model.yaml"]),
        (["empty/.keep"], "empty", ["holds no model"]),
        (["v/1/x.txt", "v/2/x.txt"], "v", ["no model.yaml"]),
    ],
)
def test_unservable_path_exits_with_one_sentence_and_status_2(run, tmp_path, files, path, texts):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    done = run("serve", str(tmp_path / path), "--http", "127.0.0.1:0", "--grpc", "off")
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    for text in texts:
        assert text in line


def test_one_unservable_path_stops_the_start(run, tmp_path):
    (tmp_path / "model.onnx").write_text("")
    done = run("serve", str(tmp_path / "model.onnx"), str(tmp_path / "none"))
    assert done.exit_code == 2 and "none: no such file" in done.output
