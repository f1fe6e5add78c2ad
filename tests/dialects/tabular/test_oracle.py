"""Twenty models of each library answer what the library answers, to the bit, over every protocol."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.model_files.tables import KINDS, SHOWN, TASKS, TRAIN, train

for package in ("xgboost", "lightgbm", "catboost", "sklearn", "pandas"):
    pytest.importorskip(package, reason="make test-dialects installs it")

CLIENTS = 16
NAMES = [f"{kind}_{task}" for kind in KINDS for task in TASKS]


@pytest.fixture(scope="module", params=TRAIN)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    models = {one.name: one for one in train(request.param, folder)}
    # A handler process for each of twenty pickles takes seconds on a small machine.
    with Server(folder, start_timeout=300) as server:
        yield server, models


def assert_same(got, expected):
    assert set(got) == set(expected)
    for name, wanted in expected.items():
        values = got[name]
        if wanted.dtype.kind in "OU":
            values = np.array([one.decode() for one in values.ravel()]).reshape(values.shape)
            assert values.tolist() == wanted.tolist()
        else:
            assert (values.dtype, values.shape) == (wanted.dtype, wanted.shape)
            assert values.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_answers_are_the_librarys_to_the_bit(trained, name, protocol):
    server, models = trained
    one = models[name]
    url = server.url if protocol == "rest" else f"grpc://{server.grpc}"
    with Client(url) as client:
        for rows in (slice(0, SHOWN), slice(3, 4)):
            assert_same(client.infer(name, one.inputs(rows)), one.answers(rows))


def records_of(inputs):
    """Return rows as pandas writes them: null for a missing value."""
    columns = {name: [plain(value) for value in column] for name, column in inputs.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plain(value):
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value.tolist()]
    if isinstance(value, str):
        return value or None
    return None if value != value else float(value)


@pytest.mark.parametrize("name", NAMES)
def test_plain_json_answers_by_row(trained, name):
    server, models = trained
    one = models[name]
    inputs = one.inputs(slice(0, 20))
    if one.name.startswith("categories") and "catboost" in str(type(one.model)):
        assert all(text for text in inputs["city"])
    body = json.dumps(records_of(inputs), ensure_ascii=False).encode()
    answer = requests.post(f"{server.url}/v2/models/{name}/generate", data=body)
    assert answer.status_code == 200, answer.text
    for key, wanted in one.answers(slice(0, 20)).items():
        values = np.array([row[key] for row in answer.json()])
        if wanted.dtype.kind in "OU":
            assert values.tolist() == wanted.tolist()
        else:
            assert values.astype(wanted.dtype).tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_16_clients_at_once_get_their_rows(trained):
    server, models = trained
    expected = {
        (name, row): one.answers(slice(row, row + 3))
        for name, one in models.items()
        for row in range(CLIENTS)
    }

    def client_of(row):
        url = server.url if row % 2 else f"grpc://{server.grpc}"
        with Client(url) as client:
            for name, one in models.items():
                answer = client.infer(name, one.inputs(slice(row, row + 3)))
                assert_same(answer, expected[name, row])

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client_of, range(CLIENTS)))
