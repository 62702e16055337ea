"""A real Prometheus, which scrapes `nightshift up` at work, answers the queries of dashboards and alerts."""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
import yaml

from infra.grafana.catalogue import DASHBOARDS
from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from tests.e2e.service import Service, batch_lines, ended_batch, forked, submit_batch
from tests.helpers.prometheus import RULES, Prometheus, prometheus
from tests.helpers.promql import metric_names
from tests.helpers.receiver import receiver, says
from tests.helpers.waiting import wait_for
from tests.unit.engine.tiny.encoders import declare_modules, save_checkpoint, tiny_bert

WAIT_MAX_S = 120.0
ROWS = 100
DATA_WITHIN_S = 10.0  # it is scraped and evaluated twice a second
# As soon as a model's pace is known; figures of the whole service are recorded every 15 s.
SLACK = "nightshift_deadline_slack_seconds"
ALERTS = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
_COMPARISON = re.compile(r"(\{[^}]*\})|(==|!=|<=|>=|<|>)")


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scraped from the start, and through some work of every kind."""
    folder = tmp_path_factory.mktemp("monitored")
    embedder = save_checkpoint(folder / "embedder", tiny_bert())
    declare_modules(embedder, {"pooling_mode": "mean"}, "Transformer", "Pooling", "Normalize")
    models = ("--model", str(demo_model_path()), "--lazy-model", str(embedder))
    with forked(
        folder / "data",
        *models,
        WEBHOOK_ALLOW_CIDRS="127.0.0.0/8",
        WEBHOOK_PORTS="1-65535",
        FILE_ROOTS=str(folder),
        WORKER_PRICE_PER_HOUR_ON_DEMAND="2",
    ) as service:
        port = int(service.base_url.removesuffix("/v1").rpartition(":")[2])
        with prometheus(folder / "prometheus", {"nightshift": port}, RULES.read_text()) as server:
            submit_what_waits(service, folder)
            work(service)
            # A series that begins with its first event has no rate before its second.
            for metric in ("nightshift_time_to_first_token_seconds_count", "nightshift_batch_size_count"):
                wait_for_data(server, metric)
            wait_for_data(server, 'nightshift_queue_seconds_count{class!="interactive"}')
            work(service)
            # Only of an engine that is busy for a fifth of the time: on a quick machine with more rows.
            rows = (ROWS << doubled for doubled in count())
            wait_for("the model's pace", lambda: server.query(SLACK) or work(service, next(rows)), WAIT_MAX_S)
            yield server


def submit_what_waits(service: Service, folder: Path) -> None:
    """A job for spot workers, of which there is none."""
    (folder / "numbers.jsonl").write_bytes(batch_lines(range(10)))
    with service.http() as http:
        places = {"input": (folder / "numbers.jsonl").as_uri(), "output": (folder / "out").as_uri()}
        body = {"endpoint": "/v1/chat/completions", "capacity": "spot", **places}
        http.post("/jobs", json=body).raise_for_status()


def work(service: Service, rows: int = ROWS) -> None:
    """Chats, an embedding, a batch, a webhook."""
    with service.openai() as client:
        batch_id = submit_batch(client, range(rows))
        for number in range(5):
            client.chat.completions.create(
                model=DEMO_MODEL_ID, messages=[{"role": "user", "content": str(number)}], temperature=0
            )
        client.embeddings.create(model="embedder", input=["w1 w2", "w3"])
    assert ended_batch(service, batch_id).status == "completed"
    with receiver(says(200)) as hooks, service.http() as http:
        body = {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "1"}]}
        hook = {"url": hooks.numeric_url}
        job = {"endpoint": "/v1/chat/completions", "body": body, "webhook": hook}
        http.post("/jobs", json=job).raise_for_status()
        wait_for("the webhook", lambda: hooks.requests, WAIT_MAX_S)


def in_prometheus(expression: str) -> str:
    """The expression with Grafana's variables filled in: all models, five minutes."""
    return expression.replace("$__rate_interval", "5m").replace("$model", ".*")


def compared(expression: str) -> str:
    """An alert's expression whose comparisons answer 0 or 1, instead of nothing while all is well."""
    return _COMPARISON.sub(lambda match: match[1] or f"{match[2]} bool", expression)


def wait_for_data(monitored: Prometheus, expression: str) -> None:
    if "nightshift_upstream_" in expression:
        pytest.skip("its metrics are those of upstreams, and there are none here")
    wait_for(f"data of {expression}", lambda: monitored.query(expression), DATA_WITHIN_S)


PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard.panels]
NEEDS_GPU = {query.expr: panel.needs_gpu for panel in PANELS for query in panel.queries}


@pytest.mark.parametrize("expression", sorted(NEEDS_GPU))
def test_a_dashboards_expression_has_data(monitored: Prometheus, expression: str) -> None:
    if NEEDS_GPU[expression] and not torch.cuda.is_available():
        pytest.skip("its metrics are those of a GPU, and there is none here")
    wait_for_data(monitored, in_prometheus(expression))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alerts_expression_has_data_and_so_has_each_of_its_metrics(
    monitored: Prometheus, name: str
) -> None:
    expression = ALERTS[name]
    wait_for_data(monitored, compared(expression))
    for metric in metric_names(expression):
        wait_for_data(monitored, f"last_over_time({metric}[5m])")


def test_nothing_fires_while_all_is_well(monitored: Prometheus) -> None:
    assert monitored.firing() == {}


def test_comparisons_answer_whether_they_hold() -> None:
    assert compared('a{b=~"x>y"} >= 3 and c == 0') == 'a{b=~"x>y"} >= bool 3 and c == bool 0'
