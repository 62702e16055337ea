"""A nightly run as a DAG of Airflow, which finds its job again after a restart of Airflow or of the task.

The job is named by the DAG and dated by the run's local day: the same name and date is the same job. Where
the task ends early, the job goes on; the retry says that it is the same job, and waits for its end. The
provider's own operator (OpenAITriggerBatchOperator) runs unchanged, too, but its retry is a second batch.

It needs apache-airflow-providers-standard, and on the workers' PATH `nightshift` in an environment of its
own, whose packages are not Airflow's. NIGHTSHIFT_BASE_URL and NIGHTSHIFT_API_KEY are in the workers'
environment.
"""

from datetime import timedelta

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

RUN = """
exec nightshift run "$INPUT" --output "${OUTPUT%/}/$DAY/" --name "$NAME" --date "$DAY" --wait \
  --endpoint chat --model "$MODEL" --input-column text --format parquet --priority background --window 8h
"""

with DAG(
    "nightly_summaries",
    schedule="0 1 * * *",  # in the zone of the start
    start_date=pendulum.datetime(2026, 11, 1, tz="Europe/Berlin"),
    catchup=False,
    max_active_runs=1,
    params={"input": "s3://docs/new/*.parquet", "output": "s3://docs/summaries/", "model": "summaries"},
):
    BashOperator(
        task_id="run",
        bash_command=RUN,
        env={
            "NAME": "{{ dag.dag_id }}",
            # `ds` is the day in UTC, which at one o'clock in Berlin is the day before.
            "DAY": "{{ logical_date.in_timezone(dag.timezone) | ds }}",
            "INPUT": "{{ params.input }}",
            "OUTPUT": "{{ params.output }}",
            "MODEL": "{{ params.model }}",
        },
        append_env=True,
        retries=20,
        retry_delay=timedelta(minutes=1),
    )
