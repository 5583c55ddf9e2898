"""Trial of ``lm doctor``: a tiny language model, trained in the doctor's own process."""

from pathlib import Path

from lm.doctor.probe import probe

_TEXT = "the kettle is on and the cups are out\nthe cups are on the table and the kettle is out\n"
_SETTINGS = (
    *("model.embedding_size=8", "model.hidden_sizes=[8, 8]", "head.embedding_size=8"),
    *("head.products=float32", "window.length=5", "train.batch_size=2", "train.validate_every=2"),
    *("train.threads=1", "train.device=cpu", "optim.warmup_steps=1", "data.vocab_size=0"),
)


def lm_trial(folder: Path, steps: int) -> None:
    """Train a tiny model in a folder up to a number of updates, or resume it."""
    from lm.config.load import load_config
    from lm.language.config import LmConfig
    from lm.language.train import train

    text = folder.parent / "text.txt"
    text.write_text(_TEXT * 4, encoding="utf-8")
    splits = [f"data.{split}={text}" for split in ("train", "valid", "test")]
    settings = [*_SETTINGS, *splits, f"train.max_steps={steps}"]
    train(load_config("ptb_small_mos", LmConfig, family="lm", overrides=settings), folder, lambda _: None)


if __name__ == "__main__":
    probe(lm_trial)
