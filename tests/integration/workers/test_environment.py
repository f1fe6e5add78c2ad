"""Variables that Kubernetes and people put into a server's environment."""

from ksrv.testing import Server


def test_a_service_called_ksrv_and_a_slip_keep_no_server_from_starting(repository):
    environment = {
        "KSRV_SERVICE_HOST": "10.0.0.5",
        "KSRV_SERVICE_PORT": "8080",
        "KSRV_PORT": "tcp://10.0.0.5:8080",
        "KSRV_PORT_8080_TCP_ADDR": "10.0.0.5",
        "KSRV_WROKERS": "2",
    }
    with Server(repository, grpc="off", environment=environment) as running:
        warnings = [line for line in running.log.splitlines() if line.startswith("Warning: ")]
    assert warnings == [
        "Warning: environment variable KSRV_WROKERS is no setting and is not read; did you mean "
        "KSRV_WORKERS?"
    ]
