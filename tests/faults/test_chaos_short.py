"""A short run of the chaos; `make test-all` has longer ones on each database, and `make chaos` goes on for as
long as it is told to.
"""

import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.chaos import command
from tests.faults.chaos.command import report, scene_of
from tests.faults.chaos.oracle import OracleFailure
from tests.faults.chaos.rounds import Round, Rounds
from tests.faults.chaos.schedule import Action, Kind, Scene, schedule
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts
from tests.integration.servers import RAM_DISK

SEED = 20261121
SMALL = Parts(workers=3, schedulers=2, proxies=frozenset({"redis"}))
UPSTREAMS = Parts(engine="upstream", upstreams=2, workers=2, schedulers=2, proxies=frozenset({"redis"}))
LARGE = Parts("postgresql", "moto", workers=3, schedulers=2, proxies=frozenset({"redis", "database", "s3"}))
KILLS = [
    (SMALL, 6),
    pytest.param(SMALL, 35, marks=pytest.mark.exhaustive),
    pytest.param(UPSTREAMS, 35, marks=pytest.mark.exhaustive),
    pytest.param(LARGE, 15, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("parts", "kills"), KILLS, ids=str)
def test_kills_at_random_lose_no_row_and_double_none(parts, kills):
    print(f"seed {SEED}")
    assert play(parts, short(parts, kills)).kills > kills // 2, "most failpoints were come by"


def test_kills_of_upstreams_and_of_a_worker_lose_no_row_and_double_none():
    """Both upstreams are away for a while."""
    killed = {
        "upstream-1": Kind.KILL_UPSTREAM,
        "worker-1": Kind.KILL_WORKER,
        "upstream-2": Kind.KILL_UPSTREAM,
    }
    play(replace(UPSTREAMS, schedulers=1), [Action(kind, target, 0.1) for target, kind in killed.items()])


def play(parts, actions):
    """A round on a service of its own. Prints the report, which a failure shows."""
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        with running(Path(folder), parts) as service:
            done = Rounds(service, SEED).play(0, actions)
    print(report([done]))
    return done


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


def test_the_command_goes_on_after_the_last_round_that_passed(played, tmp_path, capsys):
    def run(kills):
        ended = command.main(["--seed", "7", "--notes", str(tmp_path), "--kills", str(kills)])
        return ended, capsys.readouterr().out

    assert run(60)[0] == 0
    ended, said = run(90)
    assert (ended, played.rounds) == (0, [0, 1, 2])
    assert "rounds 3, kills 90" in said
    assert "already done" not in said
    [notes] = tmp_path.iterdir()
    assert f"already done: delete {notes} to run it again" in run(90)[1]
    notes.write_text(notes.read_text()[:-20])  # killed while it noted a round
    assert run(90)[0] == 0
    assert played.rounds == [0, 1, 2, 2]


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


def test_a_round_has_the_kills_that_it_was_asked_for_and_most_are_of_workers_in_turn():
    actions = schedule(7, 0, 40, SCENE)
    assert sum(action.kind.is_kill for action in actions) == 40
    killed = Counter(action.target for action in actions if action.kind is Kind.KILL_WORKER)
    assert killed.keys() == {"worker-1", "worker-2", "worker-3"}
    assert killed.total() >= 20
    assert max(killed.values()) - min(killed.values()) <= 3


def test_the_short_runs_have_every_fault_there_is_and_none_of_what_is_not_there():
    actions = [*short(SMALL, 35), *short(UPSTREAMS, 35), *short(LARGE, 15)]
    assert {action.kind for action in actions} == set(Kind)
    kinds = {action.kind for action in schedule(7, 0, 400, Scene())}
    assert not kinds & {Kind.CUT, Kind.DELAY, Kind.SILENCE, Kind.RESTART_DATABASE}
    targets = {action.target for action in schedule(7, 0, 400, SCENE) if action.kind is Kind.CUT}
    assert targets == {"redis"}
