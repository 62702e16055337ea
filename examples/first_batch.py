"""A batch and a chat through OpenAI's own client, unmodified: what README.md shows.

The service has to run (`make up`).
"""

import os
import time
from pathlib import Path

from openai import OpenAI

url = os.environ.get("NIGHTSHIFT_BASE_URL", "http://127.0.0.1:8000")
data = Path(os.environ.get("NIGHTSHIFT_DATA_DIR", Path.home() / ".nightshift"))
key = os.environ.get("NIGHTSHIFT_API_KEY") or (data / "api_key").read_text()
client = OpenAI(base_url=f"{url}/v1", api_key=key)

row = (
    '{"custom_id": "%d", "method": "POST", "url": "/v1/chat/completions", "body":'
    ' {"model": "demo_model", "messages": [{"role": "user", "content": "%d"}]}}\n'
)
rows = "".join(row % (n, n) for n in range(1000, 1100)).encode()
file = client.files.create(file=("rows.jsonl", rows), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

answer = client.chat.completions.create(  # meanwhile, on the same engine
    model="demo_model", messages=[{"role": "user", "content": "48213"}]
)
print(answer.choices[0].message.content)

while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
print(batch.status, batch.request_counts, batch.errors or "")
for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):  # the good rows, the others
    print(client.files.content(file_id).text)
