"""Trial of ``dialog doctor``: a tiny dialog model, trained in the doctor's own process."""

from pathlib import Path

from lm.doctor.probe import probe, tiny_settings

_TALK = "A: is the kettle on\nB: it is\nA: and the cups\nB: they are out\n\n"
_SETTINGS = (
    *("data.vocab_size=40", "model.embedding_size=8", "encoder.utterance_size=8", "encoder.context_size=8"),
    *("decoder.hidden_size=8", "head.embedding_size=8", "decode.products=float32", "train.batch_size=1"),
)


def dialog_trial(folder: Path, steps: int) -> None:
    """Train a tiny model in a folder up to a number of updates, or resume it."""
    from dialog.config import DialogConfig
    from dialog.train import train
    from lm.config.load import load_config

    settings = [*_SETTINGS, *tiny_settings(folder, _TALK * 4, steps)]
    train(load_config("own_small", DialogConfig, family="dialog", overrides=settings), folder, lambda _: None)


if __name__ == "__main__":
    probe(dialog_trial)
