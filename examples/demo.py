"""Runs the whole service once and checks every answer: what `make demo` runs.

Starts `nightshift up` in a directory of its own, uploads 500 numbers the demo model was never trained on as
an OpenAI batch, asks some in chats while the batch runs, compares every answer with the truth and stops the
service. Everything goes through the official `openai` client. Ends with 0 only if no row is missing and the
answers are as good as the model's card says.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
from openai.types import Batch

from examples.harness.service import running
from nightshift.cli.demo import DEMO_MODEL_ID, LARGEST_NUMBER, is_held_out, number_in_words

ACCURACY_MIN = 0.99  # what the model's card states
CHATS = 8
OUTPUT_TOKENS_MAX = 64  # the longest number takes fewer
POLL_S = 0.25
RESULTS = Path(".demo")


@dataclass(frozen=True)
class ChatAnswer:
    number: int
    text: str
    first_token_s: float
    total_s: float

    @property
    def is_right(self) -> bool:
        return self.text == number_in_words(self.number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500, help="rows in the batch (default 500)")
    parser.add_argument("--seed", type=int, default=48213, help="which numbers are drawn (default 48213)")
    options = parser.parse_args()
    numbers = held_out_numbers(options.rows + CHATS, options.seed)
    batch_numbers, chat_numbers = numbers[: options.rows], numbers[options.rows :]

    with tempfile.TemporaryDirectory(prefix="nightshift-demo-") as directory:
        print("starting nightshift up (API, scheduler, worker, Valkey, SQLite) …", flush=True)
        started_s = time.monotonic()
        with running(Path(directory), logs=RESULTS / "logs") as service:
            print(f"ready after {time.monotonic() - started_s:.1f} s at {service.base_url}", flush=True)
            client = openai.OpenAI(base_url=service.base_url, api_key=service.api_key)
            problems = exercise(client, batch_numbers, chat_numbers)
        exit_code = service.process.returncode
        print(f"stopped cleanly (exit code {exit_code})" if exit_code == 0 else f"exit code {exit_code}")
        if exit_code != 0:
            problems.append(f"nightshift up ended with {exit_code}")
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    print("demo FAILED" if problems else "demo passed")
    return 1 if problems else 0


def held_out_numbers(count: int, seed: int) -> list[int]:
    """Distinct numbers that the model was not trained on, determined by the seed."""
    candidates = [n for n in range(LARGEST_NUMBER + 1) if is_held_out(n)]
    return random.Random(seed).sample(candidates, count)


def exercise(client: openai.OpenAI, batch_numbers: Sequence[int], chat_numbers: Sequence[int]) -> list[str]:
    """Runs the batch and some chats beside it. Returns the problems found."""
    uploaded = client.files.create(file=("numbers.jsonl", batch_lines(batch_numbers)), purpose="batch")
    submitted_s = time.monotonic()
    batch = client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    print(f"submitted {batch.id}: {len(batch_numbers)} rows; asking {CHATS} chats meanwhile", flush=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        answers = [
            pool.submit(stream if position == 0 else chat, client, number)
            for position, number in enumerate(chat_numbers)
        ]
        batch = follow(client, batch)
        elapsed_s = time.monotonic() - submitted_s
        chats = [answer.result() for answer in answers]
    return report_batch(client, batch, batch_numbers, elapsed_s) + report_chats(chats)


def batch_lines(numbers: Sequence[int]) -> bytes:
    """The batch's input file."""
    requests = (
        {
            "custom_id": f"number-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": DEMO_MODEL_ID,
                "messages": [{"role": "user", "content": str(number)}],
                "max_tokens": OUTPUT_TOKENS_MAX,
                "temperature": 0,
            },
        }
        for number in numbers
    )
    return "".join(json.dumps(request) + "\n" for request in requests).encode()


def follow(client: openai.OpenAI, batch: Batch) -> Batch:
    """Waits for the batch: a progress bar on a terminal, some lines in a pipe."""
    with progress() as show:
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(POLL_S)
            batch = client.batches.retrieve(batch.id)
            counts = batch.request_counts
            show(
                batch.status, counts.completed + counts.failed if counts else 0, counts.total if counts else 0
            )
    return batch


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (status, rows done, rows in all)."""
    if not sys.stdout.isatty():
        last_tenth = -1

        def line(status: str, done: int, total: int) -> None:
            nonlocal last_tenth
            tenth = 10 * done // total if total else 0
            if tenth != last_tenth:
                last_tenth = tenth
                print(f"  {status}: {done}/{total} rows", flush=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        bar = bars.add_task("validating", total=None)
        yield lambda status, done, total: bars.update(
            bar, description=status, completed=done, total=total or None
        )


def chat(client: openai.OpenAI, number: int) -> ChatAnswer:
    """One question, answered whole."""
    asked_s = time.monotonic()
    answer = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=[{"role": "user", "content": str(number)}], temperature=0
    )
    took_s = time.monotonic() - asked_s
    return ChatAnswer(number, answer.choices[0].message.content or "", took_s, took_s)


def stream(client: openai.OpenAI, number: int) -> ChatAnswer:
    """One question, answered token by token."""
    asked_s = time.monotonic()
    first_s: float | None = None
    text = ""
    for chunk in client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=[{"role": "user", "content": str(number)}], temperature=0, stream=True
    ):
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.monotonic() - asked_s
            text += chunk.choices[0].delta.content
    total_s = time.monotonic() - asked_s
    return ChatAnswer(number, text, first_s or total_s, total_s)


def report_batch(client: openai.OpenAI, batch: Batch, numbers: Sequence[int], elapsed_s: float) -> list[str]:
    """Checks every row of the batch against the truth."""
    if batch.status != "completed" or batch.output_file_id is None:
        return [f"the batch ended as {batch.status}: {batch.errors}"]
    RESULTS.mkdir(exist_ok=True)
    output = RESULTS / "output.jsonl"
    client.files.content(batch.output_file_id).write_to_file(output)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines
    }
    expected = {f"number-{number}": number_in_words(number) for number in numbers}
    right = sum(answers.get(custom_id) == words for custom_id, words in expected.items())
    accuracy = right / len(expected)
    tokens = batch.usage.output_tokens if batch.usage else 0
    print(f"batch: {right} of {len(expected)} answers right ({accuracy:.1%})")
    pace = f"{len(expected) / elapsed_s:.1f} rows/s, {tokens / elapsed_s:.0f} output tokens/s"
    print(f"       {pace}, from submission to results in {elapsed_s:.1f} s")
    print(
        f"       results in {output}, for example {lines[0]['custom_id']} → {answers[lines[0]['custom_id']]}"
    )

    problems = []
    if len(lines) != len(expected) or answers.keys() != expected.keys():
        problems.append(f"{len(lines)} result lines for {len(expected)} rows, {len(answers)} different ids")
    if batch.error_file_id is not None:
        problems.append(f"rows failed: {client.files.content(batch.error_file_id).text[:500]}")
    if accuracy < ACCURACY_MIN:
        problems.append(f"accuracy {accuracy:.1%} is below the {ACCURACY_MIN:.0%} the model's card states")
    return problems


def report_chats(chats: Sequence[ChatAnswer]) -> list[str]:
    """Checks the online answers. One of eight may be wrong: the model is right in 99 of 100, not in all."""
    right = sum(answer.is_right for answer in chats)
    slowest_s = max(answer.total_s for answer in chats)
    streamed = chats[0]
    print(f"chats: {right} of {len(chats)} right while the batch ran, the slowest after {slowest_s:.2f} s")
    print(
        f"       streamed: first token after {streamed.first_token_s:.2f} s, "
        f"all after {streamed.total_s:.2f} s: {streamed.number} → {streamed.text}"
    )
    return [f"only {right} of {len(chats)} chats were right"] if right < len(chats) - 1 else []


if __name__ == "__main__":
    sys.exit(main())
