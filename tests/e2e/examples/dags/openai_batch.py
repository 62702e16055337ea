"""The OpenAI provider's batch operator as its guide shows it: once waiting, once deferred."""

from airflow.providers.openai.hooks.openai import OpenAIHook
from airflow.providers.openai.operators.openai import OpenAITriggerBatchOperator
from airflow.sdk import DAG, task

ENDPOINT = "/v1/chat/completions"


@task
def upload(path):
    return OpenAIHook().upload_file(path, purpose="batch").id


with DAG("openai_batch", schedule=None, params={"rows": "", "mark": ""}):
    file_id = upload("{{ params.rows }}")
    OpenAITriggerBatchOperator(
        task_id="waiting",
        file_id=file_id,
        endpoint=ENDPOINT,
        wait_seconds=0.1,
        metadata={"task": "waiting", "mark": "{{ params.mark }}"},
    )
    OpenAITriggerBatchOperator(
        task_id="deferred",
        file_id=file_id,
        endpoint=ENDPOINT,
        deferrable=True,
        poll_interval=0.1,
        metadata={"task": "deferred", "mark": "{{ params.mark }}"},
    )
