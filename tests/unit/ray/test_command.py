"""The flags of `ksrv serve --ray` that need no cluster."""

import sys

import pytest
from click.testing import CliRunner

import ksrv.ray
from ksrv.cli.main import main
from ksrv.ray.command import replica_options
from ksrv.server.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1", {"num_replicas": 1}),
        ("12", {"num_replicas": 12}),
        ("1:4", {"autoscaling": {"min_replicas": 1, "max_replicas": 4}}),
        ("2:2", {"autoscaling": {"min_replicas": 2, "max_replicas": 2}}),
    ],
)
def test_replica_counts_are_parsed(text, options):
    assert replica_options(text) == options


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1:", ":4", "4:1", "0:4", "1:2:3", "1.5"])
def test_invalid_replica_counts_are_refused(text):
    with pytest.raises(SettingsError, match=r"expected a whole number from 1, or MIN:MAX"):
        replica_options(text)


def test_missing_ray_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = CliRunner().invoke(main, ["serve", "models", "--ray", "auto"])
    assert ended.exit_code == 1
    assert "pip install 'ray[serve]'" in ended.output


def test_package_imports_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for use in (lambda: ksrv.ray.app("models"), ksrv.ray.addresses):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'ray\[serve\]'") as caught:
            use()
        assert caught.value.name == "ray"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ksrv.ray.nothing  # noqa: B018
    assert all(getattr(ksrv.ray, name) is not None for name in ksrv.ray.__all__)
