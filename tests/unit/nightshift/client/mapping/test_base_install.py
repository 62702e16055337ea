"""A list of dicts is mapped with nothing but the distribution's own requirements."""

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement

MAPPING = """
import sys

class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        is_ours = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not is_ours and top not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ALLOWED = {"nightshift", "tests", *sys.argv[1:]}
sys.meta_path.insert(0, OnlyThese())

import httpx, nightshift
from tests.unit.nightshift.client.mapping.fake_service import FakeService

transport = httpx.MockTransport(FakeService())
client = nightshift.Client("http://server", "ns_key", transport=transport, sleep=lambda _: None)
print(client.map([{"text": "one"}], "Say: {{text}}", model="m").data)
"""


def required(name: str, known: set[str]) -> set[str]:
    """The distribution and all that it requires without extras."""
    if name not in known:
        known.add(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(requirement.name.lower(), known)
    return known


def test_a_list_of_dicts_is_mapped_without_any_extra():
    owners = metadata.packages_distributions()
    base = {name.replace("_", "-") for name in required("nightshift", set())}
    modules = [
        module
        for module, names in owners.items()
        if base & {name.lower().replace("_", "-") for name in names}
    ]
    ended = subprocess.run([sys.executable, "-c", MAPPING, *modules], capture_output=True, text=True)

    assert (ended.stderr, ended.stdout) == ("", "[{'text': 'one', 'answer': 'SAY: ONE'}]\n")
    assert not {"sqlalchemy", "pyarrow", "pandas"} & set(modules)
