"""Recommendation scores: a cross-encoder reads a profile with a book and says how well they go together.

Profiles and books are generated, so that it is known what each reader likes: shelves beside their interests
(a sailor likes the sea), and never what they avoid. A small BERT with one output is trained on other pairs.
Checked: NDCG@5 of the order in which `/v1/rerank` puts 20 books for each reader, beside that of a random
order; and that the scores of a nightly job over the same pairs put them into the same order.
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from examples.harness.example import Example, main
from examples.harness.measures import ndcg
from examples.harness.outputs import rows_of
from examples.harness.service import Service
from examples.harness.training import fit, kept, save, word_tokenizer

READERS = 40
BOOKS_EACH = 20
FIRST = 5
TRAINED_ON = 20_000
STEPS = 700
BATCH = 64
GAIN_MAX = 3
NDCG_MIN = 0.8  # a random order has about 0.34
SCORES_DIFFER_MAX = 1e-4  # one pair in a batch with others
INTERESTS = {
    "sailing": "sea",
    "cooking": "kitchen",
    "hiking": "mountains",
    "astronomy": "stars",
    "gardening": "plants",
    "history": "empires",
}
FORMS = ["novel", "essay", "guide", "comic"]


def reader(random: Random) -> dict[str, Any]:
    *likes, avoids = random.sample(list(INTERESTS), 3)
    return {"likes": likes, "avoids": avoids, "form": random.choice(FORMS)}


def book(random: Random) -> dict[str, Any]:
    return {"form": random.choice(FORMS), "topics": random.sample(list(INTERESTS.values()), 2)}


def gain(reader: dict[str, Any], what: dict[str, Any]) -> float:
    """How much the reader likes the book: 0 to 3."""
    if INTERESTS[reader["avoids"]] in what["topics"]:
        return 0.0
    liked = sum(INTERESTS[interest] in what["topics"] for interest in reader["likes"])
    return float(liked + (liked > 0 and reader["form"] == what["form"]))


def profile(reader: dict[str, Any]) -> str:
    likes = " ".join(f"+{interest}" for interest in reader["likes"])
    return f"{likes} -{reader['avoids']} prefers-{reader['form']}"


def title(book: dict[str, Any]) -> str:
    return f"{book['form']} {' '.join(book['topics'])}"


def train(directory: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    words = [f"{sign}{interest}" for interest in INTERESTS for sign in "+-"]
    words += [*INTERESTS.values(), *FORMS, *(f"prefers-{form}" for form in FORMS)]
    tokenizer = word_tokenizer(words, positions=32)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.1,  # so small a model learns faster from larger weights
            id2label={0: "LABEL_0"},
            label2id={"LABEL_0": 0},
        )
    )
    random = Random(1)
    pairs = [(reader(random), book(random)) for _ in range(TRAINED_ON)]
    texts = [profile(one) for one, _ in pairs], [title(other) for _, other in pairs]
    inputs = tokenizer(*texts, return_tensors="pt")
    wanted = torch.tensor([gain(*pair) / GAIN_MAX for pair in pairs])

    def loss_of_step(_: int) -> torch.Tensor:
        at = torch.randint(TRAINED_ON, (BATCH,))
        logits = model(**{name: tensor[at] for name, tensor in inputs.items()}).logits[:, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted[at])

    fit(model, loss_of_step, steps=STEPS, learning_rate=2e-3)
    save(directory, model, tokenizer)


def models(cache: Path) -> list[Path]:
    return [kept(cache, "recommendation", sys.modules[__name__], train)]


def check(service: Service, folder: Path) -> list[str]:
    random = Random(2)
    readers = [reader(random) for _ in range(READERS)]
    books = [[book(random) for _ in range(BOOKS_EACH)] for _ in readers]
    scores = [_ranked(service, one, shelf) for one, shelf in zip(readers, books, strict=True)]
    nightly = _scored_in_a_job(service, folder, readers, books)

    gains = [[gain(one, item) for item in shelf] for one, shelf in zip(readers, books, strict=True)]
    total = sum(
        ndcg([gains_of_one[at] for at in sorted(by, key=by.__getitem__, reverse=True)], FIRST)
        for gains_of_one, by in zip(gains, scores, strict=True)
    )
    by_chance = sum(ndcg(random.sample(gains_of_one, len(gains_of_one)), FIRST) for gains_of_one in gains)
    differs = max(
        abs(by[at] - nightly[number, at]) for number, by in enumerate(scores) for at in range(BOOKS_EACH)
    )
    print(
        f"NDCG@{FIRST} {total / READERS:.3f} for {READERS} readers; in random order {by_chance / READERS:.3f}"
    )
    print(f"the nightly job's scores differ from those online by {differs:.1e} at most")
    problems = []
    if total / READERS < NDCG_MIN:
        problems.append(f"NDCG@{FIRST} {total / READERS:.3f} is below {NDCG_MIN}")
    if differs > SCORES_DIFFER_MAX:
        problems.append(f"scores online and in a job differ by {differs:.1e}")
    return problems


def _ranked(service: Service, reader: dict[str, Any], shelf: list[dict[str, Any]]) -> dict[int, float]:
    titles = [title(item) for item in shelf]
    query = {"model": "recommendation", "query": profile(reader), "documents": titles}
    return {result["index"]: result["relevance_score"] for result in service.post("rerank", query)["results"]}


def _scored_in_a_job(
    service: Service, folder: Path, readers: list[dict[str, Any]], books: list[list[dict[str, Any]]]
) -> dict[tuple[int, int], float]:
    """The score of each pair, by the places of its reader and its book."""
    pairs = [
        {"id": f"{number}-{at}", "query": profile(one), "title": title(item)}
        for number, (one, shelf) in enumerate(zip(readers, books, strict=True))
        for at, item in enumerate(shelf)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    service.run(
        folder / "pairs.jsonl",
        folder / "scores",
        *("--endpoint", "score", "--model", "recommendation", "--input-column", "title"),
        *("--id-column", "id", "--format", "parquet"),
    )
    rows = rows_of(folder / "scores", rows=len(pairs))
    return {
        (number, at): rows[f"{number}-{at}"]["score"]
        for number in range(len(readers))
        for at in range(BOOKS_EACH)
    }


EXAMPLE = Example(
    "recommendation", "recommendation scores: rank books for readers with a cross-encoder", models, check
)

if __name__ == "__main__":
    main(EXAMPLE)
