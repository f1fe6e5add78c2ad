"""Has Triton's clients send the token of the file `tokens`: without it, ksrv registers no shared memory over TCP."""

from pathlib import Path

from tritonclient._client import InferenceServerClientBase

TOKEN = Path(__file__).with_name("tokens").read_text().strip()


def add_token(client, request):
    """Add the token to the headers of a request, in the place of a plugin."""
    request.headers["authorization"] = f"Bearer {TOKEN}"
    if client.plugin() is not None:
        client.plugin()(request)


InferenceServerClientBase._call_plugin = add_token
