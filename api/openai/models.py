"""GET /v1/models and GET /v1/models/{id}. An id may contain slashes: hub ids do."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.dependencies import CallerDep, ServicesDep
from api.jobs.catalogue import ServedModel
from api.responses.times import seconds
from nightshift.errors import UnknownModel
from nightshift.jobs import JsonObject

router = APIRouter(tags=["OpenAI"])

OWNER = "nightshift"


@router.get("/v1/models", summary="List the models that are served")
def list_models(services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        models = services.catalogue.served(tx)
    return JSONResponse({"object": "list", "data": [_model_json(model) for model in models]})


@router.get("/v1/models/{model_id:path}", summary="Describe a model")
def get_model(model_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        models = services.catalogue.served(tx)
    for model in models:
        if model.id == model_id:
            return JSONResponse(_model_json(model))
    raise UnknownModel(f"The model '{model_id}' does not exist or is not served here.", param="model")


def _model_json(model: ServedModel) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": seconds(model.created_at) or 0,
        "owned_by": OWNER,
        "kind": model.kind,
        "context_length": model.context_length,
    }
