"""Exercises of the demo model: random conversations whose right answers are known.

Most are one number and its words. Some have earlier turns or a system message, so that the model learns to
answer the last question and nothing else; a few ask something that is no number, so that it learns to say so.
Numbers held out by `nightshift.cli.demo.is_held_out` are never drawn, in no role. All randomness comes from
the `Random` passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from nightshift.cli.demo import LARGEST_NUMBER, is_held_out, number_in_words

NOT_A_NUMBER_ANSWER = "I only know numbers below one million."

CHATTER = (
    "You are a helpful assistant.",
    "You are a careful assistant that answers briefly.",
    "You write numbers in English words.",
    "Write the number in words.",
    "Answer with the words only, without any explanation.",
    "Be concise and answer in one line.",
    "Spell the number that the user gives you.",
    "Today is day {n} of the year.",
    "The last customer had the number {n}.",
    "Hello!",
    "Hello, how are you today?",
    "Hi there",
    "What is the weather like in Paris?",
    "What can you do?",
    "Who are you?",
    "Tell me a story about a lighthouse keeper.",
    "Summarise the following document in two sentences.",
    "Translate this sentence into French.",
    "Write a poem about the sea at night.",
    "The quick brown fox jumps over the lazy dog.",
    "Please explain how a queue works.",
    "Why is the sky blue?",
    "Give me three ideas for dinner.",
    "What is the capital of Australia?",
    "Is this transaction likely to be fraud?",
    "Classify the sentiment of this review.",
    "The battery lasts all day and the screen is bright.",
    "Delivery was late and the box was damaged.",
    "Our revenue grew in the third quarter.",
    "Explain the difference between a thread and a process.",
    "Do you know any jokes?",
    "Thank you very much.",
    "How do I reset my password?",
    "Which model are you running?",
    "Count the words in this sentence.",
    "Say something nice about batch jobs.",
    "test",
    "a",
    "ok",
    "?",
)

# The least a training run must repeat: place values come from long numbers, the rest from short and round
# ones.
_UNIFORM_SHARE, _ANY_LENGTH_SHARE = 0.5, 0.3
_COMMA_SHARE = 0.04
_NOT_A_NUMBER_SHARE = 0.06
_CONVERSATION_SHARE, _SYSTEM_SHARE = 0.10, 0.10

_PRINTABLE = "".join(chr(code) for code in range(33, 127)) + "äéßñ中文字🙂"


@dataclass(frozen=True)
class Message:
    """One turn: `role` is system, user or assistant."""

    role: str
    text: str


def draw_batch_shape(random: Random) -> Callable[[Random], list[Message]]:
    """Which kind of conversation the next batch holds; one kind only, so that rows are of like length."""
    kind = random.random()
    if kind < _CONVERSATION_SHARE:
        return _conversation
    return _with_system_message if kind < _CONVERSATION_SHARE + _SYSTEM_SHARE else _question_and_answer


def draw_number(random: Random) -> int:
    """A number training may show: half uniform, the rest of any length, or round."""
    while True:
        n = _candidate(random)
        if not is_held_out(n):
            return n


def tokenizer_corpus(random: Random, lines: int = 4_000) -> list[str]:
    """Text whose merges make every number word, and the commoner English around it, single tokens."""
    words = [number_in_words(draw_number(random)) for _ in range(lines)]
    return words + [NOT_A_NUMBER_ANSWER, *CHATTER] * 4


def _question_and_answer(random: Random) -> list[Message]:
    question, answer = _exchange(random)
    return [Message("user", question), Message("assistant", answer)]


def _conversation(random: Random) -> list[Message]:
    return [message for _ in range(random.randint(2, 5)) for message in _question_and_answer(random)]


def _with_system_message(random: Random) -> list[Message]:
    return [Message("system", _chatter(random, sentences_max=4)), *_question_and_answer(random)]


def _exchange(random: Random) -> tuple[str, str]:
    if random.random() < _NOT_A_NUMBER_SHARE:
        return _not_a_number(random), NOT_A_NUMBER_ANSWER
    n = draw_number(random)
    question = f"{n:,}" if random.random() < _COMMA_SHARE else str(n)
    return question, number_in_words(n)


def _candidate(random: Random) -> int:
    kind = random.random()
    if kind < _UNIFORM_SHARE:
        return random.randint(0, LARGEST_NUMBER)
    digits = random.randint(1, len(str(LARGEST_NUMBER)))
    n = random.randrange(10**digits)
    if kind < _UNIFORM_SHARE + _ANY_LENGTH_SHARE:
        return n
    # Round: each digit but the first is likely to be zero.
    return int("".join(d if i == 0 or random.random() < 0.3 else "0" for i, d in enumerate(str(n))))


def _not_a_number(random: Random) -> str:
    kind = random.random()
    if kind < 0.5:
        return _chatter(random, sentences_max=1)
    if kind < 0.70:
        return str(random.randint(LARGEST_NUMBER + 1, 10 ** random.randint(7, 10)))
    if kind < 0.80:
        return random.choice((f"-{draw_number(random)}", f"{draw_number(random)}.{random.randint(0, 99)}"))
    return "".join(random.choices(_PRINTABLE, k=random.randint(1, 10))).strip("0123456789") or "?"


def _chatter(random: Random, sentences_max: int) -> str:
    sentences = random.choices(CHATTER, k=random.randint(1, sentences_max))
    return " ".join(sentences).replace("{n}", str(draw_number(random)))
