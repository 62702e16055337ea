"""Checkpoints to measure with: random-weight Llamas of two sizes, in two dtypes, and their tokenizer.

Speed does not depend on the values of the weights, so none need be downloaded. They are random but scaled:
a plain initialisation makes greedy decoding repeat its last token for ever, which would flatter engines that
cache or speculate. The tokenizer is a byte-level BPE trained on the standard library's own sources.

    python -m benchmarks.checkpoints small medium        # into .bench/models
"""

from __future__ import annotations

import argparse
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import BENCH_DIRECTORY

MODELS_DIRECTORY = BENCH_DIRECTORY / "models"
DTYPES = ("float32", "bfloat16")
SPECIAL_TOKENS = ("<s>", "</s>", "<unk>", "<pad>")
CONTEXT_LENGTH = 2048
SOURCE_FILES_MAX = 900
"""Enough text for 32,000 merges, in a few seconds."""


@dataclass(frozen=True)
class Shape:
    """A Llama's dimensions. Heads have `hidden_size / num_heads`; input and output embeddings are apart."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def layer_linears(self) -> tuple[tuple[int, int], ...]:
        """`(in, out)` of one layer's linears, as an engine that fuses qkv and gate/up computes them."""
        qkv = self.hidden_size + 2 * self.num_kv_heads * self.head_dim
        return (
            (self.hidden_size, qkv),
            (self.hidden_size, self.hidden_size),
            (self.hidden_size, 2 * self.intermediate_size),
            (self.intermediate_size, self.hidden_size),
        )

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of all layers' linears, without embeddings, head and norms."""
        return self.num_layers * sum(inputs * outputs for inputs, outputs in self.layer_linears)

    @property
    def num_head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


SHAPES = {
    "tiny": Shape(512, 64, 2, 4, 2, 128),
    "small": Shape(8192, 384, 8, 6, 2, 1536),
    "medium": Shape(32000, 768, 12, 12, 4, 2560),
}
"""tiny is for trying the scripts; small and medium are the sizes that published figures are about."""


def ensure(name: str, dtype: str, directory: Path = MODELS_DIRECTORY) -> Path:
    """The checkpoint's directory `<name>-<dtype>`, made first if it is not there."""
    path = directory / f"{name}-{dtype}"
    if not (path / "config.json").exists():
        make(name, dtype, path)
    return path


def make(name: str, dtype: str, path: Path) -> None:
    """Write a checkpoint. Both dtypes of a name have the same values, up to rounding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    shape = SHAPES[name]
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=SPECIAL_TOKENS.index("<s>"),
        eos_token_id=SPECIAL_TOKENS.index("</s>"),
        pad_token_id=SPECIAL_TOKENS.index("<pad>"),
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "embed" in parameter_name:
                parameter.normal_(0, 1)
            elif parameter.dim() == 2:
                # 1.5 / sqrt(fan in): residual branches strong enough that outputs wander over the vocabulary.
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
    unfinished = path.with_name(path.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(getattr(torch, dtype)).save_pretrained(unfinished)
    _save_tokenizer(shape.vocab_size, unfinished)
    unfinished.rename(path)


def _save_tokenizer(vocab_size: int, path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_source_texts(), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        padding_side="left",
    ).save_pretrained(path)


def _source_texts() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    for file in files[:SOURCE_FILES_MAX]:
        yield file.read_text(encoding="utf-8", errors="ignore")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the checkpoints that benchmarks use.")
    parser.add_argument("names", nargs="*", default=["small", "medium"], choices=[*SHAPES], metavar="NAME")
    for name in parser.parse_args(arguments).names:
        for dtype in DTYPES:
            print(ensure(name, dtype), flush=True)


if __name__ == "__main__":
    main()
