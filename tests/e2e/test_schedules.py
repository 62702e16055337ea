"""A plan runs by itself: the scheduler's process starts it, workers run its rows, and the history says so."""

import json

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import JOB_TIMEOUT_S, Service
from tests.helpers.waiting import wait_for


def test_a_run_of_a_plan_writes_the_nights_output(service: Service, workplace, numbers):
    (workplace / "nightly.jsonl").write_text("".join(f'{{"figure": "{one}"}}\n' for one in numbers[:5]))
    plan = {
        "cron": "30 1 * * *",
        "time_zone": "Europe/Berlin",
        "job": {
            "endpoint": "/v1/chat/completions",
            "input": (workplace / "nightly.jsonl").as_uri(),
            "output": f"{workplace.as_uri()}/nightly/{{{{date}}}}/",
            "template": {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "{{figure}}"}]},
        },
    }
    with service.http() as http:
        applied = http.put("/schedules/scheduled", json=plan)
        assert applied.status_code == 200, applied.text
        run = http.post("/schedules/scheduled/run").json()

        def ended() -> bool:
            [known] = http.get("/schedules/scheduled/runs").json()["data"]
            run.update(known)
            return run["state"] not in ("waiting", "submitted")

        wait_for("the run has ended", ended, JOB_TIMEOUT_S, said=lambda: str(run))
        job = http.get(f"/jobs/{run['job_id']}").json()
        http.delete("/schedules/scheduled")

    assert run["state"] == "succeeded", run
    assert (job["name"], job["date"]) == ("scheduled", run["local_date"])
    manifest = json.loads((workplace / "nightly" / run["local_date"] / "_manifest.json").read_text())
    assert manifest["job_id"] == run["job_id"]
