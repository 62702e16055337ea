"""A table from Python: `nightshift.Client.map` asks a model of each row, and computes only rows that changed.

The service's demo model can do one thing, numbers in words, so the column that comes back is an amount in
words; with a model of yours it is whatever the prompt asks for. A pandas DataFrame with an index of its own
is mapped under a name, taken up again by that name as another process would, then mapped with 3 % of its
amounts changed. Checked: every answer, that the frame is otherwise as it was, that the same call begins no
second job, and that the changed frame has reused exactly the rows that did not change.
"""

from pathlib import Path
from random import Random

import pandas

import nightshift
from examples.harness.example import Example, main
from examples.harness.service import Service
from nightshift.cli.demo import DEMO_MODEL_ID, LARGEST_NUMBER, demo_model_path, is_held_out, number_in_words
from nightshift.client import MapResult

ROWS = 400
CHANGED = ROWS * 3 // 100
ACCURACY_MIN = 0.99  # what the model's card states
NAME = "amounts"


def models(_: Path) -> list[Path]:
    return [demo_model_path()]


def check(service: Service, _: Path) -> list[str]:
    random = Random(1)
    unseen = [number for number in range(LARGEST_NUMBER + 1) if is_held_out(number)]
    amounts = random.sample(unseen, ROWS + CHANGED)  # all different, so that no two rows share an answer
    frame = pandas.DataFrame({"invoice": range(ROWS), "amount": amounts[:ROWS]})
    frame.index = pandas.Index([f"line {row}" for row in range(ROWS)])
    changed = frame.assign(amount=amounts[ROWS:] + amounts[CHANGED:ROWS])

    with nightshift.Client(service.base_url, service.api_key) as client:
        first = _mapped(client, frame)
        attached = client.attach(NAME).result(frame)
        again, second = _mapped(client, frame), _mapped(client, changed)

    problems = _wrong("first", first, frame) + _wrong("changed", second, changed)
    if not first.data.equals(attached.data):
        problems.append("attaching by the name gave other answers")
    if again.job.id != first.job.id:
        problems.append("the same call began a second job")
    reused = second.job.data["rows_reused"]
    print(f"changed: {reused} rows reused, {ROWS - reused} computed", flush=True)
    if reused != ROWS - CHANGED:
        problems.append(f"{reused} rows reused where {ROWS - CHANGED} had not changed")
    return problems


def _mapped(client: nightshift.Client, frame: pandas.DataFrame) -> MapResult:
    return client.map(frame, "{{amount}}", model=DEMO_MODEL_ID, key="invoice", name=NAME)


def _wrong(what: str, result: MapResult, frame: pandas.DataFrame) -> list[str]:
    answers = zip(result.data["answer"], frame["amount"], strict=True)
    right = sum(answer == number_in_words(amount) for answer, amount in answers)
    print(f"{what}: {right} of {ROWS} amounts right", flush=True)
    problems = [f"{what}: row {row.key} failed: {row.message}" for row in result.failed]
    if right / ROWS < ACCURACY_MIN:
        problems.append(f"{what}: {right} of {ROWS} answers right, less than {ACCURACY_MIN:.0%}")
    if not result.data.drop(columns="answer").equals(frame):
        problems.append(f"{what}: the frame is not as it was beside its answers")
    return problems


EXAMPLE = Example("table", "a table from Python: only rows that have changed are computed", models, check)

if __name__ == "__main__":
    main(EXAMPLE)
