"""Our API passes the checks of `nightshift conformance` that need no batch to end."""

from collections.abc import Sequence

from conformance.checks import AREAS, node
from conformance.outcomes import Outcome, Result
from conformance.registry import selected
from conformance.runner import Run

QUICK = [
    f"{area.name}.{check.name}"
    for area in AREAS
    for check in area.checks
    if not check.is_slow and area is not node.AREA
]
NODE = [f"node.{check.name}" for check in node.AREA.checks if not check.is_slow]


def wrong(results: Sequence[Result]) -> dict[str, str]:
    return {f"{result.area}.{result.name}": result.detail for result in results if result.detail}


def test_our_api_passes_every_check_of_the_python_client(served):
    run = Run(served.options())  # the models are found, not named
    results = list(run.results(selected(AREAS, QUICK)))

    assert wrong(results) == {}
    assert len(results) == len(QUICK)
    assert all(name.startswith("files of batch_") for name in run.left_behind)


def test_our_api_passes_every_check_of_the_node_client(options, node_client, monkeypatch):
    monkeypatch.setenv("NODE_PATH", node_client)
    run = Run(options)
    results = list(run.results(selected(AREAS, NODE)))

    assert wrong(results) == {}
    assert len(results) == len(NODE)
    assert run.node_client_version is not None
    assert all(name.startswith("files of batch_") for name in run.left_behind)


def test_without_node_its_checks_are_skipped_and_say_what_to_install(options, monkeypatch):
    monkeypatch.setenv("PATH", "")
    results = list(Run(options).results(selected(AREAS, ["node"])))

    assert {result.outcome for result in results} == {Outcome.SKIPPED}
    assert all("install Node.js" in result.detail for result in results)
