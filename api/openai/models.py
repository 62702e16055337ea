"""GET /v1/models and GET /v1/models/{id}. Hub ids contain slashes."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.bodies.objects import ModelList, ModelObject
from api.dependencies import CallerDep, ServicesDep
from api.responses.times import seconds
from nightshift.jobs import JsonObject
from nightshift.lifecycle.catalogue import ServedModel

router = APIRouter(tags=["OpenAI"])

OWNER = "nightshift"


@router.get("/v1/models", summary="List the models that are served", response_model=ModelList)
def list_models(services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        models = services.catalogue.read(tx).models
    return JSONResponse({"object": "list", "data": [_model_json(model) for model in models]})


@router.get("/v1/models/{model_id:path}", summary="Describe a model", response_model=ModelObject)
def get_model(model_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        model = services.catalogue.read(tx).find(model_id)
    return JSONResponse(_model_json(model))


def _model_json(model: ServedModel) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": seconds(model.created_at) or 0,
        "owned_by": OWNER,
        "root": model.parent or model.id,
        "parent": model.parent,
        "kind": model.kind,
        "context_length": model.context_length,
        "max_model_len": model.context_length,
    }
