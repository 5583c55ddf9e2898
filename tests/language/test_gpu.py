"""On a GPU: the same bits from a second training, a resumed one, and a second text (row K3)."""

import warnings
from pathlib import Path

import pytest

from lm.engine.events import no_report
from lm.language.generate import GenerateOptions, generate
from lm.language.train import train
from lm.language.trained import TrainedLm
from lm.runs.check import check_run
from tests.support.tiny_training import resolved, write_corpus

pytestmark = pytest.mark.gpu

CONFIG = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
valid_streams = 4
[window]
length = 20
[model]
embedding_size = 32
hidden_sizes = [64, 32]
hidden_dropout = 0.2
weight_dropout = 0.2
[head]
kind = "softmax"
embedding_size = 32
tied = true
products = "float32"
[optim]
name = "adamw"
lr = 1e-3
[train]
device = "cuda"
batch_size = 8
max_steps = 40
validate_every = 10
checkpoint_every = 10
"""
MIXTURE = ("head.components=3", "head.context_scale=4.0")
MODELS = {
    "softmax": (),
    "sigsoftmax": ("head.kind=sigsoftmax",),
    "plif": ("head.kind=plif",),
    "moc": ("head.kind=moc", *MIXTURE),
    "mos": ("head.kind=mos", *MIXTURE),
    "mos, bfloat16": ("head.kind=mos", *MIXTURE, "head.products=bfloat16"),
    "mos, latent dropout": ("head.kind=mos", *MIXTURE, "head.latent_dropout=0.2"),
    "mos, contextual temperature": ("head.kind=mos", *MIXTURE, "head.temperature=contextual"),
    "moss": ("head.kind=moss", *MIXTURE),
    "doc": ("head.kind=doc", *MIXTURE, "head.lower_components=[1]"),
    "mixtape": ("head.kind=mixtape", "head.components=4", "head.gate_size=8", "head.gated_words=6"),
    "mfs": ("head.kind=mfs", *MIXTURE, "head.partitions=2", "head.facet_layers=1"),
    "cpr": ("head.kind=cpr", "head.candidates=[3, 6]"),
    "mogrifier": ("cell.kind=mogrifier", "cell.rounds=3", "cell.rank=8"),
}
TRANSFORMER = ("model.trunk=transformer", "model.hidden_sizes=[32, 32]", "model.weight_dropout=0.0")


@pytest.mark.parametrize("model", MODELS)
def test_a_second_and_a_resumed_training_have_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.chdir(write_corpus(tmp_path, CONFIG, 400, 60, 12))
    settings = MODELS[model]
    for run, steps in (("whole", 40), ("again", 40), ("halves", 20), ("halves", 40)):
        train(resolved(*settings, f"train.max_steps={steps}"), Path(run), no_report)
    whole, again, halves = (check_run(Path(run)).state_sha256 for run in ("whole", "again", "halves"))
    assert (again, halves) == (whole, whole)


def test_a_text_is_generated_twice_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without a warning of torch about operations that may differ."""
    monkeypatch.chdir(write_corpus(tmp_path, CONFIG, 400, 60, 12))
    train(resolved("train.max_steps=10"), Path("run"), no_report)
    trained = TrainedLm.load(Path("run"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in (GenerateOptions(), GenerateOptions(top_p=0.9), GenerateOptions(top_k=5)):
            first, again = ([one.token for one in generate(trained, "", options)] for _ in range(2))
            assert first == again


def test_a_transformer_names_the_operation_that_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If torch no longer warns, transformers belong to the models above, and `doctor` need not name them."""
    monkeypatch.chdir(write_corpus(tmp_path, CONFIG, 400, 60, 12))
    with pytest.warns(UserWarning, match=r"Memory Efficient attention .* non-deterministic"):
        fitted = train(resolved(*TRANSFORMER, "train.max_steps=2"), Path("run"), no_report)
    assert fitted.step == 2, "the warning does not end the training"
