"""The small interpreter for Postman collections, against a server of a few lines."""

import json
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.paths import ROOT

PROGRAM = ROOT / "tests/foreign/postman_program.py"


class Answers(BaseHTTPRequestHandler):
    """Answers a prediction with JSON and everything else with 404."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert "Content-Type" not in self.headers
        known = self.path == "/predictions/cats" and body == b"picture"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b'{"tabby": 1.0}' if known else b"nothing here")

    do_DELETE = do_POST

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def item(name, method, url, *script, body=None):
    test = {"listen": "test", "script": {"exec": list(script)}}
    return {
        "name": name,
        "request": {"method": method, "url": {"raw": url}, "body": body},
        "event": [test],
    }


def test_statuses_patterns_and_forms_are_checked(tmp_path, port):
    (tmp_path / "cat.jpg").write_bytes(b"picture")
    file = {"mode": "file", "file": {"src": "{{file}}"}}
    predict = "{{protocol}}://{{hostname}}:{{pred-port}}/predictions/{{model_name}}"
    collection = {
        "item": [
            item(
                "Predict",
                *("POST", predict, "pm.expect(pm.response.code).to.be.oneOf([200]);"),
                'pm.iterationData.get("expected")',
                body=file,
            ),
            {
                "item": [
                    item("Pattern", "POST", predict, "new RegExp('ta\\\\w+')", body=file),
                    item("Remove", "DELETE", predict, "pm.response.to.have.status(202);"),
                ]
            },
        ]
    }
    (tmp_path / "collection.json").write_text(json.dumps(collection))
    values = {"protocol": "http", "hostname": "{{host}}", "host": "127.0.0.1", "pred-port": "1"}
    (tmp_path / "environment.json").write_text(
        json.dumps({"values": [{"key": key, "value": value} for key, value in values.items()]})
    )
    shared = {"file": "cat.jpg", "content-type": "application/json"}
    rows = [
        {"model_name": "cats", "validator": "image_classification", "expected": {"x": 1}, **shared},
        {"model_name": "dogs", "expected": {}, **shared},
        {"model_name": "left-out", **shared},
    ]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    command = [sys.executable, str(PROGRAM), "collection.json", "-e", "environment.json"]
    command += ["-d", "data.json", "--rows", "cats,dogs", "--set", f"pred-port={port}"]
    subprocess.run([*command, "--junitxml=report.xml"], cwd=tmp_path, check=True, timeout=60)
    cases = ET.parse(tmp_path / "report.xml").getroot().iter("testcase")
    found = {}
    for case in cases:
        failure = case.find("failure")
        found[case.get("name")] = "" if failure is None else failure.get("message")
    assert found == {
        "Predict cats": "",
        "Pattern cats": "",
        "Remove cats": "status 404 instead of [202]: nothing here",
        "Predict dogs": "status 404 instead of [200]: nothing here",
        "Pattern dogs": r"nothing matches ta\\w+",
        "Remove dogs": "status 404 instead of [202]: nothing here",
    }
