"""One running service for everything that leaves it as it was."""

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import openai
import pytest

from nightshift.cli.demo import LARGEST_NUMBER, is_held_out, number_in_words
from tests.e2e.service import Service, running

SEED = 48213


@pytest.fixture(scope="package")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that jobs may name."""
    return tmp_path_factory.mktemp("workplace")


@pytest.fixture(scope="package")
def allowed(workplace: Path) -> Mapping[str, str]:
    """Settings: places that jobs may name, and where webhooks may go."""
    return {"FILE_ROOTS": str(workplace), "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8", "WEBHOOK_PORTS": "1-65535"}


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, allowed: Mapping[str, str]) -> Iterator[Service]:
    """`nightshift up`, ready. Do not stop or kill it: others use it after you. It ends with the last.

    Its data directory was made before, by someone who left it open.
    """
    data_dir = tmp_path_factory.mktemp("service")
    data_dir.chmod(0o755)
    with running(data_dir, **allowed) as service:
        yield service


@pytest.fixture
def answer_to() -> Callable[[int], str]:
    """The answer to a number that is right."""
    return number_in_words


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with service.openai() as client:
        yield client


@pytest.fixture(scope="session")
def numbers() -> list[int]:
    """Numbers the demo model has never seen, in a random order that is printed with a failing test."""
    unseen = [number for number in range(LARGEST_NUMBER + 1) if is_held_out(number)]
    print(f"seed {SEED}")
    return random.Random(SEED).sample(unseen, 1000)
