"""One's own conversations, invented, and settings of a tiny model for them."""

WORDS = ["the", "kettle", "is", "on", "and", "tea", "will", "be", "ready", "when", "you", "come", "home"]


def chat(dialogs: int = 12) -> str:
    """Invented dialogs of two to four utterances."""
    blocks = []
    for number in range(dialogs):
        turns = [
            f"{'AB'[t % 2]}: {' '.join(WORDS[number % 5 :][: 3 + t])} {number}" for t in range(2 + number % 3)
        ]
        blocks.append("\n".join(turns))
    return "\n\n".join(blocks) + "\n"


TINY = [
    *(
        "model.embedding_size=8",
        "encoder.utterance_size=8",
        "encoder.context_size=8",
        "decoder.hidden_size=8",
    ),
    *("head.embedding_size=8", "train.validate_every=1", "optim.warmup_steps=0"),
]


SETTINGS = [word for setting in TINY for word in ("--set", setting)]


BRIEF = [*SETTINGS, "--set", "train.max_steps=2"]
