"""Every command of language models on transformers: DOC from lower layers, grouped queries, tied weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lm.cli import main
from lm.engine.memory import FLOAT
from lm.language.model import LanguageModel
from lm.language.windows import longest
from tests.support.command_lines import Outcome
from tests.support.tiny_lm import tiny_lm, write_run

COMMANDS = [
    ("evaluate RUN --temperature-search --mc-samples 2 --cache 50,0.3,0.1", "continuous cache"),
    ("evaluate RUN --compat paper", "perplexity"),
    ("evaluate RUN MOS", "perplexity"),
    ("dynamic RUN --streams 4", "perplexity, static"),
    ("generate RUN --max-tokens 5 --temperature-on components --temperature 0.5", ""),
    ("score RUN TEXT --output scores.jsonl", "perplexity"),
    ("compare RUN MOS", "perplexity"),
    ("analyze rank RUN MOS", "rank"),
    ("analyze divergence RUN", "Divergence"),
    ("analyze components RUN", "entropy of the prior"),
    ("analyze examples RUN MOS", "gains"),
    ("analyze geometry RUN", "anisotropy"),
    ("analyze gradient MOS", "rank"),
    ("analyze histories RUN --histories 20 --futures 3", "futures"),
    ("analyze recovery RUN MOS", "recovery"),
    ("analyze temperature MOS", "drawn"),
    ("analyze unargmaxable RUN", "contexts"),
    ("check RUN", "state_sha256"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    doc = {"kind": "doc", "components": 3, "lower_components": (1, 1)}
    run = write_run(folder / "doc", lines=(120, 20, 30), trunk="transformer", **doc)
    mos = {"kind": "mos", "components": 2, "temperature": "contextual", "temperature_rank": 2}
    other = write_run(folder / "mos", lines=(120, 20, 30), trunk="transformer", **mos)
    return {"RUN": str(run), "MOS": str(other), "TEXT": str(folder / "valid.txt")}


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=lambda text: " ".join(text.split()[:2]))
def test_a_command_works(
    command: str, shown: str, runs: dict[str, str], in_tmp: Path, ending: Callable[..., Outcome]
) -> None:
    if command.startswith("compare"):
        for run in (runs["RUN"], runs["MOS"]):
            assert ending(main, "evaluate", run, "--limit", "30")[0] == 0
        command += " --name test.first-30"
    code, out, err = ending(main, *(runs.get(word, word) for word in command.split()))
    assert code == 0, err
    assert shown in out


@pytest.mark.parametrize("span", [5, 40])
def test_the_estimate_covers_the_activations_and_not_much_more(span: int) -> None:
    """Against the bytes that a window keeps for backpropagation, with a full cache."""
    trained = tiny_lm(trunk="transformer", kind="mos", components=2)
    sizes = {"hidden_sizes": (64, 64), "attention_span": span}
    config = trained.config.model_copy(update={"model": trained.config.model.model_copy(update=sizes)})
    model = LanguageModel(config, 18).train()
    steps, streams = longest(config.window), config.train.batch_size
    state = model.initial_state(streams)
    for _ in range(span // steps + 1):
        state = model(torch.zeros(steps, streams, dtype=torch.long), state).state.detached()
    kept = dict[int, int]()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(torch.zeros(steps, streams, dtype=torch.long), state)
    true = sum(size for place, size in kept.items() if place not in weights)
    assert outputs.raw.requires_grad
    assert true < FLOAT * model.layers.activations(steps, streams, torch.device("cpu")) < 2 * true
