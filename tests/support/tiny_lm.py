"""A tiny language model with random weights, and the run folder that it would have been trained into."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lm.arrays import Floats
from lm.cells.config import CellConfig
from lm.config.load import Resolved, save_config
from lm.console.tables import Table
from lm.engine.config import TrainConfig
from lm.engine.state import model_tensors
from lm.heads.config import HeadConfig
from lm.language.config import DataConfig, LmConfig, ModelConfig, WindowConfig
from lm.language.model import LanguageModel
from lm.language.refinements import mean_of_passes
from lm.language.scoring import token_nll
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.runs.checkpoint import CheckpointStore
from lm.text.tokenizers import PLAIN
from lm.text.vocabulary import Codec, Vocabulary
from lm.trunks.config import TransformerConfig
from tests.support.words import WORDS

MIXTURE: dict[str, Any] = {"kind": "mos", "components": 3, "embedding_size": 6}

CELLS: list[dict[str, Any]] = [
    {},
    {"cap_input_gate": True},
    {"kind": "mogrifier", "rounds": 3, "rank": 2, "cap_input_gate": True},
    {"kind": "mogrifier", "zigzag": False, "gate_bias": False},
    {"kind": "mlstm"},
    {"kind": "gru", "init": "truncated"},
    {"kind": "mogrifier_gru", "rounds": 1, "rank": 2},
    {"layer_norm": True, "input_scale": True, "weight_rank": 2},
]
RATES = ("embedding", "input", "hidden", "output", "weight")


def tiny_config(
    folder: Path = Path(),
    *,
    dropout: float = 0.3,
    compat: Any = "none",
    cell: dict[str, Any] | None = None,
    trunk: Any = "recurrent",
    **head: Any,
) -> LmConfig:
    """``trunk``: of a transformer, the layers have grouped queries, and attention a span of five tokens."""
    splits = {split: str(folder / f"{split}.txt") for split in ("train", "valid", "test")}
    model: dict[str, Any] = {f"{name}_dropout": dropout for name in RATES} | {"hidden_sizes": (7, 6)}
    transformer: dict[str, Any] = {}
    if trunk == "transformer":
        model |= {"trunk": trunk, "hidden_sizes": (8, 8), "weight_dropout": 0.0, "attention_span": 5}
        transformer = {"heads": 2, "kv_heads": 1}
        head = {"embedding_size": 6} | head
    return LmConfig(
        data=DataConfig(**splits),
        window=WindowConfig(length=7),
        model=ModelConfig(embedding_size=6, init_range=1.0, **model),
        transformer=TransformerConfig(**transformer),
        cell=CellConfig(**(cell or {})),
        head=HeadConfig(**({"kind": "softmax", "tied": True, "latent_dropout": dropout} | head)),
        train=TrainConfig(device="cpu", compat=compat, seed=5),
    )


def tiny_codec(kind: str = "whitespace") -> Codec:
    """Words with training counts 1, 2, 4, …, ``<unk>`` and ``<eos>``."""
    words = WORDS if kind == "whitespace" else [*"abcdefgh"]
    counts = {"<unk>": 0, "<eos>": 20_000} | {word: 2**place for place, word in enumerate(words)}
    return Codec(PLAIN[kind](False), Vocabulary.of_text(counts))


def tiny_lm(
    folder: Path = Path(), *, codec: Codec | None = None, dtype: torch.dtype = torch.float64, **options: Any
) -> TrainedLm:
    """A model with the same weights for the same head."""
    config, codec = tiny_config(folder, **options), codec or tiny_codec()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = LanguageModel(config, len(codec.vocabulary), codec.vocabulary.eos).to(dtype).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return TrainedLm(config, codec, model, torch.device("cpu"))


def ids_of(trained: TrainedLm, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, len(trained.codec.vocabulary), count).astype(np.uint16)


def text_of(lines: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) + "\n" for _ in range(lines))


def write_run(folder: Path, *, lines: tuple[int, int, int] = (120, 40, 60), **options: Any) -> Path:
    """A run folder, with its texts beside the folder; weights are those of :func:`tiny_lm` in float32."""
    for seed, (split, count) in enumerate(zip(("train", "valid", "test"), lines, strict=True)):
        (folder.parent / f"{split}.txt").write_text(text_of(count, seed), encoding="utf-8")
    trained = tiny_lm(folder.parent, dtype=torch.float32, **options)
    folder.mkdir()
    save_config(Resolved(trained.config, {}), folder / "config.json")
    trained.codec.save(folder)
    store = CheckpointStore(folder / "checkpoints")
    store.commit(3, {"model": model_tensors(trained.model)}, {}, {})
    return folder


def cells(table: object) -> list[dict[str, str]]:
    """The rows of a table as it is shown, by column."""
    assert isinstance(table, Table)
    return table.cells()


def mc_nll(
    trained: TrainedLm, sampler: LanguageModel, ids: Ids, samples: int, temperature: float = 1.0
) -> Floats:
    """−log of the mean probability of every token over passes with dropout."""
    window = trained.config.window.length
    return mean_of_passes(
        trained,
        samples,
        lambda: token_nll(trained, ids, model=sampler, temperature=temperature, window=window),
    )
