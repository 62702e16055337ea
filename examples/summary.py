"""The nightly summary: a folder is written up every night, and only what has changed is computed again.

The service's demo model can do one thing, numbers in words, so a line of the summary is an amount in words;
with a model of yours it is whatever its prompt asks for. A folder of CSV files, one a branch, runs under a
name and a date. The next night 3 % of the amounts have changed, and `--reuse latest` takes the other answers
from the night before. Checked: every row's answer, `_SUCCESS` and the manifest's counts of both nights, that
the second has reused exactly the rows that did not change, and that the same night started twice is one job.
"""

import csv
import sys
from pathlib import Path
from random import Random

from examples.harness.example import Example, main
from examples.harness.outputs import manifest_of, rows_of
from examples.harness.service import Service
from nightshift.cli.demo import DEMO_MODEL_ID, LARGEST_NUMBER, demo_model_path, is_held_out, number_in_words

BRANCHES = ("Bern", "Graz", "Lyon", "Oslo")
ROWS = 600
CHANGED = ROWS * 3 // 100
ACCURACY_MIN = 0.99  # what the model's card states
NIGHTS = ("2026-11-23", "2026-11-24")


def models(_: Path) -> list[Path]:
    return [demo_model_path()]


def check(service: Service, folder: Path) -> list[str]:
    random = Random(1)
    unseen = [number for number in range(LARGEST_NUMBER + 1) if is_held_out(number)]
    amounts = random.sample(unseen, ROWS + CHANGED)  # all different, so that no two rows share an answer
    first = {f"{BRANCHES[at % len(BRANCHES)]}-{at}": amount for at, amount in enumerate(amounts[:ROWS])}
    second = first | dict(zip(random.sample(list(first), CHANGED), amounts[ROWS:], strict=True))

    problems = _night(service, folder, NIGHTS[0], first, reused=0)
    problems += _night(service, folder, NIGHTS[1], second, "--reuse", "latest", reused=ROWS - CHANGED)
    print(f"{NIGHTS[1]} once more: the same job, not a second one", flush=True)
    before = manifest_of(folder / NIGHTS[1], rows=ROWS)
    _run(service, folder, NIGHTS[1], "--reuse", "latest")
    if manifest_of(folder / NIGHTS[1], rows=ROWS) != before:
        problems.append(f"starting {NIGHTS[1]} again has changed its output")
    return problems


def _night(
    service: Service, folder: Path, date: str, amounts: dict[str, int], *options: str, reused: int
) -> list[str]:
    for branch in BRANCHES:
        with (_inputs(folder) / f"{branch}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", "amount"])
            table.writerows(row for row in amounts.items() if row[0].startswith(branch))
    _run(service, folder, date, *options)

    rows = rows_of(folder / date, rows=ROWS)
    answers = {id: row["response"]["body"]["choices"][0]["message"]["content"] for id, row in rows.items()}
    right = sum(answers.get(id) == number_in_words(amount) for id, amount in amounts.items())
    counted = (manifest_of(folder / date, rows=ROWS).get("reused") or {}).get("rows", 0)
    print(f"{date}: {right} of {ROWS} amounts right, {counted} rows reused, {ROWS - counted} computed")
    problems = []
    if right / ROWS < ACCURACY_MIN:
        problems.append(f"{date}: {right} of {ROWS} answers right, less than {ACCURACY_MIN:.0%}")
    if counted != reused:
        problems.append(f"{date}: {counted} rows reused where {reused} had not changed")
    return problems


def _inputs(folder: Path) -> Path:
    inputs = folder / "branches"
    inputs.mkdir(exist_ok=True)
    return inputs


def _run(service: Service, folder: Path, date: str, *options: str) -> None:
    sys.stdout.flush()
    service.run(
        _inputs(folder),
        folder / date,
        *("--endpoint", "chat", "--model", DEMO_MODEL_ID, "--input-column", "amount", "--id-column", "id"),
        *("--name", "summary", "--date", date, "--priority", "background", *options),
    )


EXAMPLE = Example("summary", "the nightly summary: only rows that have changed are computed", models, check)

if __name__ == "__main__":
    main(EXAMPLE)
