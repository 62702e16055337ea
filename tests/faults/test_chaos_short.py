"""A short run of the chaos; `make test-all` has longer ones on each database, and `make chaos` goes on for as
long as it is told to.
"""

import tempfile
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.chaos import command
from tests.faults.chaos.command import report, scene_of
from tests.faults.chaos.oracle import OracleFailure
from tests.faults.chaos.rounds import Round, Rounds
from tests.faults.chaos.schedule import Kind, Scene, schedule
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts
from tests.integration.servers import RAM_DISK

SEED = 20261121
SMALL = Parts(workers=3, schedulers=2, proxies=frozenset({"redis"}))
LARGE = Parts("postgresql", "moto", workers=3, schedulers=2, proxies=frozenset({"redis", "database", "s3"}))
KILLS = [
    (SMALL, 6),
    pytest.param(SMALL, 35, marks=pytest.mark.exhaustive),
    pytest.param(LARGE, 15, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("parts", "kills"), KILLS, ids=str)
def test_kills_at_random_lose_no_row_and_double_none(parts, kills):
    """Prints the report, which a failure shows."""
    actions = short(parts, kills)
    print(f"seed {SEED}")
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        with running(Path(folder), parts) as service:
            done = Rounds(service, SEED).play(0, actions)
    print(report([done]))
    assert done.kills > kills // 2, "most failpoints were come by"


def short(parts, kills):
    """A round with every fault in it that is none of the deaths, or half as many of them as kills."""
    scene = scene_of(parts)
    return schedule(SEED, 0, kills, scene, interferences=min(len(scene.interferences), kills // 2))


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def played(monkeypatch):
    """The rounds that were played, on no service at all; round 1 finds a row lost as often as told."""
    played, failures = [], []

    class FakeRounds:
        def __init__(self, service, seed, say):
            self.seed = seed

        def play(self, number, actions):
            if number == 1 and failures:
                raise OracleFailure(failures.pop())
            played.append(number)
            kills = sum(action.kind.is_kill for action in actions)
            return a_round(seed=self.seed, round_no=number, kills=kills)

    monkeypatch.setattr(command, "Rounds", FakeRounds)
    monkeypatch.setattr(command, "running", lambda folder, parts: nullcontext())
    return SimpleNamespace(rounds=played, failures=failures)


def a_round(**known):
    nothing = {column.name: {} if "dict" in str(column.type) else 0 for column in fields(Round)}
    return Round(**nothing | known)


def test_a_run_that_was_stopped_goes_on_after_the_last_round_that_passed(played, tmp_path, capsys):
    arguments = ["--seed", "7", "--notes", str(tmp_path)]
    assert command.main([*arguments, "--kills", "60"]) == 0
    assert command.main([*arguments, "--kills", "90"]) == 0
    assert played.rounds == [0, 1, 2]
    said = capsys.readouterr().out
    assert "rounds 3, kills 90" in said
    assert "already done" not in said


def test_a_run_that_is_done_says_so_and_how_it_is_run_again(played, tmp_path, capsys):
    arguments = ["--seed", "7", "--kills", "40", "--notes", str(tmp_path)]
    assert command.main(arguments) == 0
    assert command.main(arguments) == 0
    assert played.rounds == [0]
    [notes] = tmp_path.iterdir()
    assert f"already done: delete {notes} to run it again" in capsys.readouterr().out


def test_a_run_that_was_killed_while_it_noted_a_round_plays_that_one_again(played, tmp_path):
    arguments = ["--seed", "7", "--notes", str(tmp_path)]
    assert command.main([*arguments, "--kills", "80"]) == 0
    [notes] = tmp_path.iterdir()
    notes.write_text(notes.read_text()[:-20])
    assert command.main([*arguments, "--kills", "120"]) == 0
    assert played.rounds == [0, 1, 1, 2]


@pytest.mark.parametrize("kills", ["0", "-3", "many"])
def test_less_than_one_kill_is_refused(kills, capsys):
    with pytest.raises(SystemExit):
        command.main([f"--kills={kills}"])
    assert "at least 1" in capsys.readouterr().err


def test_a_round_that_fails_is_named_with_its_seed_and_played_again_by_the_same_command(
    played, tmp_path, capsys
):
    played.failures.append("row-3 is missing")
    arguments = ["--seed", "7", "--kills", "100", "--notes", str(tmp_path)]
    assert command.main(arguments) == 1
    assert "FAILED: seed 7, round 1, sqlite-directory: row-3 is missing" in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert played.rounds == [0, 1, 2]


# -- the schedule itself --------------------------------------------------------------------------------

SCENE = Scene(proxies=frozenset({"redis"}))


def test_a_seed_gives_the_same_faults_again_and_another_round_gives_others():
    assert schedule(7, 0, 40, SCENE) == schedule(7, 0, 40, SCENE)
    assert schedule(7, 0, 40, SCENE) != schedule(7, 1, 40, SCENE)
    assert schedule(7, 0, 40, SCENE) != schedule(8, 0, 40, SCENE)


def test_a_round_has_as_many_kills_as_asked_for_most_of_them_of_workers():
    kinds = [action.kind for action in schedule(7, 0, 40, SCENE)]
    assert sum(kind.is_kill for kind in kinds) == 40
    assert kinds.count(Kind.KILL_WORKER) >= 20


def test_the_short_runs_have_every_fault_there_is():
    actions = [*short(SMALL, 35), *short(LARGE, 15)]
    assert {action.kind for action in actions} == set(Kind)


def test_nothing_is_done_to_what_is_not_there():
    kinds = {action.kind for action in schedule(7, 0, 400, Scene())}
    assert not kinds & {Kind.CUT, Kind.DELAY, Kind.SILENCE, Kind.RESTART_DATABASE}
    targets = {action.target for action in schedule(7, 0, 400, SCENE) if action.kind is Kind.CUT}
    assert targets == {"redis"}


def test_no_worker_dies_twice_before_the_others_have_had_their_turn():
    killed = [action.target for action in schedule(7, 0, 40, SCENE) if action.kind is Kind.KILL_WORKER]
    assert set(killed) == {"worker-1", "worker-2", "worker-3"}
    counts = [killed.count(worker) for worker in set(killed)]
    assert max(counts) - min(counts) <= 3
