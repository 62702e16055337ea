"""Reading an input for a dry run has limits: of its process, its bytes, its tenant."""

import asyncio
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.services.preview_child import PreviewRequest
from api.services.previews import PREVIEWS_PER_TENANT_MAX, Previews, parsed
from nightshift.bulk.rows import previews
from nightshift.bulk.rows.previews import Previewer
from nightshift.errors import TooManyRequests
from nightshift.jobs import JobSpec
from nightshift.objectstore import MIB, DirectoryStore, Locations
from nightshift.objectstore.sources import Sources
from nightshift.process.settings import DataSettings, LocationSettings


def request_for(folder: Path, tenant_id: str = "default") -> PreviewRequest:
    return PreviewRequest(
        data=DataSettings(data_dir=folder / "data"),
        places=LocationSettings(file_roots=(str(folder),)),
        spec=spec(folder),
        tenant_id=tenant_id,
        filename=None,
        line_bytes_max=1000,
        models={},
        answer_bytes_max=MIB,
    )


def spec(folder: Path) -> JobSpec:
    template = {"model": "m", "prompt": "{{text}}"}
    return JobSpec(
        endpoint="/v1/completions",
        completion_window_s=60,
        input=f"{folder.as_uri()}/",
        template=template,
    )


def looked_at(folder: Path, **options: Any) -> list[Any]:
    locations = Locations(file_roots=[folder])
    sources = Sources(DirectoryStore(folder), locations)
    previewer = Previewer(sources=sources, locations=locations, line_bytes_max=1000, **options)
    return list(previewer.preview(spec(folder), "default", None))


@pytest.mark.parametrize(
    "program",
    [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "raise MemoryError",
        "import sys; sys.stdout.write('{')",
    ],
)
def test_a_process_that_is_ended_leaves_no_part(tmp_path, program):
    assert asyncio.run(Previews((sys.executable, "-c", program)).look(request_for(tmp_path))) == {}


def test_the_parts_that_came_before_the_end_are_kept():
    came = parsed(b'{"PreviewedObjects": {"objects": 2}}\n{"PreviewedRows": {"rows_ch')
    assert came == {"PreviewedObjects": {"objects": 2}}


def test_a_tenant_may_have_so_many_under_way(tmp_path):
    async def scenario() -> None:
        under_test = Previews((sys.executable, "-c", ""))
        waiting = [
            asyncio.create_task(under_test.look(request_for(tmp_path, "slow")))
            for _ in range(PREVIEWS_PER_TENANT_MAX)
        ]
        await asyncio.sleep(0)  # they have begun, and none can have ended
        with pytest.raises(TooManyRequests):
            await under_test.look(request_for(tmp_path, "slow"))
        await asyncio.gather(under_test.look(request_for(tmp_path, "other")), *waiting)
        await under_test.look(request_for(tmp_path, "slow"))

    asyncio.run(scenario())


@pytest.mark.parametrize(("limit", "maximum", "rows_checked"), [("OBJECTS_MAX", 3, 3), ("LISTED_MAX", 2, 2)])
def test_objects_are_listed_and_looked_at_up_to_a_number(tmp_path, monkeypatch, limit, maximum, rows_checked):
    monkeypatch.setattr(previews, limit, maximum)
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "a"}\n')
    objects, rows = looked_at(tmp_path)

    assert (objects.objects, objects.is_whole) == (maximum, False)
    assert rows.rows_checked == rows_checked


def test_rows_are_tried_shown_and_their_problems_listed_up_to_a_number(tmp_path):
    (tmp_path / "in.jsonl").write_text("{}\n" * 50 + '{"text": "a"}\n' * 1000)
    _, rows = looked_at(tmp_path)

    assert (rows.rows_checked, len(rows.requests)) == (previews.ROWS_MAX, previews.SHOWN_MAX)
    assert (rows.rows_with_problems, len(rows.problems)) == (50, previews.PROBLEMS_MAX)


def test_blank_lines_are_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(previews, "ROWS_BYTES_MAX", 1024)
    (tmp_path / "in.jsonl").write_bytes(b"\n" * (3 * 2**20) + b'{"text": "a"}\n')
    _, rows = looked_at(tmp_path)

    assert rows.rows_checked == 0


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_no_row_but_the_first_is_begun_when_the_time_is_over(tmp_path, name):
    """As on a machine so slow that describing the objects takes all of it."""
    (tmp_path / "empty.jsonl").write_text("")
    if name == "in.jsonl":
        (tmp_path / name).write_text('{"text": "a"}\n' * 10)
    else:
        pq.write_table(pa.table({"text": ["a"] * 10}), tmp_path / name)
    objects, rows = looked_at(tmp_path, may_continue=lambda: False)

    assert (objects.is_whole, rows.rows_checked, rows.is_end) == (False, 1, False)
    assert rows.requests[0].body["prompt"] == "a"


def test_objects_of_no_bytes_have_no_rows_as_in_a_job(tmp_path):
    for name in ("a.parquet", "a.arrow", "a.csv", "a.jsonl"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    _, rows = looked_at(tmp_path)

    assert (rows.rows_checked, rows.problems, rows.is_end) == (1, [], True)


CHILD = """
import resource, time
from api.services import preview_child
from nightshift.bulk.rows.previews import PreviewedObjects, Previewer

def burn(seconds):
    ends_s = time.process_time() + seconds
    while time.process_time() < ends_s:
        pass

def found(objects):
    return PreviewedObjects(
        objects=objects,
        size_bytes=1,
        is_whole=True,
        rows_estimated=1,
        tokens_estimated=1,
        formats=["jsonl"],
        separator=None,
    )

def preview(self, spec, tenant_id, filename):
    before, _ = resource.getrlimit(resource.RLIMIT_CPU)
    burn({for_objects})
    yield found(1)
    after, _ = resource.getrlimit(resource.RLIMIT_CPU)
    burn({for_rows})
    yield found(after - before)

Previewer.preview = preview
preview_child.CPU_MAX_S = {cpu_max_s}
preview_child.main()
"""


def previewed_by(program: str, folder: Path) -> list[int]:
    """Numbers of objects in the parts that came."""
    (folder / "data").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(request_for(folder)),
        capture_output=True,
        check=False,
    )
    return [json.loads(line)["PreviewedObjects"]["objects"] for line in ended.stdout.splitlines()]


def test_a_first_row_that_does_not_end_is_ended_and_the_objects_are_kept(tmp_path):
    program = CHILD.format(for_objects=0, for_rows=float("1e9"), cpu_max_s=1)

    assert previewed_by(program, tmp_path) == [1]


def test_the_rows_have_their_time_whatever_the_objects_took(tmp_path):
    program = CHILD.format(for_objects=1.1, for_rows=0, cpu_max_s=4)
    _, more_s = previewed_by(program, tmp_path)

    assert more_s >= 1
