"""Embeddings and reranking, asked for with the `openai` package and with the bodies of rerank clients."""

import base64
import importlib

import numpy as np
import pytest
import requests
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from ksrv.testing import Server
from tests.support.documents import blocks_of, check_model_yaml
from tests.support.model_files.onnx_models import KINDS, write_graph
from tests.support.paths import ROOT

WORDS = ["[UNK]", "red", "green", "blue", "car", "sky", "leaf"]
WEIGHTS = np.random.default_rng(5).normal(size=(len(WORDS), 6)).astype(np.float32)
RELEVANCE = np.arange(len(WORDS), dtype=np.float32)[:, None]

OWN = """
import numpy as np

def handle(batch, context):
    texts = [one.decode() for one in batch["text"].reshape(-1)]
    return {"vector": np.array([[len(text), 1] for text in texts], np.float32)}
"""


def write_encoder(folder, weights, settings, *, pooled=False):
    """Write an ONNX model that looks up a vector for each token, and its tokenizer."""
    ids = ("INT64", ("rows", "tokens"))
    nodes = [
        ("Gather", ["weights", "input_ids"], ["found"], {}),
        ("Cast", ["attention_mask"], ["mask"], {"to": KINDS["FP32"]}),
        ("Unsqueeze", ["mask", "axis"], ["wide"], {}),
        ("Mul", ["found", "wide"], ["masked" if pooled else "hidden"], {}),
    ]
    shape = ("rows", "tokens", weights.shape[1])
    if pooled:
        nodes.append(("ReduceSum", ["masked", "one"], ["hidden"], {"keepdims": 0}))
        shape = ("rows", 1)
    write_graph(
        folder / "model.onnx",
        nodes,
        {"input_ids": ids, "attention_mask": ids},
        {"hidden": ("FP32", shape)},
        {"weights": weights, "axis": np.array([2]), "one": np.array([1])},
    )
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.yaml").write_text(settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    common = "handler: text_encoder\nmodel: model.onnx\n"
    common += "batching: {max_batch_size: 4, max_delay_ms: 1}\n"
    write_encoder(root / "encoder", WEIGHTS, f"{common}role: embedding\nexecutor: process\n")
    for pooling in ("cls", "last"):
        parameters = f"role: embedding\nparameters: {{pooling: {pooling}, normalize: false}}\n"
        write_encoder(root / pooling, WEIGHTS, common + parameters)
    write_encoder(root / "ranker", RELEVANCE, f"{common}role: rerank\n", pooled=True)
    (root / "own").mkdir()
    (root / "own/handler.py").write_text(OWN)
    (root / "own/model.yaml").write_text(
        "handler: handler.py\nrole: embedding\n"
        "inputs: [{name: text, datatype: BYTES, shape: [-1, 1]}]\n"
        "outputs: [{name: vector, datatype: FP32, shape: [-1, 2]}]\n"
    )
    (root / "plain").mkdir()
    (root / "plain/handler.py").write_text("def inference(x):\n    return x\n")
    with Server([root]) as running:
        yield running


@pytest.fixture(scope="module")
def openai():
    """The package, which each process that collects the tests would import for a second."""
    return importlib.import_module("openai")


@pytest.fixture
def client(server, openai):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def vector(text):
    """Return the mean of a text's vectors, of length 1."""
    found = WEIGHTS[[WORDS.index(word) for word in text.split()]].mean(axis=0)
    return found / np.linalg.norm(found)


def test_texts_get_their_vectors(client):
    texts = ["red car", "blue", "green leaf leaf", "sky", "blue sky car red"]
    for options in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="encoder", input=texts, **options)
        for index, (entry, text) in enumerate(zip(answer.data, texts, strict=True)):
            assert entry.index == index
            np.testing.assert_allclose(entry.embedding, vector(text), rtol=1e-4, atol=1e-6)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 11
        assert answer.model == "encoder"


def test_one_text_and_token_ids(client):
    one = client.embeddings.create(model="encoder", input="red car").data[0].embedding
    ids = [WORDS.index("red"), WORDS.index("car")]
    for given in (ids, [ids]):
        found = client.embeddings.create(model="encoder", input=given)
        np.testing.assert_allclose(found.data[0].embedding, one, rtol=1e-5)
        assert found.usage.prompt_tokens == 2
    lists = client.embeddings.create(model="encoder", input=[[1], [2, 3], [4]])
    assert len(lists.data) == 3


def test_the_code_of_the_page_runs(server):
    found = {block.language: block.text for block in blocks_of(ROOT / "docs/openai.md")}
    check_model_yaml(found["yaml"])
    names = {}
    exec(found["python"].replace("http://127.0.0.1:8080", server.url), names)
    assert [len(one.embedding) for one in names["vectors"]] == [6, 6]


def test_fewer_dimensions_are_of_length_1_again(client, openai):
    found = client.embeddings.create(model="encoder", input="red", dimensions=3).data[0].embedding
    expected = vector("red")[:3]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-5)
    with pytest.raises(openai.BadRequestError, match="have 6 values"):
        client.embeddings.create(model="encoder", input="red", dimensions=7)


@pytest.mark.parametrize(("model", "token"), [("cls", "red"), ("last", "sky")])
def test_the_poolings(client, model, token):
    answer = client.embeddings.create(model=model, input=["red blue sky", "red car blue leaf sky"])
    for entry in answer.data:
        np.testing.assert_allclose(entry.embedding, WEIGHTS[WORDS.index(token)], rtol=1e-5)


def test_base64_is_the_bytes_of_floats(server):
    body = {"model": "own", "input": ["abc", "defgh"], "encoding_format": "base64"}
    answer = requests.post(f"{server.url}/v1/embeddings", json=body).json()
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]
    assert [row.tolist() for row in rows] == [[3, 1], [5, 1]]
    assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_documents_are_ordered_by_a_query(server):
    body = {
        "model": "ranker",
        "query": "red",
        "documents": ["green", {"text": "leaf"}, "other", "sky", "car", "blue"],
        "top_n": 3,
        "return_documents": True,
    }
    answer = requests.post(f"{server.url}/v1/rerank", json=body).json()
    assert [one["index"] for one in answer["results"]] == [1, 3, 4]
    assert answer["results"][0]["document"] == {"text": "leaf"}
    scores = [one["relevance_score"] for one in answer["results"]]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.array([7.0, 6.0, 5.0]))), rtol=1e-5)
    assert answer["usage"]["total_tokens"] == 12
    assert answer["id"] and answer["meta"]["api_version"]
    assert (
        "document"
        not in requests.post(
            f"{server.url}/v1/rerank", json=body | {"return_documents": False}
        ).json()["results"][0]
    )


def test_the_models_are_listed_for_openai_and_kserve(client, server):
    assert {"encoder", "ranker", "own", "plain"} <= {one.id for one in client.models.list()}
    assert client.models.retrieve("encoder").id == "encoder"
    assert "encoder" in requests.get(f"{server.url}/v1/models").json()["models"]


def test_chat_is_told_what_ksrv_is_for(client, openai):
    with pytest.raises(openai.NotFoundError, match="not chat models"):
        client.chat.completions.create(model="encoder", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
        client.completions.create(model="encoder", prompt="a")


def test_other_models_and_unknown_ones(client, openai):
    with pytest.raises(openai.NotFoundError, match="missing"):
        client.embeddings.create(model="missing", input="a")
    with pytest.raises(openai.BadRequestError, match="has no role"):
        client.embeddings.create(model="plain", input="a")
    with pytest.raises(openai.BadRequestError, match="has the role 'rerank'"):
        client.embeddings.create(model="ranker", input="a")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"model": "encoder"}, "missing required field `input`"),
        ({"model": "encoder", "input": []}, "from 1 to 2048"),
        ({"model": "encoder", "input": ""}, "empty text at 0"),
        ({"model": "encoder", "input": 3}, "Expected `str | array`, got `int` - at `$.input`"),
        ({"model": "encoder", "input": ["a", [1]]}, "has a list at 1"),
        ({"model": "encoder", "input": [["a"]]}, "no token ids at 0"),
        ({"model": "encoder", "input": [[1], [-1]]}, "no token ids at 1"),
        ({"model": "encoder", "input": ["a"] * 2049}, "from 1 to 2048"),
        (
            {"model": "encoder", "input": "a", "encoding_format": "hex"},
            "Invalid enum value 'hex' - at `$.encoding_format`",
        ),
        ({"model": "encoder", "input": "a", "dimensions": 0}, "at `$.dimensions`"),
        ({"model": "encoder", "input": "a", "dimensions": True}, "at `$.dimensions`"),
        ({"model": "own", "input": [1, 2]}, "takes texts, and 'input' has token ids"),
        ({"model": "", "input": "a"}, "at `$.model`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_with_a_request_for_embeddings(server, body, told):
    answer = requests.post(f"{server.url}/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert told in error["message"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"query": 3}, "at `$.query`"),
        ({"query": ""}, "empty text"),
        ({"documents": "a"}, "Expected `array`, got `str` - at `$.documents`"),
        ({"documents": []}, "length >= 1 - at `$.documents`"),
        ({"documents": ["a", {"body": "b"}]}, "field `text` - at `$.documents[1]`"),
        ({"documents": ["a"] * 2049}, "length <= 2048 - at `$.documents`"),
        ({"top_n": 0}, "at `$.top_n`"),
        ({"return_documents": "yes"}, "at `$.return_documents`"),
        ({"model": "encoder"}, "has the role 'embedding'"),
    ],
)
def test_what_is_wrong_with_a_request_to_rerank(server, changed, told):
    body = {"model": "ranker", "query": "red", "documents": ["a"]} | changed
    answer = requests.post(f"{server.url}/v1/rerank", json=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("ids", [[7], [2**31 - 1], [1, 7]])
def test_a_token_that_there_is_not_is_the_callers_mistake(server, ids):
    document = {"model": "encoder", "input": [ids, [1] * len(ids)]}
    answer = requests.post(f"{server.url}/v1/embeddings", json=document, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "'token_ids' has an id outside of 0 to 6" in answer.text


def test_no_more_of_a_text_is_read_than_its_tokens_may_need(server):
    """A tokenizer takes 200 times the memory of a text; 512 tokens need no more than 32,768 characters."""
    for blanks, tokens in ((32_000, 1), (33_000, 0)):
        document = {"model": "encoder", "input": " " * blanks + "red"}
        answer = requests.post(f"{server.url}/v1/embeddings", json=document, timeout=60)
        assert answer.json()["usage"]["prompt_tokens"] == tokens


def test_many_and_long_texts_are_more_than_a_queue_holds(server):
    """2048 texts are 512 batches of a model with a queue of 100; their JSON has 2 MB."""
    texts = [f"red car {number} " + "green " * 160 for number in range(2048)]
    document = {"model": "own", "input": texts}
    answer = requests.post(f"{server.url}/v1/embeddings", json=document, timeout=120)
    assert answer.status_code == 200, answer.text
    found = [one["embedding"] for one in answer.json()["data"]]
    assert found == [[len(text), 1] for text in texts]
    document["model"] = "encoder"
    answer = requests.post(f"{server.url}/v1/embeddings", json=document, timeout=120)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 2048


def test_a_body_beyond_the_bound_is_refused(server):
    """triton#8787."""
    document = {"model": "own", "input": "x" * (4 << 20)}
    answer = requests.post(f"{server.url}/v1/embeddings", json=document, timeout=60)
    assert answer.status_code == 413
    assert "a request for embeddings may have at most 4194304 bytes" in answer.text


def test_a_query_is_not_multiplied_by_documents_without_end(server):
    document = {"model": "ranker", "query": "red " * 20_000, "documents": ["sky"] * 2048}
    answer = requests.post(f"{server.url}/v1/rerank", json=document, timeout=60)
    assert answer.status_code == 413
    told = answer.json()["error"]["message"]
    assert told.startswith(
        "the query is read with each of the 2048 documents, which makes 163846144 characters"
    )


def test_bodies_that_are_no_json(server):
    for text in (b"", b"{", b"\xff", b"[" * 5000):
        answer = requests.post(f"{server.url}/v1/embeddings", data=text)
        assert answer.status_code == 400, text[:10]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert requests.get(f"{server.url}/v1/embeddings").status_code == 405
