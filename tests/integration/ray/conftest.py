"""Applications of Ray Serve on two nodes, for the tests of this folder."""

import pytest

from tests.support.models import ECHO, VECTOR, write_model
from tests.support.ray.ray_cluster import TwoNodes, listed


@pytest.fixture(scope="session")
def cluster():
    two = TwoNodes()
    yield two
    two.close()


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path, "echo", ECHO, VECTOR)
    return tmp_path


@pytest.fixture
def run(cluster):
    """Run an application until the end of the test; wait until so many replicas are listed."""
    from ray import serve

    import ksrv.ray

    def start(models, replicas=1, **options):
        settings = {"insecure": True, "drain_delay": 2, **options.pop("settings", {})}
        if "autoscaling" not in options:
            options["num_replicas"] = replicas
        serve.run(ksrv.ray.app(models, settings=settings, **options))
        return listed(replicas)

    yield start
    serve.delete("default")
