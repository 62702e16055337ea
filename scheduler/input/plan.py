"""What planning comes to: a plan, the reasons why there is none, or another try. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nightshift.errors import NightshiftError
from nightshift.fleet.models import Model
from nightshift.jobs import Endpoint, InputError, NewShard
from nightshift.objectstore import ObjectChanged


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job's input, cut into shards. One of the row counts is known."""

    model: str
    shards: Sequence[NewShard]
    rows_total: int | None = None  # exact; of a validated file
    rows_estimated: int | None = None  # from a sample


class Refused(Exception):
    """The input cannot be run as it is, and trying again would not help."""

    def __init__(self, *errors: InputError) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


@dataclass(frozen=True)
class Catalogue:
    """The models there are: those a worker has registered, and those the operator has announced."""

    registered: Sequence[Model]
    announced: Sequence[str] = ()  # as they are written in NIGHTSHIFT_MODELS: hub ids or paths

    def objection(self, model_id: str, endpoint: Endpoint) -> InputError | None:
        """What is wrong with asking this model for this, if anything.

        Before the first worker has registered, no model can be called unknown: the job waits for one.
        """
        found = next((model for model in self.registered if model.id == model_id), None)
        if found is not None and not found.kind.serves(endpoint):
            message = f"The model '{model_id}' does not serve {endpoint.value}."
            return InputError("model_not_supported", message, param="model")
        is_announced = any(model_id in (name, Path(name).name) for name in self.announced)
        if found is not None or is_announced or not self.registered:
            return None
        message = f"The model '{model_id}' does not exist or is not served here."
        return InputError("model_not_found", message, param="model")


def input_error(error: NightshiftError, param: str) -> InputError:
    """An error about an input or an output, as the job's owner is told it."""
    if isinstance(error, ObjectChanged):
        return InputError("input_changed", f"The input was replaced: {error.message}.", param="input")
    return InputError(error.code or "unreadable_input", error.message, param=error.param or param)
