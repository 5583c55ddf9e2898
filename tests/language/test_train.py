"""Language models trained for real on a tiny text: loss, carried state, resuming, finetuning, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.engine.events import no_report
from lm.engine.rng import seed_everything
from lm.errors import ConfigError, DataError, StorageError
from lm.language.corpora.corpus import load_codec, load_split
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.scoring import token_nll
from lm.language.task import score_streams
from lm.language.train import finetuned, train
from lm.language.trained import TrainedLm
from lm.regularize import activation_penalty, slowness_penalty
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.outcomes import outcome
from tests.support.signals import signal_at
from tests.support.tiny_training import WORDS, resolved, task, write_corpus

CONFIG = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
valid_streams = 3
[window]
length = 7
shortest = 2
[model]
embedding_size = 6
hidden_sizes = [9, 8]
[head]
kind = "mos"
components = 2
embedding_size = 6
tied = true
latent_dropout = 0.2
[optim]
name = "sgd"
lr = 1.0
clip_norm = 0.25
weight_decay = 1e-4
average = "uniform"
average_trigger = 1
[train]
batch_size = 4
max_steps = 40
validate_every = 6
checkpoint_every = 5
log_every = 3
"""


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    return write_corpus(in_tmp, CONFIG, train=60, valid=12, longest=12)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_signal_ends_the_reading_of_a_long_text(prepared: bool, corpus: Path) -> None:
    config = resolved()
    if prepared:
        prepare("train.txt", corpus / "out", PrepareOptions(shard_tokens=50))
        config = resolved('data.train="out/train"', 'data.valid="out/valid"')
    train(config, corpus / "first", no_report)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "add_ids" if prepared else "read_tokens"):
        train(config, corpus / "run", no_report)
    assert not (corpus / "run").exists()


@pytest.mark.parametrize("head", [(), ("kind=doc", "components=3", "lower_components=[1]")])
def test_the_loss_is_nll_and_penalties(corpus: Path, head: tuple[str, ...]) -> None:
    """Penalties are of the last layer, whatever layers the head reads."""
    calm = [f"model.{name}_dropout=0.0" for name in ("embedding", "input", "hidden", "output", "weight")]
    penalties = ("head.latent_dropout=0.0", "model.activation_penalty=2.0", "model.slowness_penalty=3.0")
    tiny = task(*calm, *penalties, *(f"head.{setting}" for setting in head))
    window = next(tiny.epoch(0, 0))
    loss = tiny.loss(window)
    outputs = tiny.model(window.tokens, tiny.model.initial_state(4))
    nll = F.nll_loss(tiny.model.head.log_probs(outputs.hidden).flatten(0, 1), window.targets.flatten())
    penalty = 2 * activation_penalty(outputs.raw) + 3 * slowness_penalty(outputs.raw)
    tokens = window.targets.numel()
    assert loss.tokens == tokens
    torch.testing.assert_close(loss.nll, nll.detach() * tokens)
    torch.testing.assert_close(loss.objective, (nll + penalty) * tokens)


def test_activations_are_penalised_after_dropout_and_slowness_before_it(corpus: Path) -> None:
    calm = [f"model.{name}_dropout=0.0" for name in ("embedding", "input", "hidden", "weight")]
    penalties = ("head.latent_dropout=0.0", "model.activation_penalty=2.0", "model.slowness_penalty=3.0")
    tiny = task(*calm, *penalties, "model.output_dropout=0.5")
    tiny.model.train()
    window = next(tiny.epoch(0, 0))
    torch.manual_seed(5)
    loss = tiny.loss(window)
    torch.manual_seed(5)
    outputs = tiny.model(window.tokens, tiny.model.initial_state(4))
    assert not torch.equal(outputs.hidden.last, outputs.raw)
    penalty = 2 * activation_penalty(outputs.hidden.last) + 3 * slowness_penalty(outputs.raw)
    torch.testing.assert_close(loss.objective - loss.nll, window.targets.numel() * penalty)


def test_unlikely_words_are_those_before_in_the_stream_of_the_window(corpus: Path) -> None:
    calm = [f"model.{name}_dropout=0.0" for name in ("embedding", "input", "hidden", "output", "weight")]
    calm += ["model.activation_penalty=0.0", "model.slowness_penalty=0.0", "head.latent_dropout=0.0"]
    tiny = task(*calm, "head.unlikelihood=0.5", dtype=torch.float64)
    window = next(tiny.epoch(0, 0))
    log_probs = tiny.model.head.log_probs(tiny.model(window.tokens, tiny.model.initial_state(4)).hidden)
    expected = F.nll_loss(log_probs.flatten(0, 1), window.targets.flatten(), reduction="sum")
    for stream in range(4):
        said = window.targets[:, stream].tolist()
        for time, token in enumerate(said):
            for word in set(said[:time]) - {token}:
                expected = expected - 0.5 * torch.log1p(-log_probs[time, stream, word].exp())
    torch.testing.assert_close(tiny.loss(window).objective, expected)


def test_the_past_decoder_finds_the_inputs_of_the_window(corpus: Path) -> None:
    calm = [f"model.{name}_dropout=0.0" for name in ("embedding", "input", "hidden", "output", "weight")]
    calm += ["model.activation_penalty=0.0", "model.slowness_penalty=0.0", "head.latent_dropout=0.0"]
    tiny = task(*calm, "head.past_decode=0.5", dtype=torch.float64)
    window, head = next(tiny.epoch(0, 0)), tiny.model.head
    log_probs = head.log_probs(tiny.model(window.tokens, tiny.model.initial_state(4)).hidden).flatten(0, 1)
    assert head.past is not None
    past = head.past(log_probs, head.weight, window.tokens.flatten()).sum()
    nll = F.nll_loss(log_probs, window.targets.flatten(), reduction="sum")
    loss = tiny.loss(window)
    torch.testing.assert_close(loss.nll, nll.detach())
    torch.testing.assert_close(loss.objective, nll + 0.5 * past)


def test_every_pass_has_windows_of_its_own(corpus: Path) -> None:
    tiny = task()
    passes = [[len(window.tokens) for window in tiny.epoch(number, 0)] for number in (0, 0, 1)]
    assert passes[0] == passes[1] != passes[2]


def test_a_skipped_window_that_begins_a_text_leaves_no_state_of_the_one_before(corpus: Path) -> None:
    tiny = task()
    zero = tiny.state()
    windows = list(tiny.epoch(0, 0))
    tiny.loss(windows[-1])
    carried = tiny.state()
    tiny.skipped(windows[1:3])
    assert all(torch.equal(carried[name], found) for name, found in tiny.state().items())
    tiny.skipped(windows[:2])
    assert all(torch.equal(zero[name], found) for name, found in tiny.state().items())


def test_state_is_carried_within_a_pass_and_starts_from_zero(corpus: Path) -> None:
    tiny = task()
    zero = tiny.state()
    windows = tiny.epoch(0, 0)
    tiny.loss(next(windows))
    carried = tiny.state()
    assert all(not torch.equal(carried[name], zero[name]) for name in zero)
    tiny.model.eval()
    second = next(windows)
    first_again = float(tiny.loss(second).nll)
    tiny.load_state(carried)
    assert float(tiny.loss(second).nll) == first_again
    tiny.load_state(zero)
    assert float(tiny.loss(second).nll) != first_again, "the state makes no difference"
    tiny.load_state(carried)
    fresh = float(tiny.loss(next(tiny.epoch(1, 0))).nll)
    tiny.load_state(zero)
    assert float(tiny.loss(next(tiny.epoch(1, 0))).nll) == fresh, "a pass begins with another's state"


def test_validation_of_one_stream_is_the_score_of_the_opened_run(corpus: Path) -> None:
    train(resolved("train.max_steps=6"), Path("run"), no_report)
    trained = TrainedLm.load(Path("run"))
    split = load_split("valid.txt", trained.codec)
    with torch.no_grad():
        eos = trained.codec.vocabulary.eos
        total, tokens = map(sum, zip(*score_streams(trained.model, split.files, 1, eos), strict=True))
    nll = token_nll(trained, split.ids())
    assert tokens == len(nll) == len(split)
    assert total == pytest.approx(float(nll.sum()), rel=1e-6)


def test_validation_reads_every_file_from_a_zero_state(corpus: Path) -> None:
    tiny = task()
    ids = load_split("valid.txt", load_codec(resolved().config.data)).ids()
    parts = [ids[:40], ids[40:90]]
    with torch.no_grad():
        both, *alone = (
            sum(nll for nll, _ in score_streams(tiny.model.eval(), files, 2, tiny._begin))
            for files in (parts, parts[:1], parts[1:])
        )
    assert both == pytest.approx(sum(alone), rel=1e-6)


def test_paper_validation_scores_one_token_less_and_divides_by_all(corpus: Path) -> None:
    tiny = task()
    ids = load_split("valid.txt", load_codec(resolved().config.data)).ids()
    arguments = (tiny.model.eval(), [ids], 1, tiny._begin)
    with torch.no_grad():
        total, tokens = map(sum, zip(*score_streams(*arguments, paper=True), strict=True))
        inputs, targets = (
            torch.from_numpy(ids[:-1].astype(np.int64)),
            torch.from_numpy(ids[1:].astype(np.int64)),
        )
        outputs = tiny.model(inputs[:, None], tiny.model.initial_state(1))
        expected = float(tiny.model.head.nll(outputs.hidden.last[:, 0], targets).double().sum())
    assert tokens == len(ids)
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        pytest.param('train.compat="none"', marks=pytest.mark.slow),
        'train.compat="paper"',
        pytest.param("cell.kind=mogrifier", marks=pytest.mark.slow),
        pytest.param("cell.kind=mlstm", marks=pytest.mark.slow),
        "cell.kind=mogrifier_gru",
        "window.partial_shuffle=true",
        "model.bigrams=31",
    ],
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(corpus: Path, same: str) -> None:
    train(resolved(same), Path("once"), no_report)
    for steps in (6, 18, 30, 40):  # each the place of a validation
        train(resolved(same, f"train.max_steps={steps}"), Path("twice"), no_report)
    assert b'"averaging"' in outcome(Path("once"))[1], "the trigger is not part of this test"
    assert outcome(Path("once")) == outcome(Path("twice"))


def test_a_training_begins_at_the_frequencies_of_words(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finetuning begins with the bias of the other run instead."""
    monkeypatch.setattr(Codec, "expected_counts", lambda codec: [1 + n for n in codec.vocabulary.counts])
    start, still = (
        'head.start="frequencies"',
        ("optim.lr=1e-9", "train.max_steps=1", "train.validate_every=1"),
    )
    train(resolved(start, *still), Path("still"), no_report)
    bias = CheckpointStore.of(Path("still")).open("last").tensors("model")["head.bias"].double()
    counts = torch.tensor(load_codec(resolved().config.data).expected_counts(), dtype=torch.float64) + 1
    torch.testing.assert_close(bias.softmax(0), counts / counts.sum(), rtol=1e-6, atol=0)
    train(resolved(start), Path("base"), no_report)
    trained = CheckpointStore.of(Path("base")).open("best").inference_tensors()["head.bias"]
    train(finetuned(Path("base"), [*still[:2]]), Path("tuned"), no_report)
    begun = CheckpointStore.of(Path("tuned")).open("last").tensors("model")["head.bias"]
    torch.testing.assert_close(begun, trained)
    assert (begun.double() - bias).abs().max() > 0.01


def test_finetuning_starts_from_the_best_weights_and_keeps_better_ones_only(corpus: Path) -> None:
    train(resolved(), Path("runs/base"), no_report)
    config = finetuned(Path("runs/base"), ["train.max_steps=12", "optim.lr=1e-9"])
    assert config.config.optim.average == "uniform"
    assert config.config.train.start_from == "runs/base"
    train(config, Path("runs/base-finetuned"), no_report)
    records = [
        json.loads(line) for line in Path("runs/base-finetuned/metrics.jsonl").read_text().splitlines()
    ]
    valid = [record for record in records if record["split"] == "valid"]
    base = CheckpointStore(Path("runs/base/checkpoints"))
    before: Any = base.open("best").state
    assert valid[0]["step"] == 0
    assert valid[0]["nll"] == pytest.approx(before["progress"]["best"][0][0])
    best = TrainedLm.load(Path("runs/base-finetuned")).model.state_dict()
    for name, tensor in base.weights("best").items():
        torch.testing.assert_close(best[name], tensor, rtol=1e-4, atol=1e-5)


def test_finetuning_a_run_of_another_optimiser_asks_for_a_rate(corpus: Path) -> None:
    adam = ("optim.name=adamw", "optim.lr=1e-3", "optim.warmup_steps=9", "optim.weight_decay=0.1")
    train(resolved(*adam, "train.max_steps=3", "train.patience=2"), Path("run"), no_report)
    with pytest.raises(ConfigError, match=r"run: trained by adamw.*--set optim\.lr=20"):
        finetuned(Path("run"), [])
    config = finetuned(Path("run"), ["optim.lr=15.0", "train.max_steps=4"]).config
    assert (config.optim.name, config.optim.lr, config.optim.warmup_steps) == ("sgd", 15.0, 0)
    assert (config.optim.weight_decay, config.train.patience) == (1.2e-6, 0)
    assert config.train.stop_trigger == 1  # the trigger of the run
    assert config.train.max_steps == 4


def test_finetuning_a_run_of_muon_drops_its_momentum(corpus: Path) -> None:
    muon = ("optim.name=muon", "optim.lr=1e-3", "optim.muon_momentum=0.9")
    train(resolved(*muon, "train.max_steps=1"), Path("run"), no_report)
    assert finetuned(Path("run"), ["optim.lr=15.0"]).config.optim.muon_momentum == 0.95


def test_finetuning_ends_by_the_trigger_of_its_run(corpus: Path) -> None:
    """The authors of DOC finetune with --nonmono 60, as they train."""
    train(resolved("optim.average_trigger=60", "train.max_steps=3"), Path("run"), no_report)
    first = finetuned(Path("run"), [])
    assert (first.config.train.stop_trigger, first.config.optim.average_trigger) == (60, 0)
    train(finetuned(Path("run"), ["train.max_steps=2"]), Path("run-finetuned"), no_report)
    assert finetuned(Path("run-finetuned"), []).config.train.stop_trigger == 60
    assert finetuned(Path("run"), ["train.stop_trigger=7"]).config.train.stop_trigger == 7


def test_a_resumed_run_keeps_its_vocabulary_whatever_the_test_text_is(corpus: Path) -> None:
    train(resolved("train.max_steps=2"), Path("run"), no_report)
    vocabulary = Path("run/vocabulary.json").read_bytes()
    Path("other.txt").write_text("words that nobody has said\n")
    result = train(resolved("train.max_steps=4", 'data.test="other.txt"'), Path("run"), no_report)
    assert result.step == 4
    assert Path("run/vocabulary.json").read_bytes() == vocabulary


def test_a_run_of_dialog_is_refused_by_name(corpus: Path) -> None:
    run = Path("talk")
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"family": "dialog", "config": {}, "provenance": {}}))
    with pytest.raises(
        StorageError, match="talk: a run of `dialog`, not of `lm`; only commands of `dialog` open it"
    ):
        TrainedLm.load(run)
    with pytest.raises(StorageError, match="a run of `dialog`"):
        train(resolved(), run, no_report)


def test_more_than_the_memory_is_refused_before_training(corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"training needs about .* [GT]B .* head\.components") as refusal:
        train(resolved("head.components=9000000"), Path("huge"), no_report)
    assert "\n" not in str(refusal.value)
    assert not Path("huge").exists()


def test_changed_text_is_noticed_when_a_run_is_resumed(corpus: Path) -> None:
    train(resolved("train.max_steps=2"), Path("run"), no_report)
    text, config = Path("valid.txt").read_text(), Path("run/config.json").read_bytes()
    Path("valid.txt").write_text(text + "the cat\n")
    with pytest.raises(DataError, match=r"valid\.txt: the text changed"):
        train(resolved(), Path("run"), no_report)
    assert Path("run/config.json").read_bytes() == config, "with the old limit"
    Path("valid.txt").write_text(text)
    train(resolved(), Path("run"), no_report)


@pytest.mark.parametrize(("split", "key"), [("train", "train.batch_size"), ("valid", "data.valid_streams")])
def test_too_many_streams_are_refused(corpus: Path, split: str, key: str) -> None:
    with pytest.raises(DataError, match=rf"{split}\.txt: .* tokens for {key} = 5000 streams; lower {key}"):
        train(resolved(f"{key}=5000"), Path("run"), no_report)
    assert not Path("run/config.json").exists()


def test_files_that_are_each_too_short_are_refused(corpus: Path) -> None:
    """Together they have tokens for every stream. With ``paper``, two rows of a file make no window."""
    prepare("train.txt", corpus / "out", PrepareOptions(shard_tokens=50))
    many = ("data.train=out/train", "data.valid=out/valid", "train.batch_size=60", "data.valid_streams=2")
    words = sum(len(line.split()) + 1 for line in (corpus / "train.txt").read_text().splitlines())
    two_rows = ("train.compat=paper", f"train.batch_size={words // 2}", "data.valid_streams=2")
    for settings in (many, two_rows):
        with pytest.raises(DataError, match=r"lower train\.batch_size") as refused:
            train(resolved(*settings), Path("run"), no_report)
        if settings is many:
            told = r"out/train: the longest of \d+ files has 5\d tokens for .* 60 streams; lower .*-tokens"
            assert re.fullmatch(told, str(refused.value)), refused.value
        assert not Path("run/config.json").exists()


@pytest.mark.parametrize(
    "head",
    [
        ("kind=doc", "components=3", "lower_components=[1]", "prior_penalty=0.1"),
        ("kind=mixtape", "gated_words=4"),
        ("kind=mfs", "partitions=3", "facet_layers=2"),
        ("kind=cpr", "candidates=[3]", "facet_layers=1"),
        ("temperature=contextual", "temperature_loss_scaling=true"),
    ],
    ids=["doc", "mixtape", "mfs", "cpr", "contextual"],
)
def test_every_later_head_trains_reports_its_nll_and_is_scored(corpus: Path, head: tuple[str, ...]) -> None:
    settings = ("head.latent_dropout=0.0", "train.max_steps=12", *(f"head.{key}" for key in head))
    tiny = task(*settings)
    window = next(tiny.epoch(0, 0))
    seed_everything(1)
    step = tiny.loss(window)
    seed_everything(1)
    hidden = tiny.model(window.tokens, tiny.model.initial_state(4)).hidden
    wanted = tiny.model.head.nll(hidden, window.targets).sum()
    torch.testing.assert_close(step.nll, wanted)
    assert step.objective > step.nll
    train(resolved(*settings), Path("run"), no_report)
    trained = TrainedLm.load(Path("run"))
    ids = load_split("valid.txt", trained.codec).ids()[:40]
    nll = token_nll(trained, ids)
    log_probs = torch.cat(list(trained.log_probs(ids)))
    gathered = -log_probs[torch.arange(40), torch.from_numpy(ids.astype(np.int64))]
    np.testing.assert_allclose(nll, gathered.numpy(), rtol=1e-4)
    assert np.exp(nll.mean()) < len(WORDS) + 2
