"""Prints the time of one request by stage, by Python's functions, and by torch's operators.

    python ask.py [URL]

The first is in every answer. The other two are profiles of the request itself, for a server with --debug.
"""

import argparse
import json
import urllib.request
from email.message import Message
from typing import Any

TEXT = "the quick brown fox jumps over the lazy dog " * 20


def infer(url: str, **parameters: str) -> tuple[Message, dict[str, Any]]:
    """Return the head and the document of an answer."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/words/infer", body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.headers, json.load(answer)


def main() -> None:
    """Ask three times, and print what each answer says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    head, _ = infer(url)
    print("Server-Timing:", head["Server-Timing"])
    for kind in ("python", "torch"):
        _, document = infer(url, profile=kind)
        found = document.get("parameters", {}).get("profile")
        print(f"\n{kind}:", found or "no profile: the server runs without --debug", sep="\n")


if __name__ == "__main__":
    main()
