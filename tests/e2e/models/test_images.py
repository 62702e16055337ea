"""Models of images in a real service: online, in a batch file, and over a directory of images."""

import base64
import json
import pickle
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scheduler.input.sharding import IMAGES_MAX
from tests.e2e.service import (
    Service,
    answers_of,
    kill_worker_in_the_middle,
    nightshift,
    parquet_rows,
    run,
    wait_until_ended,
)
from tests.integration.servers import S3Server
from tests.unit.engine.encoders.images.test_decoding import PAGE, SVG, png_header
from tests.unit.engine.tiny.images import as_bytes, picture, reference

TOLERANCE = 2e-5
PICTURES = [picture(number, 40 + number, 50) for number in range(6)]
IMAGES = IMAGES_MAX + 12  # more than a shard has
UNUSUAL = {
    "cmyk.jpg": as_bytes(picture(7).convert("CMYK"), "JPEG"),
    "animated.gif": as_bytes(picture(8), "GIF", save_all=True, append_images=[picture(9)]),
}
REFUSED = {
    "empty.png": (b"", "is empty"),
    "drawing.png": (SVG, "is an SVG drawing"),
    "page.jpg": (PAGE, "is a web page"),
    "no-pixels.png": (png_header(0, 0), "pixels|broken|none of the formats"),
    "half.jpg": (as_bytes(picture(7, 400, 400), "JPEG")[:2000], "broken or truncated"),
    "bomb.png": (png_header(30_000, 30_000), "30000 x 30000 pixels"),
    "pickle.png": (pickle.dumps({"a": 1}), "none of the formats"),
}


@pytest.fixture(scope="module", autouse=True)
def photos(folder: Path) -> None:
    """A directory of images, and of two files that are none."""
    photos = folder / "photos"
    (photos / "more").mkdir(parents=True)
    for number, image in enumerate(PICTURES):
        where = photos / "more" if number % 2 else photos
        (where / f"{number}.png").write_bytes(as_bytes(image))
    (photos / "empty.png").write_bytes(b"")
    (photos / "page.jpg").write_bytes(b"<!doctype html><html>404</html>")


def run_animals(service: Service, folder: Path, input: str, output: str) -> tuple[str, list[dict[str, Any]]]:
    """Classifies images. Returns what the command says, and the rows of the output."""
    model = ("--endpoint", "classifications", "--model", "animals", "--input-column", "image")
    where = ("--output", (folder / output).as_uri() + "/", "--format", "parquet")
    ended = run(service, folder, input, *where, *model)
    return ended.stdout + ended.stderr, parquet_rows(folder / output)


@pytest.fixture(scope="module")
def probabilities(folder: Path) -> list[list[float]]:
    powers = 2.718281828459045 ** reference(folder / "animals", PICTURES)
    return [[float(value) for value in row] for row in powers / powers.sum(axis=1, keepdims=True)]


@pytest.fixture(scope="module")
def vectors(folder: Path) -> list[list[float]]:
    return [[float(value) for value in row] for row in reference(folder / "vectors", PICTURES)]


def data_uri(number: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(as_bytes(PICTURES[number])).decode()}"


def test_images_are_classified_and_embedded_online(
    service: Service, folder: Path, probabilities: list[list[float]], vectors: list[list[float]]
) -> None:
    with service.openai() as client, service.http() as http:
        file = client.files.create(file=("1.png", as_bytes(PICTURES[1])), purpose="vision")
        images = [data_uri(0), file.id, f"file://{folder}/photos/2.png"]
        body = {"model": "animals", "input": [{"image": image} for image in images]}
        classified = http.post("/classifications", json=body).json()
        embedded = http.post("/embeddings", json=body | {"model": "vectors"}).json()
        outside = http.post("/embeddings", json={"model": "vectors", "input": {"image": "file:///etc/a.png"}})

    for one, wanted in zip(classified["data"], probabilities, strict=False):
        assert [score["score"] for score in one["scores"]] == pytest.approx(wanted, abs=TOLERANCE)
        assert one["label"] == ("cat", "dog")[wanted[1] > wanted[0]]
    for one, wanted in zip(embedded["data"], vectors, strict=False):
        assert one["embedding"] == pytest.approx(wanted, abs=TOLERANCE)
    assert outside.status_code == 400
    assert "may not name" in outside.json()["error"]["message"]


def test_a_batch_file_asks_for_images(service: Service, vectors: list[list[float]]) -> None:
    bodies = {f"r{n}": {"model": "vectors", "input": {"image": data_uri(n)}} for n in range(3)}
    done = answers_of(service, "/v1/embeddings", bodies)
    for number in range(3):
        embedding = done[f"r{number}"]["data"][0]["embedding"]
        assert embedding == pytest.approx(vectors[number], abs=TOLERANCE)


def test_a_directory_of_images_is_an_input_with_one_row_an_object(
    service: Service, folder: Path, probabilities: list[list[float]]
) -> None:
    said, labelled = run_animals(service, folder, "photos/", "labels")
    assert f"{len(PICTURES)} rows succeeded, 2 failed" in said
    rows = {Path(row["custom_id"]).name: row for row in labelled}
    assert len(rows) == len(PICTURES) + 2
    for number, wanted in enumerate(probabilities):
        row = rows[f"{number}.png"]
        assert row["custom_id"].endswith(
            f"photos/more/{number}.png" if number % 2 else f"photos/{number}.png"
        )
        assert row["scores"] == pytest.approx(wanted, abs=TOLERANCE)
    for name, problem in (("page.jpg", "is a web page"), ("empty.png", "is empty")):
        assert rows[name]["outcome"] == "errored"
        assert f"photos/{name}" in rows[name]["error_message"]
        assert problem in rows[name]["error_message"]


def test_a_column_of_references_is_an_input(
    service: Service, folder: Path, vectors: list[list[float]]
) -> None:
    lines = [{"photo": f"file://{folder}/photos/{number}.png"} for number in (0, 2)]
    lines.append({"photo": f"file://{folder}/photos/none.png"})
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    how = ("--endpoint", "embeddings", "--model", "vectors", "--input-column", "photo", "--format", "parquet")
    ended = run(service, folder, "list.jsonl", "--output", "embedded", *how)
    assert "2 rows succeeded, 1 failed" in ended.stdout, ended.stdout + ended.stderr
    by_id = sorted(parquet_rows(folder / "embedded"), key=lambda row: str(row["custom_id"]))
    for row, number in zip(by_id, (0, 2), strict=False):
        assert row["embedding"] == pytest.approx(vectors[number], abs=TOLERANCE)
    assert "none.png" in by_id[2]["error_message"]


def test_a_prefix_of_images_in_s3_is_an_input_with_many_images_a_shard(
    service: Service, s3: S3Server, bucket: str, folder: Path, probabilities: list[list[float]]
) -> None:
    """Every object is in the output once, and what is no image is the error of its row alone."""
    for number in range(IMAGES):
        key = f"photos/day={number % 3}/{number:04}.png"
        s3.client.put_object(Bucket=bucket, Key=key, Body=as_bytes(PICTURES[number % len(PICTURES)]))
    for object_name, data in (UNUSUAL | {name: data for name, (data, _) in REFUSED.items()}).items():
        s3.client.put_object(Bucket=bucket, Key=f"photos/{object_name}", Body=data)

    said, rows = run_animals(service, folder, f"s3://{bucket}/photos/", "from-s3")
    succeeded = IMAGES + len(UNUSUAL)
    assert f"{succeeded} rows succeeded, {len(REFUSED)} failed" in said
    by_id = {row["custom_id"]: row for row in rows}
    assert len(rows) == len(by_id) == succeeded + len(REFUSED)
    for number in range(IMAGES):
        row = by_id[f"photos/day={number % 3}/{number:04}.png"]
        assert row["scores"] == pytest.approx(probabilities[number % len(PICTURES)], abs=TOLERANCE)
    for name in UNUSUAL:
        assert by_id[f"photos/{name}"]["outcome"] == "succeeded"
    for name, (_, problem) in REFUSED.items():
        row = by_id[f"photos/{name}"]
        assert row["outcome"] == "errored"
        assert name in row["error_message"]
        assert re.search(problem, row["error_message"])
    [manifest] = (json.loads(path.read_text()) for path in (folder / "from-s3").glob("_manifest.json"))
    objects = manifest["inputs"]["objects"]
    assert [listed["uri"] for listed in objects] == sorted(f"s3://{bucket}/{key}" for key in by_id)
    assert all(listed["etag"] for listed in objects)
    with closing(sqlite3.connect(service.data_dir / "nightshift.db")) as database:
        query = "select count(*) from shard where job_id = ?"
        assert database.execute(query, (manifest["job_id"],)).fetchone() == (-(-len(by_id) // IMAGES_MAX),)


ODD_NAMES = (
    *("a b.png", "nl\nx.png", "tab\t.png", "pct%20.png", "pct%.png", "-dash.png", "UP.PNG", "star*.png"),
    *("q?.png", "[br].png", "hash#.png", "quo\"te'.png", "back\\slash.png", "漢字🙂.png", "e\u0301.png"),
    *("{{x}}.png", "sub dir/1.png"),
)


def test_every_name_that_a_file_can_have_is_a_row_and_what_is_no_file_is_named(
    service: Service, folder: Path, probabilities: list[list[float]]
) -> None:
    odd = folder / "odd"
    for number, name in enumerate(ODD_NAMES):
        (odd / name).parent.mkdir(parents=True, exist_ok=True)
        (odd / name).write_bytes(as_bytes(PICTURES[number % len(PICTURES)]))
    (odd / "directory.jpg").mkdir()
    (odd / "dangling.png").symlink_to(odd / "nothing.png")

    refused, _ = run_animals(service, folder, "odd/", "from-odd")
    (odd / "dangling.png").unlink()
    _, rows = run_animals(service, folder, "odd/", "from-odd")

    assert "dangling.png cannot be read: it is no file" in refused
    prefix = str(odd).removeprefix("/") + "/"
    scores = {row["custom_id"].removeprefix(prefix): row["scores"] for row in rows}
    assert (len(rows), scores.keys()) == (len(ODD_NAMES), {*ODD_NAMES})
    for number, name in enumerate(ODD_NAMES):
        assert scores[name] == pytest.approx(probabilities[number % len(PICTURES)], abs=TOLERANCE)


@pytest.mark.exhaustive  # tests/faults kills workers
def test_a_worker_killed_within_shards_of_many_images_leaves_each_image_one_result(
    service: Service, folder: Path
) -> None:
    """Killed once rows have been counted, with others of their shard under way."""
    many = folder / "many"
    many.mkdir()
    data = as_bytes(picture(3, 200, 200))
    count = 6 * IMAGES_MAX
    for number in range(count):
        (many / f"{number:04}.png").write_bytes(data)
    submitted = nightshift(
        service,
        *("run", "many/", "--output", "from-many", "--endpoint", "classifications", "--model", "animals"),
        *("--input-column", "image", "--format", "parquet"),
        cwd=folder,
    )
    job_id = next(word for word in submitted.stdout.split() if word.startswith("job_"))
    done = kill_worker_in_the_middle(service, job_id)
    wait_until_ended(service, job_id)
    with service.client() as client:
        ended = client.get_job(job_id)

    assert 0 < done < count, "it was killed before or after its work"
    assert (ended.state, ended.counts.succeeded) == ("succeeded", count), service.logs()
    ids = [row["custom_id"] for row in parquet_rows(folder / "from-many")]
    assert sorted(Path(id).name for id in ids) == [f"{number:04}.png" for number in range(count)]
