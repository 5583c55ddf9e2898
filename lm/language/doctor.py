"""Trial of ``lm doctor``: a tiny language model, trained in the doctor's own process."""

from pathlib import Path

from lm.doctor.probe import probe, tiny_settings

_TEXT = "the kettle is on and the cups are out\nthe cups are on the table and the kettle is out\n"
_SETTINGS = (
    *("model.embedding_size=8", "model.hidden_sizes=[8, 8]", "head.embedding_size=8"),
    *("window.length=5", "train.batch_size=2", "optim.warmup_steps=1", "data.vocab_size=0"),
)


def lm_trial(folder: Path, steps: int) -> None:
    """Train a tiny model in a folder up to a number of updates, or resume it."""
    from lm.config.load import load_config
    from lm.language.config import LmConfig
    from lm.language.train import train

    settings = [*_SETTINGS, *tiny_settings(folder, _TEXT * 4, steps)]
    train(load_config("ptb_small_mos", LmConfig, family="lm", overrides=settings), folder, lambda _: None)


if __name__ == "__main__":
    probe(lm_trial)
