"""Language models on a transformer: trained, resumed, scored, adapted and described like any other."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.cli import main
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.registry import HEADS
from lm.language.adaptation import Adaptation, DynamicSetting, Statistics, gather
from lm.language.config import LmConfig, ModelConfig
from lm.language.describe import describe
from lm.language.generate import GenerateOptions, generate
from lm.language.model import LanguageModel
from lm.language.refinements import with_dropout
from lm.language.scoring import score_lines, token_nll
from lm.language.sizes import count_parameters, sized
from lm.language.task import score_streams
from lm.language.train import train
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from lm.trunks.config import TransformerConfig
from lm.trunks.transformer import TransformerTrunk
from tests.support.outcomes import outcome
from tests.support.tiny_lm import ids_of, tiny_codec
from tests.support.tiny_training import resolved, task, write_corpus

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
trunk = "transformer"
attention_span = 9
embedding_size = 6
hidden_sizes = [8, 8]
weight_dropout = 0.0
[transformer]
heads = 2
kv_heads = 1
[head]
kind = "mos"
components = 2
embedding_size = 6
tied = true
latent_dropout = 0.2
[optim]
name = "adamw"
lr = 0.01
average = "ema"
[train]
batch_size = 4
max_steps = 24
validate_every = 6
checkpoint_every = 5
log_every = 3
"""


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    return write_corpus(in_tmp, CONFIG, train=60, valid=12, longest=12)


@pytest.mark.parametrize(
    "settings", [(), ("window.state_reset=0.5", "train.shards=2"), ("model.episodic=true",)], ids=str
)
def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(
    corpus: Path, settings: tuple[str, ...]
) -> None:
    train(resolved(*settings), Path("whole"), no_report)
    for steps in (12, 24):
        train(resolved(f"train.max_steps={steps}", *settings), Path("parts"), no_report)
    assert outcome(Path("parts")) == outcome(Path("whole"))


def test_windows_and_shards_change_no_loss(corpus: Path) -> None:
    """Σ nll of a pass in float64, whatever the windows, and whatever the number of shards."""
    calm = [f"model.{name}_dropout=0.0" for name in ("embedding", "input", "hidden", "output")]
    sums = []
    for length, shards in ((7, 1), (3, 1), (50, 2), (7, 4)):
        exact = (f"window.length={length}", "window.random=false", "head.latent_dropout=0.0")
        tiny = task(*calm, *exact, dtype=torch.float64)
        each = (tiny.shard(batch, shard, shards) for batch in tiny.epoch(0, 0) for shard in range(shards))
        sums.append(sum(float(tiny.loss(one).nll) for one in each if one is not None))
    assert sums == pytest.approx([sums[0]] * 4, rel=1e-12)


def test_validation_of_one_stream_is_the_score_of_the_opened_run(corpus: Path) -> None:
    train(resolved(), Path("run"), no_report)
    trained = TrainedLm.load(Path("run"))
    lines = list(score_lines(trained, Path("valid.txt")))
    scores = [score for line in lines for score in line.log_probs]
    files = [np.array([token for line in lines for token in trained.codec.vocabulary.ids(line.tokens)])]
    slices = score_streams(trained.model, files, 1, trained.codec.vocabulary.eos)
    total, tokens = map(sum, zip(*slices, strict=True))
    assert tokens == len(scores)
    assert total == pytest.approx(-sum(scores), rel=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_has_the_same_losses_for_every_window(kind: str) -> None:
    trained = lm(kind)
    ids = ids_of(trained, 40)
    expected = token_nll(trained, ids)
    for window in (1, 7):
        assert token_nll(trained, ids, window=window) == pytest.approx(expected, rel=1e-9)


def lm(kind: str = "softmax") -> TrainedLm:
    lower = {"components": 3, "lower_components": (1, 1)} if kind == "doc" else {}
    contextual = {"temperature": "contextual", "temperature_rank": 2} if kind == "mos" else {}
    config = LmConfig(
        model=ModelConfig(
            trunk="transformer", attention_span=5, embedding_size=6, hidden_sizes=(8, 8), weight_dropout=0.0
        ),
        transformer=TransformerConfig(heads=2),
        head=HeadConfig.model_validate(
            {"kind": kind, "embedding_size": 6, "tied": True, **lower, **contextual}
        ),
    )
    codec = tiny_codec()
    torch.manual_seed(4)
    model = LanguageModel(config, len(codec.vocabulary), codec.vocabulary.eos).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return TrainedLm(config, codec, model, torch.device("cpu"))


def test_generated_text_has_the_probabilities_of_its_score() -> None:
    trained = lm()
    made = list(generate(trained, "", GenerateOptions(max_tokens=20, seed=3)))
    ids = np.array(trained.codec.vocabulary.ids([one.token for one in made]))
    assert [-one.log_prob for one in made] == pytest.approx(token_nll(trained, ids), rel=1e-9)


def test_dynamic_evaluation_of_rate_zero_is_static_and_of_another_is_not() -> None:
    trained = lm()
    ids = ids_of(trained, 60)
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    statistics = Statistics.empty(trained.model, 4)
    gather(trained, [ids_of(trained, 200, seed=1)], statistics)
    static = token_nll(trained, ids)
    assert Adaptation(trained, statistics, DynamicSetting(0.0, 0.0)).nll(ids) == pytest.approx(
        static, rel=1e-9
    )
    assert not np.allclose(Adaptation(trained, statistics, DynamicSetting(1e-3, 0.0)).nll(ids), static)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.model.state_dict().items())


def test_a_sampler_drops_in_every_block() -> None:
    trained = lm()
    model = trained.model
    model.config = model.config.model_copy(update={"hidden_dropout": 0.2})
    trunk = model.layers
    assert isinstance(trunk, TransformerTrunk)
    trunk.stack.rate = 0.2
    sampler = with_dropout(model, 2.0)
    assert isinstance(sampler.layers, TransformerTrunk)
    assert (trunk.stack.rate, sampler.layers.stack.rate) == (0.2, 0.4)


def test_a_budget_makes_the_layers_as_wide_as_heads_allow() -> None:
    config = lm().config
    model = config.model.model_copy(
        update={"budget": 5000, "input_embedding_ratio": 1.0, "hidden_sizes": (1, 1)}
    )
    wide = sized(config.model_copy(update={"model": model}), 17)
    assert wide.model.hidden_sizes[0] % 4 == 0
    assert count_parameters(wide, 17) <= 5000
    wider = tuple(size + 4 for size in wide.model.hidden_sizes)
    changed = wide.model.model_copy(update={"hidden_sizes": wider, "embedding_size": wider[0]})
    head = wide.head.model_copy(update={"embedding_size": wider[0]})
    assert count_parameters(wide.model_copy(update={"model": changed, "head": head}), 17) > 5000


def test_the_size_of_a_checkpoint_has_the_cache(corpus: Path) -> None:
    sizes = []
    for span in (9, 400):
        wanted, run = resolved("train.max_steps=1", f"model.attention_span={span}"), Path(f"run{span}")
        train(wanted, run, no_report)
        words = len(TrainedLm.load(run).codec.vocabulary)
        said = describe(wanted.config, words)["memory"]["checkpoint"]
        sizes.append((said, CheckpointStore(run / "checkpoints").open("last").size))
    said, true = (longer - shorter for shorter, longer in zip(*sizes, strict=True))
    assert said == pytest.approx(true, rel=1e-3)


def test_the_description_counts_every_parameter_and_the_cache() -> None:
    config = lm().config
    found = describe(config, 17)
    d, e, inner = 8, 6, 24
    block = d * 3 * d + d * d + d * 2 * inner + inner * d + 2 * d
    assert found["parameters_by_part"]["layers"] == e * d + 2 * block + d
    longer = config.model_copy(update={"model": config.model.model_copy(update={"attention_span": 500})})
    assert describe(longer, 17)["memory"]["activations"] > found["memory"]["activations"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('trunk = "lstm"', r"trunk = lstm: must be recurrent, transformer or hf:FOLDER"),
        ('trunk = "transformer"\nhidden_sizes = [8, 12]', r"one size, not 8, 12"),
        ('trunk = "transformer"\nhidden_sizes = [12]', r"12: must be a multiple of 8.*8 would fit"),
        (
            'trunk = "transformer"\nhidden_sizes = [8]\nweight_dropout = 0.3',
            r"weight_dropout belongs to the rec",
        ),
        (
            'trunk = "transformer"\nhidden_sizes = [8]\nlayer_sum = true',
            r"layer_sum belongs to the recurrent",
        ),
        ("attention_span = 5", r"attention_span belongs to the transformer and hf trunks"),
        ('trunk = "transformer"\nhidden_sizes = [8]\n[cell]\nkind = "gru"', r"cell\.kind.*no effect"),
        ("hidden_sizes = [8]\n[transformer]\nheads = 2", r"transformer\.heads.*no effect"),
        (
            'trunk = "transformer"\nhidden_sizes = [8]\n[transformer]\nheads = 2\nkv_heads = 3',
            r"must divide heads = 2",
        ),
    ],
)
def test_keys_of_another_trunk_are_refused(in_tmp: Path, settings: str, message: str) -> None:
    Path("bad.toml").write_text(f"[model]\n{settings}\n")
    with pytest.raises(ConfigError, match=message) as error:
        load_config("bad.toml", LmConfig, family="lm")
    assert "bad.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_finetuning_begins_with_the_best_weights(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    train(resolved("train.max_steps=6"), Path("run"), no_report)
    code, _, err = ending(main, "finetune", "run", "--set", "optim.lr=1", "--set", "train.max_steps=2")
    assert code == 0, err
    (first, *_), before = (
        [json.loads(line)["nll"] for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
        for run in ("run-finetuned", "run")
    )
    assert first == pytest.approx(min(before), rel=1e-6)


def test_gates_are_those_of_recurrent_layers_only(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    train(resolved("train.max_steps=1"), Path("run"), no_report)
    code, _, err = ending(main, "analyze", "gates", "run")
    assert code == 2
    assert "no recurrent layers" in err
    code, out, err = ending(main, "evaluate", "run")
    assert (code, err) == (0, "")
    assert "perplexity" in out
