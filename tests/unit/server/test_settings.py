import pytest

from ksrv.server.settings import SettingsError
from ksrv.server.settings_sources import parse_size, resolve

MIB = 1024 * 1024


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path):
    file = tmp_path / "ksrv.yaml"
    file.write_text("threads: 3\nworkers: 3\nbacklog: 3\nlimits: {body: 3M}\n")
    environment = {"KSRV_THREADS": "2", "KSRV_WORKERS": "2", "KSRV_LIMITS__RANK": "5"}
    resolved = resolve({"threads": "1"}, environment, str(file))
    settings = resolved.settings
    assert (settings.threads, settings.workers, settings.backlog) == (1, 2, 3)
    assert (settings.limits.body, settings.limits.rank) == (3 * MIB, 5)
    assert resolved.origins == {
        "threads": "flag --threads",
        "workers": "environment variable KSRV_WORKERS",
        "backlog": f"settings file {file}",
        "limits.body": f"settings file {file}",
        "limits.rank": "environment variable KSRV_LIMITS__RANK",
    }
    assert "threads = 1  (flag --threads)" in resolved.describe()
    assert "keepalive = 75.0  (default)" in resolved.describe()


def test_yaml_off_without_quotes_turns_an_address_off(tmp_path):
    file = tmp_path / "ksrv.yaml"
    file.write_text("grpc: off\nmetrics: off\n")
    settings = resolve({}, {}, str(file)).settings
    assert settings.grpc == "off"
    assert settings.metrics is False


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("metrics_compat", ("triton,kserve",), ("triton", "kserve")),
        ("metrics_compat", ("triton", "kserve"), ("triton", "kserve")),
        ("load_model", ("a, b,", "c"), ("a", "b", "c")),
        ("load_model", (",",), ()),
        ("allowed_origins", ("https://a,https://b",), ("https://a", "https://b")),
        ("allowed_origins", ("*", "http://[::1]:3000"), ("*", "http://[::1]:3000")),
        ("models", ("a,b",), ("a,b",)),
    ],
)
def test_flags_of_several_values_split_at_commas_as_variables_do(key, given, expected):
    assert getattr(resolve({key: given}, {}).settings, key) == expected
    if key != "models":
        joined = {f"KSRV_{key.upper()}": ",".join(given)}
        assert getattr(resolve({}, joined).settings, key) == expected


@pytest.mark.parametrize(
    "origin", ["a", "app.example", "https://", "https://a/b", "https://a https://b", "https://u@a"]
)
def test_what_no_browser_sends_as_an_origin_is_refused(origin):
    with pytest.raises(SettingsError, match="flag --allowed-origins: setting 'allowed_origins'"):
        resolve({"allowed_origins": ("https://a", origin)}, {})


def test_an_entry_of_a_list_in_the_file_is_one_value(tmp_path):
    file = tmp_path / "ksrv.yaml"
    file.write_text("allowed_origins: ['https://a,https://b']\n")
    with pytest.raises(SettingsError, match=r"expected \* or origins such as https://app\.example"):
        resolve({}, {}, str(file))
    file.write_text("metrics_compat: ['triton,kserve']\n")
    with pytest.raises(SettingsError, match="'metrics_compat'"):
        resolve({}, {}, str(file))


def test_settings_of_a_model_may_stand_in_a_file(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"parameters": {"api_key": "k"}}')
    found = resolve({"model_settings": f"@{file}"}, {}).settings.model_settings
    assert found == '{"parameters": {"api_key": "k"}}'
    with pytest.raises(
        SettingsError, match=r"'model_settings' cannot be '@/no/such': .*No such file"
    ):
        resolve({}, {"KSRV_MODEL_SETTINGS": "@/no/such"})


def test_build_variables_are_not_settings():
    build = {
        "KSRV_SANITIZE": "1",
        "KSRV_SYMBOLS": "1",
        "KSRV_TRACE": "1",
        "KSRV_WITHOUT": "libjpeg",
    }
    assert resolve({}, build).origins == {}
    assert resolve({}, build).warnings == ()
    assert resolve({}, {"KSRV_URL": "http://x", "KSRV_TOKEN": "t", "KSRV_CA": "x"}).warnings == ()


@pytest.mark.parametrize(
    ("flags", "environment", "text", "expected"),
    [
        ({}, {}, "limits: {bodi: 1}", ["ksrv.yaml", "'limits.bodi'", "did you mean limits.body?"]),
        ({"nope": 1}, {}, None, ["command line", "'nope'"]),
        (
            {"threads": "many"},
            {},
            None,
            ["flag --threads", "'threads'", "'many': expected a whole number"],
        ),
        (
            {"workers": 0},
            {},
            None,
            ["flag --workers", "'workers'", "expected a whole number from 1"],
        ),
        ({}, {"KSRV_LIMITS__BODY": "64 apples"}, None, ["KSRV_LIMITS__BODY", "64 apples"]),
        ({"limits.body": "99999999T"}, {}, None, ["--limits-body", "'limits.body'", "up to "]),
        ({"limits.body": "0"}, {}, None, ["--limits-body", "'limits.body'", "from 1"]),
        ({"limits.rank": "33"}, {}, None, ["--limits-rank", "'limits.rank'", "up to 32"]),
        ({}, {"KSRV_LIMITS__JSON_DEPTH": "-1"}, None, ["LIMITS__JSON_DEPTH", "from 1"]),
        ({}, {}, "- 1", ["ksrv.yaml", "expected keys and values"]),
        ({}, {}, "a: [", ["ksrv.yaml", "cannot be read", "expected YAML"]),
        ({"drain_delay": "-1"}, {}, None, ["--drain-delay", "expected a number from 0"]),
        ({"head_timeout": "-1"}, {}, None, ["--head-timeout", "expected a number above 0"]),
        ({"reload": "maybe"}, {}, None, ["--reload", "expected true or false"]),
        ({}, {}, "!!python/object/apply:os.system [ls]", ["ksrv.yaml", "cannot be read"]),
        ({"log_format": "xml"}, {}, None, ["'log_format'", "xml"]),
    ],
)
def test_a_mistake_names_the_setting_and_its_source(tmp_path, flags, environment, text, expected):
    file = tmp_path / "ksrv.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        resolve(flags, environment, str(file) if text is not None else None)
    for part in expected:
        assert part in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(
        SettingsError, match=r"none.yaml cannot be read: No such file or directory; expected YAML"
    ):
        resolve({}, {}, str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("2K", 2048), ("64m", 64 * MIB), ("1GiB", 1 << 30), ("1 TB", 1 << 40)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5M", "M", "1X", "١", "1" * 19])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


def test_handlers_in_files_are_paths_of_a_variable():
    found = resolve({}, {"KSRV_MODELS": "models:/x/app.py:Cats:b.py:other/c:d.py"})
    assert found.settings.models == ("models", "/x/app.py:Cats", "b.py", "other/c", "d.py")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "workers: 2\nlimits:\n  # body: 64M\n"),
        ("s.yml", "\ufeffworkers: 2\nlimits: {}\n"),
        ("s.toml", "workers = 2\n[limits]\n# body = '64M'\n"),
        ("s.toml", "\ufeffworkers = 2\n"),
        ("s.json", '{\n\t"workers": 2,\n\t"limits": null\n}\n'),
    ],
)
def test_a_section_without_keys_says_nothing(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    settings = resolve({}, {}, str(tmp_path / name)).settings
    assert (settings.workers, settings.limits.body) == (2, 1024 * MIB)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.json", '{"workers": 2', "expected JSON with settings as its keys"),
        ("s.toml", "workers 2", "expected TOML with settings as its keys"),
        ("s.yaml", "workers:\n", "setting 'workers' cannot be None: expected a whole number"),
    ],
)
def test_a_file_of_another_format_is_refused_in_words(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=words):
        resolve({}, {}, str(tmp_path / name))
