"""Tiny models whose template shows calls of tools as Hermes and Qwen models do."""

from pathlib import Path

from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject
from nightshift_engine import Engine
from nightshift_engine.models import Tokenizer
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.tiny.decoders import EOS, save_model
from workers.serving.inference import SamplingDefaults
from workers.serving.models import Models
from workers.serving.servers.text_server import TextServer

HERMES = (
    "{% if tools %}{{ tools | tojson }}\n"
    'Answer with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>\n{% endif %}'
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}"
    "\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
WHERE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>'


def saved(directory: Path) -> Path:
    save_model(directory, max_position_embeddings=4096)
    (directory / "chat_template.jinja").write_text(HERMES)
    return directory


def models_saying(directory: Path, text: str) -> Models:
    """It answers this, whatever it is asked."""
    tokenizer = Tokenizer.load(str(directory))
    runner = ScriptedRunner([*tokenizer.encode(text), EOS])
    return models_over(engine_over(runner, tokenizer, context_length=4096, num_blocks=2048))


def models_over(engine: Engine) -> Models:
    fatal: list[BaseException] = []
    model = Model(id="tiny", kind=ModelKind.DECODER, context_length=4096, revision="r", position=0)
    server = TextServer(model, engine, fatal.append, SamplingDefaults())
    server.start()
    return Models([server])


def stop(models: Models) -> None:
    for server in models:
        server.stop()
