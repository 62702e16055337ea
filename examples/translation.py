"""Translation: English number words become German ones, `forty-two` `zweiundvierzig`, in a bulk job.

German writes a number as one word and says the ones before the tens, so it takes more than a word at a time.
A small Marian model is trained on nine in ten of the numbers below 10,000. Checked: the share of the others
that are translated exactly.
"""

import hashlib
import json
import sys
from pathlib import Path
from random import Random

from examples.harness.example import Example, main
from examples.harness.outputs import rows_of
from examples.harness.service import Service
from examples.harness.training import fit, kept, save
from nightshift.cli.demo import number_in_words

BELOW = 10_000
TRANSLATED = 400
STEPS = 400
BATCH = 64
POSITIONS = 32
EXACT_MIN = 0.95
IGNORED_LABEL = -100
# fmt: off
BELOW_TWENTY = (
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)
TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
# fmt: on


def in_german(number: int) -> str:
    """`number` below 10,000 as one German word."""
    return "".join(german_parts(number))


def german_parts(number: int) -> list[str]:
    if number == 0:
        return ["null"]
    parts = []
    thousands, rest = divmod(number, 1000)
    hundreds, rest = divmod(rest, 100)
    if thousands:
        parts += [BELOW_TWENTY[thousands], "tausend"]
    if hundreds:
        parts += [BELOW_TWENTY[hundreds], "hundert"]
    if rest == 1:
        parts.append("eins")
    elif 0 < rest < 20:
        parts.append(BELOW_TWENTY[rest])
    elif rest:
        tens, ones = divmod(rest, 10)
        parts += [BELOW_TWENTY[ones], "und"] if ones else []
        parts.append(TENS[tens])
    return parts


def is_held_out(number: int) -> bool:
    """Whether training never shows it: one number in ten, of those with three digits or more."""
    return number >= 100 and hashlib.sha256(f"{number}".encode()).digest()[0] % 10 == 0


def train(directory: Path) -> None:
    import torch
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers import models as token_models
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

    torch.manual_seed(1)
    numbers = [number for number in range(BELOW) if not is_held_out(number)]
    english = {word for number in numbers for word in number_in_words(number).replace("-", " ").split()}
    german = {part for number in numbers for part in german_parts(number)}
    words = sorted(english | german, key=lambda word: (-len(word), word))  # the longest is looked for first
    ids = {word: at for at, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    made = Tokenizer(token_models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s-]+"), behavior="removed"),
            pre_tokenizers.Split(Regex("|".join(words)), behavior="isolated"),
        ]
    )
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", ids["</s>"])]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    model = MarianMTModel(
        MarianConfig(
            vocab_size=len(ids),
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_position_embeddings=POSITIONS,
            dropout=0.0,
            pad_token_id=ids["<pad>"],
            eos_token_id=ids["</s>"],
            decoder_start_token_id=ids["<pad>"],
            forced_eos_token_id=None,
            scale_embedding=True,
        )
    )
    sources = tokenizer([*map(number_in_words, numbers)], return_tensors="pt", padding=True)
    targets = tokenizer(
        [in_german(number) for number in numbers], return_tensors="pt", padding=True
    ).input_ids
    targets = targets.masked_fill(targets == ids["<pad>"], IGNORED_LABEL)

    def loss_of_step(_: int) -> torch.Tensor:
        at = torch.randint(len(numbers), (BATCH,))
        loss: torch.Tensor = model(
            input_ids=sources.input_ids[at], attention_mask=sources.attention_mask[at], labels=targets[at]
        ).loss
        return loss

    fit(model, loss_of_step, steps=STEPS, learning_rate=3e-3)
    model.generation_config = GenerationConfig(
        pad_token_id=ids["<pad>"],
        eos_token_id=ids["</s>"],
        decoder_start_token_id=ids["<pad>"],
        max_length=POSITIONS,
    )
    save(directory, model, tokenizer)


def models(cache: Path) -> list[Path]:
    return [kept(cache, "translation", sys.modules[__name__], train)]


def check(service: Service, folder: Path) -> list[str]:
    numbers = Random(2).sample([number for number in range(BELOW) if is_held_out(number)], TRANSLATED)
    lines = [{"id": str(number), "english": number_in_words(number)} for number in numbers]
    (folder / "english.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    service.run(
        folder / "english.jsonl",
        folder / "german",
        *("--endpoint", "completions", "--model", "translation", "--input-column", "english"),
        *("--id-column", "id"),
    )
    rows = rows_of(folder / "german", rows=TRANSLATED)
    answers = {
        number: rows[str(number)]["response"]["body"]["choices"][0]["text"].strip() for number in numbers
    }
    right = sum(answers[number] == in_german(number) for number in numbers)
    print(f"exact match {right / TRANSLATED:.1%} on {TRANSLATED} numbers that training never showed")
    print(f"for example {number_in_words(numbers[0])} → {answers[numbers[0]]}")
    if right / TRANSLATED < EXACT_MIN:
        wrong = next(number for number in numbers if answers[number] != in_german(number))
        return [f"exact match is below {EXACT_MIN:.0%}; {wrong} is {answers[wrong]}, not {in_german(wrong)}"]
    return []


EXAMPLE = Example("translation", "translation: number words from English to German", models, check)

if __name__ == "__main__":
    main(EXAMPLE)
