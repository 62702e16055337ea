"""The engine for models that are done with an input after one pass, and what goes into it. No torch."""

from .config import DynamicBatching, EncoderConfig
from .engine import Encoder, EncoderEngine
from .matryoshka import Matryoshka, cut
from .prompts import Prompts
from .request import EncodeOutput, EncodeRequest, Vector
from .scoring.labels import Activation, Labels, activated
from .scoring.pairs import FramedTokens, PairText
from .texts import EncoderText, TextInput, TextTokens

__all__ = [
    "Activation",
    "DynamicBatching",
    "EncodeOutput",
    "EncodeRequest",
    "Encoder",
    "EncoderConfig",
    "EncoderEngine",
    "EncoderText",
    "FramedTokens",
    "Labels",
    "Matryoshka",
    "PairText",
    "Prompts",
    "TextInput",
    "TextTokens",
    "Vector",
    "activated",
    "cut",
]
