"""Alert rules, the dashboard and Prometheus' settings. tests/integration/deploy checks the metrics' names."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.unit.deploy.packages import DEPLOY, need
from tests.unit.deploy.promql import expressions, rules

OBSERVABILITY = DEPLOY / "observability"
ROOT = DEPLOY.parent


@pytest.mark.parametrize("text", [text for _, text in expressions()])
def test_every_expression_is_PromQL(text):
    need("promql_parser")
    import promql_parser

    promql_parser.parse(text)


def test_the_rules_have_the_form_that_Prometheus_reads():
    names = []
    for rule in rules():
        if "record" in rule:
            assert set(rule) == {"record", "expr"}
            assert re.fullmatch(r"[a-z_]+(:[a-z0-9_]+)+", rule["record"])
            continue
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "runbook"}
        names.append(rule["alert"])
    assert len(set(names)) == len(names) > 8


def test_every_alert_leads_to_a_runbook():
    text = (ROOT / "docs/runbooks.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for rule in rules():
        if "alert" in rule:
            page, anchor = rule["annotations"]["runbook"].split("#")
            assert page == "docs/runbooks.md"
            assert anchor in anchors, rule["alert"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_rules():
    for command in (
        ["check", "rules", "ksrv.rules.yaml"],
        ["test", "rules", "ksrv.rules.test.yaml"],
    ):
        subprocess.run(["promtool", *command], cwd=OBSERVABILITY, check=True, timeout=120)


def test_rule_tests_name_existing_rules():
    told = yaml.safe_load((OBSERVABILITY / "ksrv.rules.test.yaml").read_text())
    names = {rule.get("alert") for rule in rules()}
    for one in told["tests"]:
        assert {case["alertname"] for case in one["alert_rule_test"]} <= names


def test_dashboard_is_valid_for_grafana():
    board = json.loads((OBSERVABILITY / "ksrv.dashboard.json").read_text())
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    source = yaml.safe_load((DEPLOY / "compose/grafana/datasource.yaml").read_text())
    used = {panel["datasource"]["uid"] for panel in board["panels"] if "datasource" in panel}
    assert used == {source["datasources"][0]["uid"]}
    variables = {one["name"] for one in board["templating"]["list"]}
    for text in re.findall(r"\$(\w+)", json.dumps(board)):
        assert text in variables | {"__rate_interval", "__all"}


def test_Prometheus_scrapes_the_server_of_the_compose_file_and_reads_the_rules():
    told = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    [job] = told["scrape_configs"]
    assert job["job_name"] == "ksrv"
    assert job["static_configs"] == [{"targets": ["ksrv:8080"]}]
    mounted = [volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]]
    for name in (*told["rule_files"], "prometheus.yaml"):
        assert f"/etc/prometheus/{name}" in mounted
    board = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    folder = yaml.safe_load((DEPLOY / "compose/grafana/dashboards.yaml").read_text())
    assert f"{folder['providers'][0]['options']['path']}/ksrv.json" in board
