"""Replicas that come, go and die under load."""

import os
import signal
import time

import pytest
import requests

from tests.support.ray.ray_cluster import BODY, actor, deploy, listed, listening_on, parent
from tests.support.ray.replica_load import ReplicaLoad
from tests.support.wait_until import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

INFER = "/v2/models/echo/infer"

PLUS = 'def inference(x): return {"y": x + 10}\n'

SLEEP = """
import time


def inference(x):
    time.sleep(0.05)
    return {"y": x}
"""


def load(threads=4):
    """Call the replicas that are listed at that moment, on their HTTP ports."""
    import ksrv.ray

    return ReplicaLoad(lambda: [one.http for one in ksrv.ray.addresses()], INFER, BODY, threads)


def write_handler(models, text):
    (models / "echo" / "handler.py").write_text(text)


def test_from_one_replica_to_four_on_two_nodes_and_back(run, models):
    run(models)
    with load() as clients:
        clients.wait_for(100)
        four = run(models, 4, max_replicas_per_node=2)
        clients.wait_for(400)
        one = run(models, 1, max_replicas_per_node=2)
        clients.wait_for(100)
    assert len({address.node for address in four}) == 2
    assert {address.http for address in four} <= set(clients.answered)
    assert one[0].http in clients.answered
    assert (clients.lost, clients.errors) == ([], [])


def test_a_redeploy_loses_no_request(run, models):
    before = run(models, 2)
    with load() as clients:
        clients.wait_for(100)
        run(models, 2, settings={"keepalive": 60})
        wait_until(lambda: not {one.replica for one in before} & {one.replica for one in listed(2)})
        clients.wait_for(200)
    after = listed(2)
    assert not {one.replica for one in before} & {one.replica for one in after}
    assert {one.http for one in (*before, *after)} <= set(clients.answered)
    assert (clients.lost, clients.errors) == ([], [])


def test_another_user_config_reads_the_models_in_place(run, models):
    before = deploy_file(models, {"models": "first"})
    with load() as clients:
        clients.wait_for(100)
        write_handler(models, PLUS)
        deploy_file(models, {"models": "second"})
        url = f"http://{before[0].http}{INFER}"
        wait_until(
            lambda: requests.post(url, BODY).json()["outputs"][0]["data"] == [11, 12, 13, 14]
        )
        clients.wait_for(100)
    assert listed(1) == before
    assert (clients.lost, clients.errors) == ([], [])


def deploy_file(models, user_config, replicas=1):
    """Run what a Serve config file says, as `serve deploy` does, until the fixture `run` ends it."""
    arguments = {"models": str(models), "settings": {"insecure": True, "drain_delay": 2}}
    ksrv = {"name": "ksrv", "user_config": user_config, "num_replicas": replicas}
    application = {
        "name": "default",
        "import_path": "ksrv.ray:build",
        "args": arguments,
        "deployments": [ksrv],
    }
    deploy({"applications": [application]})
    return listed(replicas)


def test_a_server_that_dies_is_replaced(run, models):
    [before] = run(models)
    os.killpg(os.getpgid(listening_on(int(before.http.rpartition(":")[2]))[0]), signal.SIGKILL)
    wait_until(lambda: [one.replica for one in listed(1)] != [before.replica], 120)
    assert requests.post(f"http://{listed(1)[0].http}{INFER}", BODY).status_code == 200


def test_the_queues_ask_for_replicas(run, models):
    write_handler(models, SLEEP)
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 3,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2,
    }
    run(models, autoscaling=scaling)
    with load(9) as many:
        listed(3)
        many.wait_for(200)
    with load(1) as few:  # who calls on while two replicas leave
        [last] = listed(1)
        few.wait_for(50)
    assert len(many.answered) == 3
    assert (many.lost, many.errors, few.lost, few.errors) == ([], [], [], [])
    assert last.http in few.answered


def test_a_killed_node_loses_no_request_but_its_own(cluster, run, models):
    write_handler(models, SLEEP)
    four = run(models, 4, max_replicas_per_node=2)
    gone = {one.http for one in four if one.node == cluster.node.node_id}
    assert len(gone) == 2
    threads = 8
    with load(threads) as clients:
        clients.wait_for(100)
        with cluster.stopped_node():
            # Each client soon has a request there, for nothing answers any more.
            wait_until(lambda: len(clients.held_by(gone)) == threads)
            held = clients.held_by(gone)
        # The sockets of a node take connections until the last of its processes has died.
        dead = time.monotonic()
        clients.wait_for(200)
        cluster.add_node()
        after = listed(4)
        clients.wait_for(200)
    assert not gone & {one.http for one in after}
    assert held <= {loss.sent for loss in clients.lost}
    for loss in clients.lost:
        assert (loss.sent.address in gone, loss.sent.begun < dead) == (True, True), loss
    assert clients.errors == []


def test_a_killed_raylet_loses_no_request(cluster, run, models):
    write_handler(models, SLEEP)
    two = run(models, 2, max_replicas_per_node=1)
    [gone] = [one for one in two if one.node == cluster.node.node_id]
    with load() as clients:
        clients.wait_for(100)
        cluster.kill_raylet()
        cluster.add_node()
        wait_until(lambda: gone not in listed(2), 120)
        clients.wait_for(100)
    assert gone.http in clients.answered
    assert (clients.lost, clients.errors) == ([], [])


def test_a_killed_actor_loses_no_request(run, models):
    write_handler(models, SLEEP)
    before = run(models, 2)
    with load() as clients:
        clients.wait_for(100)
        server = listening_on(int(before[0].http.rpartition(":")[2]))[0]
        os.kill(parent(server), signal.SIGKILL)
        wait_until(lambda: before[0] not in listed(2), 120)
        clients.wait_for(100)
    wait_until(lambda: not listening_on(int(before[0].http.rpartition(":")[2])))
    assert (clients.lost, clients.errors) == ([], [])


def test_a_killed_list_of_addresses_is_made_anew(run, models):
    before = run(models, 2)
    with load() as clients:
        clients.wait_for(100)
        os.kill(actor("ServeReplica:default:ksrv-addresses"), signal.SIGKILL)
        wait_until(lambda: listed(2) == before)
        clients.wait_for(100)
    assert (clients.lost, clients.errors) == ([], [])


def test_a_killed_controller_changes_nothing(run, models):
    before = deploy_file(models, {}, 2)
    with load() as clients:
        clients.wait_for(100)
        os.kill(actor("ServeController"), signal.SIGKILL)
        clients.wait_for(200)
        after = deploy_file(models, {}, 3)
        clients.wait_for(100)
    assert set(before) < set(after)
    assert (clients.lost, clients.errors) == ([], [])


def test_addresses_are_listed_when_run_returns(cluster, models):
    from ray import serve

    import ksrv.ray

    settings = {"insecure": True, "drain_delay": 0}
    serve.run(ksrv.ray.app(models, num_replicas=2, settings=settings))
    try:
        assert len(ksrv.ray.addresses()) == 2
    finally:
        serve.delete("default")
