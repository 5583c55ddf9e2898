"""A dialog model that trains on six sentences in no time, by a preset of small talk and :data:`TALK`."""

from pathlib import Path

TALK = (
    "model.embedding_size=8", "encoder.utterance_size=8", "encoder.context_size=8", "decoder.hidden_size=8",
    "head.embedding_size=8", "optim.schedule=constant", "optim.warmup_steps=0", "train.shards=4",
    "train.max_steps=6", "train.validate_every=3", "model.dropout=0.2", "data.train=talk.txt",
    "data.valid=talk.txt", "data.test=talk.txt",
)  # fmt: skip
SAID = (
    "is it raining",
    "yes it is",
    "take a coat then",
    "i will take one",
    "what time is it",
    "half past nine",
)


def write_talk(folder: Path) -> Path:
    """Write ``talk.txt`` into a folder, which is created."""
    folder.mkdir(exist_ok=True)
    dialogs = ["\n".join(SAID[shift:] + SAID[:shift]) for shift in range(len(SAID))]
    (folder / "talk.txt").write_text("\n\n".join(dialogs * 3) + "\n")
    return folder
