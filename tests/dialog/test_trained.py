"""A run from training to use: learning, resuming, scoring, responding."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from dialog.batches import list_examples
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.evaluate import evaluate
from dialog.task import DialogTask, build_model
from dialog.train import train
from dialog.trained import NEVER_SAID, TrainedModel
from dialog.utterance import Dialog
from lm.config.load import Resolved, load_config
from lm.engine.events import no_report
from lm.errors import ConfigError, DataError, StorageError
from lm.runs.check import check_run
from lm.runs.checkpoint import CheckpointStore
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import build_codec
from tests.support.damage import forget_record
from tests.support.signals import signal_at
from tests.support.tiny_dialog import tiny_dialog

LATER_HEADS = ("sigsoftmax", "moc", "moss")
TALKS = {
    "rain": ("is it raining", "yes it is", "take a coat then", "i will take one", "bye"),
    "time": ("what time is it", "half past nine", "so late already", "we must go", "fine"),
    "food": ("are you hungry", "very hungry indeed", "let us cook", "rice and beans again", "yes"),
    "trip": ("where were you", "at the sea", "was it cold there", "it was like ice", "oh no"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations in which every answer follows from what was said before."""
    path = tmp_path_factory.mktemp("corpus") / "talk.jsonl"
    lines = []
    for topic, texts in TALKS.items():
        said = [{"speaker": "AB"[i % 2], "text": text} for i, text in enumerate(texts)]
        lines.append(json.dumps({"id": topic, "utterances": said}))
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(corpus: Path, head: str, steps: int, *more: str) -> Resolved[DialogConfig]:
    text = [f"data.{split}={corpus}" for split in ("train", "valid", "test")]
    mixture = head in ("moc", "mos", "moss")
    text += [f"head.kind={head}", f"head.components={2 if mixture else 1}", "head.embedding_size=12"]
    text += ["model.embedding_size=12", "encoder.utterance_size=12", "encoder.context_size=24"]
    text += ["decoder.hidden_size=24", "optim.lr=0.01", "train.batch_size=4", f"train.max_steps={steps}"]
    text += ["optim.schedule=constant", "train.validate_every=50", "train.patience=0", "head.tied=false"]
    text += ["optim.warmup_steps=0", "model.init_range=0.3", *(["head.context_scale=4.0"] if mixture else [])]
    return load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=[*text, *more])


def test_scores_are_of_responses_up_to_their_cap(corpus: Path, tmp_path: Path) -> None:
    resolved = settings(corpus, "softmax", 2, "data.max_response=4", "train.validate_every=2")
    train(resolved, tmp_path / "run", no_report)
    model = TrainedModel.load(tmp_path / "run")
    dialogs = load_dialogs(str(corpus))
    scores = model.nll(dialogs)
    assert max(score.tokens for score in scores) == 3
    lengths = [len(example.response.text.split()) for example in list_examples(dialogs, 9)]
    assert [score.cut for score in scores] == [max(0, length - 2) for length in lengths]


def test_a_training_begins_at_the_frequencies_of_what_is_said(corpus: Path, tmp_path: Path) -> None:
    """Tokens that no response contains have the least."""
    train(settings(corpus, "mos", 1, "head.start=frequencies"), tmp_path, no_report)
    bias = CheckpointStore.of(tmp_path).open("step-0").tensors("model")["head.bias"].double()
    codec = TrainedModel.load(tmp_path).codec
    words = codec.vocabulary
    known = zip(words.tokens, codec.expected_counts(), strict=True)
    counts = [0 if token in NEVER_SAID else count for token, count in known]
    shares = torch.tensor(counts, dtype=torch.float64) + 1
    torch.testing.assert_close(bias.softmax(0), shares / shares.sum(), rtol=1e-6, atol=0)
    assert bias[words.bos] == bias.min() < bias[words.eos]


class Runs(dict[str, Path]):
    """Runs by head, each trained when it is first asked for."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        self._corpus, self._folder = corpus, folder

    def __missing__(self, head: str) -> Path:
        self[head] = self._folder / head
        train(settings(self._corpus, head, 300), self[head], no_report)
        return self[head]


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(corpus, tmp_path_factory.mktemp("runs"))


def dialogs_of(run: Path) -> list[Dialog]:
    from dialog.corpora.corpus import load_dialogs

    return load_dialogs(json.loads((run / "config.json").read_text())["config"]["data"]["test"])


def test_a_signal_ends_the_reading_of_long_conversations(corpus: Path, tmp_path: Path) -> None:
    train(settings(corpus, "softmax", 1), tmp_path / "first", no_report)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "read_lines"):
        train(settings(corpus, "softmax", 1), tmp_path / "run", no_report)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("like", "more"),
    [
        ("mos", ("head.kind=mixtape", "head.components=4", "head.gated_words=5")),
        ("softmax", ("head.kind=plif", "head.temperature=sigmoid")),
        ("mos", ("head.kind=doc", "head.components=3", "head.lower_components=[1,1]", "decoder.layers=2")),
        ("mos", ("head.kind=mfs", "head.components=2", "head.partitions=3", "head.facet_layers=1")),
        ("mos", ("head.kind=cpr", "head.components=2", "head.candidates=[2,4]", "head.source=pointer")),
    ],
    ids=["mixtape", "plif", "doc", "mfs", "cpr"],
)
def test_later_heads_train_and_respond(
    corpus: Path, tmp_path: Path, like: str, more: tuple[str, ...]
) -> None:
    train(settings(corpus, like, 3, *more), tmp_path / "run", no_report)
    model = TrainedModel.load(tmp_path / "run")
    dialogs = dialogs_of(tmp_path / "run")
    assert torch.isfinite(torch.as_tensor(model.nll(dialogs)[0].nll)).all()
    responses = model.respond(list_examples(dialogs, 9)[:2], DecodeConfig(beam=3, nbest=2, max_length=4))
    assert [len(found) for found in responses] == [2, 2]
    greedy = evaluate(tmp_path / "run", limit=2, overrides=["decode.beam=1", "decode.nbest=1"])
    assert greedy.likelihood.contexts == 2


def test_doc_cannot_read_more_layers_than_the_decoder_has(corpus: Path, tmp_path: Path) -> None:
    more = ("head.kind=doc", "head.components=3", "head.lower_components=[1,1]")
    with pytest.raises(ConfigError, match="doc reads 2 layers below the last, but the model provides 1"):
        train(settings(corpus, "mos", 3, *more), tmp_path / "run", no_report)
    assert not (tmp_path / "run").exists(), "what is bad leaves no folder"


def test_a_training_that_cannot_fit_is_refused_before_it_starts(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.engine.memory.memory_limit", lambda: 10_000)
    with pytest.raises(ConfigError, match=r"training needs about .* lower data\.vocab_size"):
        train(settings(corpus, "mos", 3), tmp_path / "run", no_report)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "head", ["softmax", "mos", *(pytest.param(head, marks=pytest.mark.slow) for head in LATER_HEADS)]
)
def test_every_head_learns_what_only_the_context_tells(runs: dict[str, Path], head: str) -> None:
    model = TrainedModel.load(runs[head])
    dialogs = dialogs_of(runs[head])
    scores = model.nll(dialogs)
    assert [(s.dialog, s.turn) for s in scores] == [(e.dialog, e.turn) for e in list_examples(dialogs)]
    answers = [s for s in scores if s.turn > 0]
    assert sum(s.nll for s in answers) / sum(s.tokens for s in answers) < 0.1
    examples = [e for e in list_examples(dialogs) if e.turn > 0]
    found = model.respond(examples, DecodeConfig(beam=3, nbest=2))
    assert [model.codec.decode(best[0].tokens) for best in found] == [e.response.text for e in examples]


def test_scores_and_responses_do_not_depend_on_the_batch(runs: dict[str, Path]) -> None:
    model = TrainedModel.load(runs["mos"])
    examples = list_examples(dialogs_of(runs["mos"]))
    for decode in (
        DecodeConfig(beam=4, nbest=4),
        DecodeConfig(method="sample", nbest=3, temperature=1.5, seed=7),
        DecodeConfig(method="sample", nbest=2, temperature=2.0, temperature_on="components", top_k=9),
    ):
        together = model.respond(examples, decode, batch_size=32)
        alone = [found for example in examples for found in model.respond([example], decode)]
        assert [[h.tokens for h in found] for found in together] == [[h.tokens for h in f] for f in alone]
        for many, one in zip(together, alone, strict=True):
            assert [h.log_prob for h in many] == pytest.approx([h.log_prob for h in one], abs=1e-4)


def test_contexts_of_one_distribution_have_samples_of_their_own_without_marks(runs: dict[str, Path]) -> None:
    model = TrainedModel.load(runs["mos"])
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.zero_()
    examples = list_examples(dialogs_of(runs["mos"]))
    found = model.respond(examples, DecodeConfig(method="sample", nbest=10, seed=3))
    assert len({tuple(h.tokens for h in one) for one in found}) > 1
    said = {token for one in found for hypothesis in one for token in hypothesis.tokens}
    assert len(said) > 10
    assert not said & set(model.codec.vocabulary.ids(NEVER_SAID))
    assert DIALOG in NEVER_SAID


def test_every_epoch_has_an_order_of_its_own(corpus: Path) -> None:
    config = settings(corpus, "softmax", 1, "train.batch_size=2").config
    codec = build_codec(config.data.tokenizer, ["is it raining"], vocab_size=20)
    dialogs = load_dialogs(str(corpus))
    task = DialogTask(config, codec, build_model(config, codec), dialogs, dialogs, torch.device("cpu"))
    first, again, second = ([*task.epoch(number, 0)] for number in (0, 0, 1))
    assert first == again != second


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_responses_by_low_precision_products_are_nearly_the_same(runs: dict[str, Path], method: str) -> None:
    model = TrainedModel.load(runs["mos"])
    examples = [example for example in list_examples(dialogs_of(runs["mos"])) if example.turn > 0]
    exact, low = (
        [found[0] for found in model.respond(examples, DecodeConfig(method=method, products=products))]
        for products in ("float32", "bfloat16")
    )
    assert [best.tokens for best in low] == [best.tokens for best in exact], "the model is sure of them"
    scores, rounded = ([best.log_prob for best in found] for found in (exact, low))
    assert rounded == pytest.approx(scores, abs=0.1)
    assert rounded != scores


def test_reported_scores_are_those_of_scoring(runs: dict[str, Path]) -> None:
    """Beam search reports for the true response what scoring it gives."""
    model = TrainedModel.load(runs["softmax"])
    dialogs = dialogs_of(runs["softmax"])
    examples = list_examples(dialogs)
    scores = model.nll(dialogs)
    answers = model.respond(examples, DecodeConfig(beam=5))
    found = 0
    for example, score, hypotheses in zip(examples, scores, answers, strict=True):
        for hypothesis in hypotheses:
            if model.codec.decode(hypothesis.tokens) == example.response.text:
                assert hypothesis.log_prob == pytest.approx(-score.nll, abs=1e-4)
                found += 1
    assert found >= len(examples) // 2


def test_token_probabilities_tell_components_apart(runs: dict[str, Path]) -> None:
    model = TrainedModel.load(runs["mos"])
    example = list_examples(dialogs_of(runs["mos"]))[3]
    tokens = model.codec.encode("i will take one")
    steps = model.token_probabilities(example, tokens, top=4)
    assert [step.token for step in steps] == ["i", "will", "take", "one", "</s>"]
    for step in steps:
        assert sum(step.prior) == pytest.approx(1)
        assert step.top[0][0] == step.token
        for _, probability, shares in step.top:
            assert len(shares) == 2
            assert sum(shares) == pytest.approx(probability)


def test_a_run_is_reproducible_and_resumes_exactly(corpus: Path, tmp_path: Path) -> None:
    def state(name: str) -> object:
        return check_run(tmp_path / name).state_sha256

    often = "train.validate_every=10"
    config = settings(corpus, "moss", 40, often)
    train(config, tmp_path / "whole", no_report)
    train(settings(corpus, "moss", 13, often), tmp_path / "halves", no_report)
    train(config, tmp_path / "halves", no_report)
    train(settings(corpus, "moss", 40, often, "train.seed=2"), tmp_path / "other", no_report)
    whole, halves = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "halves"))
    assert state("whole") != state("other")
    assert whole.count(b"perplexity") == 4
    assert [line for line in halves.splitlines() if b'"step": 13' not in line] == whole.splitlines()


@pytest.mark.parametrize("cell", ["mogrifier", "mogrifier_gru"])
def test_runs_with_gated_cells_resume_exactly_and_respond_alike_in_any_batch(
    corpus: Path, tmp_path: Path, cell: str
) -> None:
    more = [f"encoder.cell={cell}", f"decoder.cell={cell}", "cell.rank=4", "cell.init=truncated"]
    more += ["train.validate_every=5"]
    for name, steps in (("whole", 10), ("halves", 5), ("halves", 10)):
        train(settings(corpus, "mos", steps, *more), tmp_path / name, no_report)
    whole, halves = (check_run(tmp_path / name).state_sha256 for name in ("whole", "halves"))
    assert whole == halves
    model = TrainedModel.load(tmp_path / "whole")
    examples = list_examples(dialogs_of(tmp_path / "whole"))[:6]
    together = model.respond(examples, DecodeConfig(beam=4, nbest=2, max_length=8))
    alone = [
        found
        for one in examples
        for found in model.respond([one], DecodeConfig(beam=4, nbest=2, max_length=8))
    ]
    for many, one in zip(together, alone, strict=True):
        assert [h.tokens for h in many] == [h.tokens for h in one]
        assert [h.log_prob for h in many] == pytest.approx([h.log_prob for h in one], abs=1e-4)


def test_changed_data_and_config_are_noticed(corpus: Path, tmp_path: Path) -> None:
    mine = tmp_path / "talk.jsonl"
    mine.write_bytes(corpus.read_bytes())
    train(settings(mine, "softmax", 2), tmp_path / "run", no_report)
    with pytest.raises(ConfigError, match=r"decoder\.hidden_size"):
        train(settings(mine, "softmax", 4, "decoder.hidden_size=30"), tmp_path / "run", no_report)
    mine.write_text(corpus.read_text().replace("rice", "corn"))
    with pytest.raises(DataError, match="changed since this run began"):
        train(settings(mine, "softmax", 4), tmp_path / "run", no_report)
    mine.write_bytes(corpus.read_bytes())
    assert train(settings(mine, "softmax", 4), tmp_path / "run", no_report).step == 4


def test_a_model_is_used_on_the_device_of_its_run_with_the_threads_of_the_machine(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, threads = tmp_path / "run", torch.get_num_threads()
    shutil.copytree(runs["softmax"], run)
    saved = json.loads((run / "config.json").read_text())
    saved["config"]["train"] |= {"device": "cuda", "threads": threads + 1}
    forget_record(run)  # or the edit would be noticed
    (run / "config.json").write_text(json.dumps(saved))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TrainedModel.load(run).device == torch.device("cpu")
    assert torch.get_num_threads() == threads
    assert TrainedModel.load(run, device=torch.device("meta")).device == torch.device("meta")


def test_a_model_trained_on_the_cpu_stays_there(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["softmax"], run)
    saved = json.loads((run / "config.json").read_text())
    saved["config"]["train"]["device"] = "cpu"
    forget_record(run)
    (run / "config.json").write_text(json.dumps(saved))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert TrainedModel.load(run).device == torch.device("cpu")


def test_a_changed_vocabulary_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["softmax"], run)
    TrainedModel.load(run)
    words = (run / "vocabulary.json").read_text()
    (run / "vocabulary.json").write_text(words.replace('"bye"', '"sea!"').replace('"sea"', '"bye"'))
    with pytest.raises(StorageError, match=r"vocabulary\.json"):
        TrainedModel.load(run)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"not the folder of a run: it has no config\.json"):
        TrainedModel.load(tmp_path)


def test_the_divisor_of_a_loss_is_its_tokens_without_padding(corpus: Path) -> None:
    trained, dialogs = tiny_dialog(), load_dialogs(str(corpus))
    task = DialogTask(trained.config, trained.codec, trained.model, dialogs, dialogs, trained.device)
    examples = next(task.epoch(0, 0))
    lengths = [len(task.train.items[one].response) - 1 for one in examples]
    assert len({*lengths}) > 1
    assert task.loss(examples).tokens == sum(lengths)
