"""Every route against its own OpenAPI document: no generated request, and no sequence of them in which one
uses another's answer, gets a 5xx, an undocumented status or content type, or an answer of another shape.

Short, and always the same; `make test-all` has more cases, and `LONG=1` many more, from a seed that it
prints.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from nightshift.tenants.keys import Scope
from tests.security.test_keys_swapped import client, key_of, served, things_of_alpha

IS_LONG: Final = bool(os.environ.get("LONG"))
SEED: Final = random.SystemRandom().randrange(2**32) if IS_LONG else 20261123
CASES: Final = [2, pytest.param(100 if IS_LONG else 6, marks=pytest.mark.exhaustive)]  # per operation
SEQUENCES: Final = [2, pytest.param(100 if IS_LONG else 5, marks=pytest.mark.exhaustive)]
STEPS: Final = 10  # of a sequence
TIMEOUT_S: Final = 30.0
CHECKS: Final = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
ENDLESS: Final = "/events"  # answered for as long as the job runs
OWN_KEY: Final = {"/v1/tenants/{tenant}/keys/{key_id}/revoke", "/v1/tenants/{tenant}"}
PROFILE: Final = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.timeout(7200 if IS_LONG else 300)


@dataclass
class Site:
    """A running API with one thing of each kind, and how often it gave which status."""

    url: str
    document: dict[str, Any]
    headers: dict[str, dict[str, str]]  # by whose key: `tenant`, `admin`
    ids: dict[str, str]
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def schema(self) -> Any:
        schema = schemathesis.openapi.from_dict(self.document)
        schema.config.update(base_url=self.url)
        schema.config.generation.with_security_parameters = False  # a wrong key is refused before all else
        return schema

    def check(self, case: schemathesis.Case, who: str) -> None:
        answer = case.call(headers=self.headers[who], timeout=TIMEOUT_S)
        self.statuses[answer.status_code] += 1
        case.validate_response(answer, checks=list(CHECKS))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with served("alpha", is_worked_on=True) as (app, url, store, places):
        headers = {"tenant": key_of(store, "alpha"), "admin": key_of(store, "alpha", Scope.ADMIN)}
        with client(url, headers["tenant"]) as alpha:
            ids = things_of_alpha(alpha, store, places["alpha"])
        document = json.loads(json.dumps(app.openapi()))
        yield Site(url, document, headers, ids | {"tenant": "alpha", "model_id": "ruler"})


def operations(site: Site) -> list[APIOperation]:
    """All that have an end."""
    return [
        operation.ok()
        for operation in site.schema.get_all_operations()
        if not operation.ok().path.endswith(ENDLESS)
    ]


def test_every_answer_of_every_route_has_a_documented_shape(site: Site) -> None:
    for path, methods in site.document["paths"].items():
        for method, operation in methods.items():
            assert "default" not in operation["responses"], f"{method} {path}"
            for status, answer in operation["responses"].items():
                content = answer.get("content")
                assert content, f"{method} {path}: {status} has no content"
                assert all(media.get("schema") for media in content.values()), f"{method} {path}: {status}"


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("who", ["tenant", "admin"])
def test_generated_requests_are_answered_as_documented(site: Site, who: str, cases: int) -> None:
    print(f"seed {SEED}")
    for operation in operations(site):
        if who == "admin" and "/v1/tenants" not in operation.path and "/v1/audit" not in operation.path:
            continue  # a tenant's run has it

        @seed(SEED)
        @settings(PROFILE, max_examples=cases)
        @given(
            case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)),
            is_real=st.booleans(),
        )
        def answers(case: schemathesis.Case, is_real: bool) -> None:
            if is_real and case.path not in OWN_KEY:  # ids that there are, where they are taken
                taken = {name: site.ids[name] for name in case.path_parameters or {} if name in site.ids}
                case.path_parameters = {**(case.path_parameters or {}), **taken}
            site.check(case, who)

        answers()
    print(f"{site.statuses.total()} cases: {dict(sorted(site.statuses.items()))}")


@pytest.mark.parametrize("sequences", SEQUENCES)
def test_sequences_of_requests_are_answered_as_documented(site: Site, sequences: int) -> None:
    """Create, list, describe, change, delete: the links are found in the document."""
    schema = site.schema.exclude(path_regex=f"{ENDLESS}$")
    counted = Counter[str]()

    class Sequences(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": site.headers["tenant"], "timeout": TIMEOUT_S}

        def validate_response(self, response: Any, case: schemathesis.Case, **more: Any) -> None:
            counted[f"{case.method} {case.path}"] += 1
            site.statuses[response.status_code] += 1
            case.validate_response(response, checks=list(CHECKS))

    print(f"seed {SEED}")
    Sequences.run(settings=settings(PROFILE, max_examples=sequences, stateful_step_count=STEPS))
    print(f"{counted.total()} requests of {len(counted)} operations")
    assert counted
