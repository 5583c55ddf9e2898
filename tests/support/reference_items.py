"""Dialogs that are made up, and their references."""

import random

from dialog.metrics.references import build_references
from dialog.utterance import Dialog, Utterance
from tests.support.words import WORDS


def made_up(
    seed: int, count: int, topics: tuple[str, ...] = ("pets", "cars"), turns: int = 14
) -> list[Dialog]:
    rng = random.Random(seed)
    return [
        Dialog(
            str(number),
            rng.choice(topics),
            tuple(
                Utterance(rng.choice("AB"), " ".join(rng.choices(WORDS, k=rng.randint(1, 6))), "sd")
                for _ in range(turns)
            ),
        )
        for number in range(count)
    ]


TRAIN, TEST = made_up(1, 12), made_up(2, 4)
ITEMS = build_references(TRAIN, TEST, neighbours=5)
