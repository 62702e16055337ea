"""Uploads of files in parts."""

from typing import IO, Final

from nightshift.client.answers import json_object, segment
from nightshift.client.exchanges import Call, Exchange, answered
from nightshift.jobs import JsonObject

PART_BYTES: Final = 16 << 20
COMPLETION_S: Final = 600.0  # the server copies and checks the file before it answers


def uploaded(file: IO[bytes], wanted: JsonObject) -> Exchange[str]:
    """The id of an uploaded file. `wanted`: the body of `POST /v1/uploads`. Raises ApiError,
    ServerUnreachable.
    """
    upload = yield from _json(Call(method="POST", path="/v1/uploads", json=wanted))
    path, part_ids = f"/v1/uploads/{segment(upload['id'])}", []
    while piece := file.read(PART_BYTES):
        part = yield from _json(Call(method="POST", path=f"{path}/parts", files={"data": ("part", piece)}))
        part_ids.append(part["id"])
    whole = yield from _json(
        Call(method="POST", path=f"{path}/complete", json={"part_ids": part_ids}, timeout_s=COMPLETION_S)
    )
    return str(whole["file"]["id"])


def _json(call: Call) -> Exchange[JsonObject]:
    return json_object((yield from answered(call)))
