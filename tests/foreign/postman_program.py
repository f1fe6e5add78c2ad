"""Sends the requests of a Postman collection and looks at the statuses that its tests name.

    python postman_program.py COLLECTION -e ENVIRONMENT [-d DATA] [--set NAME=VALUE] [--rows NAME,NAME] --junitxml=REPORT

The scripts of the tests are JavaScript. It reads only `to.be.oneOf([...])`, `to.have.status(N)`, `to.match(pattern)` and
the `status_code` of a row. Answers of models with known weights are not compared, but an answer with a JSON
content type has to be JSON. A repeated name of a request gets a number. It runs in the folder of the checkout that the paths of files begin in.
"""

import argparse
import http.client
import json
import re
import ssl
import sys
import urllib.parse
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

VARIABLE = re.compile(r"\{\{([^}]+)\}\}")
TIMEOUT_S = 300.0  # an archive that is registered imports torch
UNVERIFIED = ssl._create_unverified_context()  # newman runs these collections with --insecure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("collection", type=Path)
    parser.add_argument("-e", dest="environment", type=Path, required=True)
    parser.add_argument("-d", dest="data", type=Path)
    parser.add_argument("--set", dest="given", action="append", default=[])
    parser.add_argument("--rows", default="")
    parser.add_argument("--junitxml", type=Path, required=True)
    given, _ = parser.parse_known_args()
    variables = {
        one["key"]: one["value"] for one in json.loads(given.environment.read_text())["values"]
    }
    variables |= dict(one.split("=", 1) for one in given.given)
    rows = json.loads(given.data.read_text()) if given.data else [{}]
    if given.rows:
        rows = [row for row in rows if row["model_name"] in given.rows.split(",")]
    report = ET.Element("testsuite")
    seen = Counter()
    for row in rows:
        for item in items(json.loads(given.collection.read_text())):
            of_row = row.get("test") or row.get("model_name", "")
            name = " ".join(part for part in (item["name"], of_row) if part)
            seen[name] += 1
            if seen[name] > 1:
                name += f" {seen[name]}"
            case = ET.SubElement(report, "testcase", classname="", name=name)
            problem = send(item, variables | row, row)
            print(f"{name}: {problem or 'as expected'}")
            if problem:
                ET.SubElement(case, "failure", message=problem)
    ET.ElementTree(report).write(given.junitxml)


def items(collection):
    """Yield the requests of a collection and of the folders in it."""
    for item in collection["item"]:
        if "item" in item:
            yield from items(item)
        else:
            yield item


def filled(text, variables):
    """Return a text with its variables, and the variables in those."""
    while VARIABLE.search(text):
        text = VARIABLE.sub(lambda found: str(variables[found[1]]), text)
    return text


def send(item, variables, row):
    """Send a request; return what its tests find wrong, or an empty text."""
    asked = item["request"]
    url = asked["url"]
    if not isinstance(url, str):
        path = "/".join(url.get("path", []))
        url = url["raw"] if path in url["raw"] else f"{url['raw']}/{path}"
    body = None
    if (asked.get("body") or {}).get("mode") == "file":
        body = Path(filled(asked["body"]["file"]["src"], variables)).read_bytes()
    elif (asked.get("body") or {}).get("mode") == "raw":
        body = filled(asked["body"]["raw"], variables).encode()
    headers = {one["key"]: filled(one["value"], variables) for one in asked.get("header") or []}
    try:
        status, text = ask(
            filled(asked["method"], variables).upper(), filled(url, variables), body, headers
        )
    except OSError as error:
        return f"{filled(url, variables)}: {error}"
    return wrong(item, row, status, text.decode(errors="replace"))


def ask(method, url, body, headers):
    """Send a request with only its headers, as newman does, and return status and body."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https":
        secured = {"timeout": TIMEOUT_S, "context": UNVERIFIED}
        connection = http.client.HTTPSConnection(parts.netloc, **secured)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wrong(item, row, status, text):
    """Return what the tests of an item find wrong with an answer."""
    scripts = [one["script"]["exec"] for one in item.get("event", []) if one["listen"] == "test"]
    script = "\n".join(line for lines in scripts for line in lines)
    for statuses in re.findall(r"oneOf\(\[([\d, ]+)\]\)|have\.status\((\d+)\)", script):
        expected = [int(one) for part in statuses if part for one in part.split(",")]
        if status not in expected:
            return f"status {status} instead of {expected}: {text[:200]}"
    if 'iterationData.get("status_code")' in script:
        expected = row.get("status_code", 200)
        if status != expected:
            return f"status {status} instead of {expected}: {text[:200]}"
    for pattern in re.findall(r"new RegExp\('(.*)'\)", script):
        if not re.search(pattern.replace("\\\\", "\\"), text):
            return f"nothing matches {pattern}"
    if "iterationData" in script and row.get("content-type") == "application/json":
        try:
            answer = json.loads(text)
        except ValueError:
            return f"no JSON: {text[:200]}"
        if row.get("validator") == "image_classification" and len(answer) != len(row["expected"]):
            return f"{len(answer)} classes instead of {len(row['expected'])}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
