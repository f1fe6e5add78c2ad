"""All PromQL expressions below deploy/, and the metrics in them."""

import json
import re

import yaml

from tests.unit.deploy.packages import DEPLOY

_NAME = re.compile(r"\bksrv_[a-z0-9_]+")


def rules():
    told = yaml.safe_load((DEPLOY / "observability/ksrv.rules.yaml").read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def expressions():
    """Return (place, expression) of every rule and panel, with Grafana's variables replaced."""
    found = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    board = json.loads((DEPLOY / "observability/ksrv.dashboard.json").read_text())
    for panel in board["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    found += [(one["name"], one["expr"]) for one in board["annotations"]["list"]]
    return [
        (where, re.sub(r"\$\w+", ".*", text.replace("$__rate_interval", "5m")))
        for where, text in found
    ]


def metric_names():
    """Return every ksrv metric that a file below deploy/observability uses, by place."""
    found = {}
    for where, text in expressions():
        for name in _NAME.findall(re.sub(r'"[^"]*"', "", text)):
            found.setdefault(name, where)
    adapter = yaml.safe_load((DEPLOY / "observability/prometheus-adapter.yaml").read_text())
    for rule in adapter["rules"]["custom"]:
        found.setdefault(_NAME.search(rule["seriesQuery"])[0], "prometheus-adapter")
    return found
