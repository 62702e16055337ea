#!/usr/bin/env bash
# A nightly run for cron. Safe to start twice: the same name and date is the same job.
#
#   0 1 * * *  NIGHTSHIFT_API_KEY=… /srv/nightshift/examples/orchestrators/nightly.sh s3://docs/new/*.parquet s3://docs/vectors/
#
# MODEL is the model's id (`GET /v1/models`), ENDPOINT the endpoint that it serves (chat, embeddings, …),
# COLUMN the input's column with the text, FORMAT that of the output (jsonl or parquet).
set -euo pipefail
PATH="$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin:$PATH"  # cron's has no `nightshift`

input=${1:?usage: nightly.sh INPUT OUTPUT}
parent=${2:?usage: nightly.sh INPUT OUTPUT}
model=${MODEL:-all-MiniLM-L6-v2}
endpoint=${ENDPOINT:-embeddings}
column=${COLUMN:-text}

# One run, and one output folder, per day.
day=$(date +%F)
output=${parent%/}/$day/
code=0
nightshift run "$input" --output "$output" --name nightly --date "$day" --wait \
  --endpoint "$endpoint" --model "$model" --input-column "$column" --format "${FORMAT:-parquet}" \
  --priority background --window 8h || code=$?

case $code in
  0) ;;
  3) echo "nightly: some rows failed; their error lines are in $output" >&2 ;;
  7) echo "nightly: the window has ended; the job goes on in the next one" >&2 ;;
  4 | 5 | 6) echo "nightly: the job did not finish (exit code $code); finished rows, if any, are in $output" >&2 ;;
  *) echo "nightly: could not run (exit code $code)" >&2 ;;
esac
exit "$code"
