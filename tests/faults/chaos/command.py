"""Kill parts of the service at random while jobs run, again and again, and let the oracle judge every round.

    python -m tests.faults.chaos --kills 1000 --seed 7 --database postgresql --objects moto

What happens in a round is drawn from the seed and the round's number, and printed as it happens; how it
interleaves is the machine's business. Rounds that passed are noted in `--notes`, and the same command goes on
after the last of them, so that a long run may be cut into slices. A round that fails is printed with its seed
and number, and ends the run with 1.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final

from tests.faults.chaos.rounds import Round, Rounds
from tests.faults.chaos.schedule import Kind, Scene, schedule
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service
from tests.integration.servers import RAM_DISK

KILLS_PER_ROUND: Final = 40
SECONDS: Final = ("free_s", "recovery_s")


def scene_of(parts: Parts) -> Scene:
    return Scene(
        parts.workers, parts.schedulers, parts.proxies, parts.database == "postgresql", parts.upstreams
    )


def report(rounds: Sequence[Round]) -> str:
    """Returns a table of all rounds."""
    faults: Counter[str] = Counter()
    rows_redone: Counter[str] = Counter()
    for done in rounds:
        faults.update(done.faults)
        rows_redone.update(done.rows_redone or {})
    are_stamped = any(done.rows_redone is not None for done in rounds)
    rows, kills = sum(done.rows for done in rounds), sum(done.kills for done in rounds)
    took_s = sum(done.seconds for done in rounds)
    seeds = sorted({done.seed for done in rounds})
    lines = [
        f"seeds {seeds}, rounds {len(rounds)}, kills {kills}, {took_s / max(kills, 1):.1f} s each",
        f"jobs {sum(done.jobs for done in rounds)}, rows {rows}: lost 0, doubled 0, changed 0; "
        f"taken for poison and dead_lettered {sum(done.dead_lettered for done in rounds)}",
        f"finished twice {rows_redone.total() if are_stamped else 'unknown'} rows, generated twice "
        f"{sum(done.tokens_redone for done in rounds)} tokens, most leases of a shard "
        f"{max(done.attempts_most for done in rounds)}, webhooks told twice under one id "
        f"{sum(done.repeated_webhooks for done in rounds)}",
        f"grown the most since its first round: {max(done.grown_bytes for done in rounds) / 2**20:.1f} MiB, "
        f"{max(done.grown_files for done in rounds)} open files",
        "",
        f"{'fault':50} {'times':>6} {'free after s':>15} {'taken up after s':>17} {'rows redone':>12}",
    ]
    for kind in Kind:
        free, over = (_times(kind, [getattr(done, name) for done in rounds]) for name in SECONDS)
        redone = str(rows_redone[kind]) if kind.is_kill and are_stamped else "-"
        lines.append(f"{kind:50} {faults[kind]:6} {free:>15} {over:>17} {redone:>12}")
    lines.append(f"{'any other':50} {'':6} {'':15} {'':17} {rows_redone['another fault']:12}")
    lines.append("(times are p50 and longest)")
    return "\n".join(lines)


def _times(kind: Kind, noted: Sequence[Mapping[str, Sequence[float]]]) -> str:
    seconds = [second for seconds_of in noted for second in seconds_of.get(kind, ())]
    return f"{median(seconds):.1f} {max(seconds):6.1f}" if seconds else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    parts = Parts(
        options.database,
        options.objects,
        options.engine,
        workers=options.workers,
        upstreams={"upstream": 2, "vllm": 1}.get(options.engine, 0),
        schedulers=2,
        proxies=_proxies(options),
        are_forked=False,
    )
    notes = options.notes / f"{parts}-{options.seed}.jsonl"
    rounds = _noted(notes)
    print(f"seed {options.seed}, from round {len(rounds)}", flush=True)
    left = _kills_left(options, rounds)
    try:
        if left:
            with _service(parts) as service:
                _play(service, parts, options, rounds, notes)
    except (AssertionError, TimeoutError) as error:
        print(*getattr(error, "__notes__", ()), sep="\n")
        print(f"FAILED: seed {options.seed}, round {len(rounds)}, {parts}: {error}", flush=True)
        return 1
    if not left:
        print(f"already done: delete {notes} to run it again, or ask for more kills or another seed")
    if rounds:
        print(report(rounds))
    if _kills_left(options, rounds):
        print(f"not all of {options.kills} kills yet: the same command goes on")
    return 0


def _play(
    service: Service, parts: Parts, options: argparse.Namespace, rounds: list[Round], notes: Path
) -> None:
    """Round after round, until there were kills enough or the time is over."""
    ends_at_s = time.monotonic() + options.slice_s
    play = Rounds(service, options.seed, say=lambda text: print(text, flush=True))
    while (left := _kills_left(options, rounds)) and time.monotonic() < ends_at_s:
        number = len(rounds)
        kills = min(KILLS_PER_ROUND // parts.slower, left)
        actions = schedule(options.seed, number, kills, scene_of(parts))
        done = play.play(number, actions)
        rounds.append(done)
        with notes.open("a") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        took = f"{done.seconds:.0f} s, of which {done.rest_s:.0f} s to come to rest"
        print(f"round {number} passed: {done.kills} kills in {took}", flush=True)


def _kills_left(options: argparse.Namespace, rounds: Sequence[Round]) -> int:
    wanted: int = options.kills
    return max(0, wanted - sum(done.kills for done in rounds))


@contextmanager
def _service(parts: Parts) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        with running(Path(folder), parts) as service:
            yield service


def _noted(notes: Path) -> list[Round]:
    """The rounds that have passed before. A run that was killed while it noted one plays that one again."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    if not notes.exists():
        return []
    whole = notes.read_text()
    whole = whole[: whole.rfind("\n") + 1]
    notes.write_text(whole)
    return [Round(**json.loads(line)) for line in whole.splitlines()]


def _proxies(options: argparse.Namespace) -> frozenset[str]:
    proxies = {"redis"}
    proxies |= {"database"} if options.database == "postgresql" else set()
    return frozenset(proxies | ({"s3"} if options.objects != "directory" else set()))


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise argparse.ArgumentTypeError(f"{word} is no number: at least 1")
    return int(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=_count, default=100, help="until so many processes have been killed")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what is drawn from; printed")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--objects", choices=("directory", "moto", "rclone"), default="directory")
    parser.add_argument(
        "--engine",
        choices=("fake", "demo", "upstream", "vllm"),
        default="fake",
        help="demo: our own, with the demo model; upstream: two simulated upstreams, which are killed too; "
        "vllm: a real one, which takes a minute to start again",
    )
    parser.add_argument("--workers", type=_count, default=3)
    parser.add_argument("--slice-s", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--notes", type=Path, default=Path(".chaos"), help="a directory: what has passed")
    return parser
