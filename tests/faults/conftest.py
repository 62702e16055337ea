"""The service of a test's choice: `service_of(Parts(…), SETTING="…")`, ended with the test, or
`module_service_of`, ended with the file.
"""

import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service
from tests.integration.servers import RAM_DISK

ServiceOf = Callable[..., Service]


@contextmanager
def _starting() -> Iterator[ServiceOf]:
    with ExitStack() as stack:

        def start(parts: Parts = Parts(), **settings: str) -> Service:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK))
            return stack.enter_context(running(Path(folder), parts, **settings))

        yield start


@pytest.fixture
def service_of() -> Iterator[ServiceOf]:
    """Starts services and ends them with the test."""
    with _starting() as start:
        yield start


@pytest.fixture(scope="module")
def module_service_of() -> Iterator[ServiceOf]:
    """Starts services and ends them with the file."""
    with _starting() as start:
        yield start


@pytest.fixture
def service(shared: Service) -> Service:
    """The file's, once what the test before has broken is there again."""
    shared.wait_until_ready()
    return shared


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the service's processes have said."""
    report = yield
    service = getattr(item, "funcargs", {}).get("service")
    if report.when == "call" and report.failed and isinstance(service, Service):
        report.sections.append(("What the service said", service.logs()))
    return report
