"""Language models on pretrained networks of transformers: prepared, trained, resumed, scored."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

pytest.importorskip("transformers")

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
)

from lm.cli import main
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.huggingface.architecture import read_architecture
from lm.huggingface.trunk import PretrainedTrunk
from lm.language.config import LmConfig
from lm.language.corpora.corpus import load_split
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.generate import GenerateOptions, generate
from lm.language.scoring import score_lines, token_nll
from lm.language.train import train
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.pretrained import save_pretrained
from tests.support.pretrained_lm import PLAIN, SPAN, started
from tests.support.tiny_lm import text_of

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
MARKS: dict[str, Any] = {"vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
KINDS = ("gpt2", "llama", "qwen2", "gemma3")
HEADS: list[dict[str, Any]] = [
    {"kind": "softmax"},
    {"kind": "softmax", "tied": True},
    {"kind": "moc", **PLAIN},
    {"kind": "mos", **PLAIN},
    {"kind": "moss", "learn_shift": True, **PLAIN},
    {"kind": "doc", "lower_components": (1, 1), "prior_bias": True, **PLAIN},
    {"kind": "mixtape", **PLAIN},
    {"kind": "mfs", "partitions": 3, "facet_layers": 1, **PLAIN},
    {"kind": "cpr", "candidates": (2, 5), "facet_layers": 1, **PLAIN},
]


def blockwise(theirs: Any, tokens: torch.Tensor, begin: int) -> torch.Tensor:
    """−log P of a text (N,) by transformers, which reads each block of it as a text of its own."""
    inputs = torch.cat((torch.tensor([begin]), tokens[:-1]))
    with torch.no_grad():
        logits = torch.cat([theirs(input_ids=block[None]).logits[0] for block in inputs.split(SPAN)])
    return torch.nn.functional.cross_entropy(logits, tokens, reduction="none")


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_begins_as_the_pretrained_model(tmp_path: Path, kind: str) -> None:
    """Perplexity before the first update is that of transformers, whatever the windows and blocks."""
    theirs = save_pretrained(tmp_path, text_of(90, 7), kind)
    tokens = torch.randint(0, 305, (2 * SPAN + 5,), generator=torch.Generator().manual_seed(1))
    expected = float(blockwise(theirs, tokens, 1).mean().exp())
    for head in HEADS if kind == "gpt2" else [HEADS[0], HEADS[5]]:
        _, model = started(tmp_path, head)
        for window in (len(tokens), 7):
            state, total = model.initial_state(1), 0.0
            inputs = torch.cat((torch.tensor([1]), tokens[:-1]))
            for read, wanted in zip(inputs.split(window), tokens.split(window), strict=True):
                with torch.no_grad():
                    outputs = model(read[:, None], state)
                    total += float(model.head.nll(outputs.hidden, wanted[:, None]).sum())
                state = outputs.state.detached()
            assert float(np.exp(total / len(tokens))) == pytest.approx(expected, rel=1e-5), (head, window)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_different_lengths_read_what_they_read_alone(tmp_path: Path, kind: str) -> None:
    save_pretrained(tmp_path, text_of(90, 7), kind)
    _, model = started(tmp_path, {"kind": "softmax"})
    tokens = torch.randint(0, 305, (2 * SPAN, 3), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        state = model(tokens[:5], model.initial_state(3)).state
        state = state.forgetting(torch.tensor([True, False, True]))
        state = state.replaced(slice(2, 3), model(tokens[:2, 2:], model.initial_state(1)).state)
        together = model(tokens[5:], model.state_from(state.tensors(), torch.device("cpu"))).raw
        for stream, before in enumerate((tokens[:5], tokens[:0], tokens[:2])):
            alone = model.initial_state(1)
            if len(before):
                alone = model(before[:, stream : stream + 1], alone).state
            raw = model(tokens[5:, stream : stream + 1], alone).raw
            assert torch.allclose(together[:, stream : stream + 1], raw, atol=1e-4)


def outcome(run: Path) -> str:
    return CheckpointStore(run / "checkpoints").open("last").state_sha256


def test_the_commands_train_and_use_a_pretrained_model(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """A stopped training resumes bit for bit, without the folder; every later command needs only the run."""
    code, _, error = ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")
    assert (code, error) == (0, "")
    assert ending(main, "train", "run.toml", "--run", "whole")[0] == 0
    assert ending(main, "train", "run.toml", "--run", "cut", "--set", "train.max_steps=6")[0] == 0
    shutil.rmtree("folder")
    assert ending(main, "train", "run.toml", "--run", "cut")[0] == 0
    assert outcome(Path("cut")) == outcome(Path("whole"))
    assert ending(main, "evaluate", "cut")[0] == 0
    trained = TrainedLm.load(Path("cut"))
    ids = load_split("data/test", trained.codec).ids()
    losses = token_nll(trained, ids)
    assert losses.shape == (len(ids),)
    assert np.allclose(losses, token_nll(trained, ids, window=5), atol=1e-5)
    scores = [score for row in score_lines(trained, Path("text/test.txt")) for score in row.log_probs]
    assert np.allclose(losses, -np.array(scores), atol=1e-5)
    code, _, error = ending(main, "generate", "cut", "--prompt", "ab cd", "--max-tokens", "20")
    assert (code, error.count("anew after every 16 tokens")) == (0, 1)
    assert ending(main, "generate", "cut", "--max-tokens", "9")[2] == ""
    again = [piece.text for piece in generate(trained, "a", GenerateOptions(max_tokens=2 * SPAN, seed=3))]
    assert len(again) == 2 * SPAN


def test_a_head_alone_trains_and_resumes_with_rates_of_its_own(pretrained_corpus: Path) -> None:
    """A frozen trunk stays, and recomputed activations change no bit."""
    prepare("text", Path("data"), PrepareOptions(tokenizer="hf:folder"))
    weights = {}
    for name, changes in {
        "frozen": ["train.freeze=trunk"],
        "whole": ["optim.trunk_lr_ratio=0.1"],
        "recomputed": ["optim.trunk_lr_ratio=0.1", "model.recompute=true"],
    }.items():
        for steps in (5, 9) if name != "whole" else (9,):
            changed = [*changes, f"train.max_steps={steps}", "model.input_dropout=0.1", 'optim.average="ema"']
            resolved = load_config("run.toml", LmConfig, family="lm", overrides=changed)
            train(resolved, Path(name), no_report)
        weights[name] = CheckpointStore(Path(name, "checkpoints")).weights("last")
    _, model = started(pretrained_corpus / "folder", {"kind": "mos", **PLAIN, "components": 2})
    for key, value in model.state_dict().items():
        moved = not torch.equal(weights["frozen"][key], value)
        assert moved == key.startswith("head."), key
        assert torch.equal(weights["whole"][key], weights["recomputed"][key]), key
        assert not torch.equal(weights["whole"][key], value), key


def test_recomputed_activations_are_not_kept(pretrained_corpus: Path) -> None:
    """Far fewer bytes wait for the backward pass, and the gradients are the same."""
    kept, gradients = [], []
    tokens = torch.randint(0, 305, (2 * SPAN, 2), generator=torch.Generator().manual_seed(1))
    for recompute in (False, True):
        _, model = started(pretrained_corpus / "folder", {"kind": "softmax"}, recompute=recompute)
        with torch.no_grad():
            state = model(tokens[:5], model.initial_state(2)).state
        sizes: list[int] = []
        torch.manual_seed(2)  # of the dropout inside the network
        with saved_tensors_hooks(lambda one, sizes=sizes: sizes.append(one.nbytes) or one, lambda one: one):
            outputs = model.train()(tokens[5:], state)
        kept.append(sum(sizes))
        model.head.objective(outputs.hidden, tokens[5:].roll(1))[0].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert kept[1] < kept[0] / 3
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_the_tokenizer_gives_the_ids_of_transformers(pretrained_corpus: Path) -> None:
    from lm.huggingface.pieces import read_tokenizer
    from lm.text.vocabulary import Vocabulary

    theirs, tokenizer = AutoTokenizer.from_pretrained("folder"), read_tokenizer(pretrained_corpus / "folder")
    codec = Codec(tokenizer, Vocabulary(tokenizer.names, [0] * len(tokenizer.names), tokenizer.begin))
    assert codec.vocabulary.bos == theirs.bos_token_id
    assert len(codec.vocabulary) == len(theirs) + 5
    for line in [*text_of(20, 3).splitlines(), "", "Zürich  —  naïve", " a\tb "]:
        assert codec.encode(line) == theirs(f"{line}\n")["input_ids"]
        assert codec.decode(codec.encode(line)) == f"{line}\n"
    codec.save(pretrained_corpus)
    loaded = Codec.load(pretrained_corpus)
    assert loaded.fingerprint == codec.fingerprint
    assert loaded.vocabulary.bos == codec.vocabulary.bos
    assert loaded.encode("ab cd") == codec.encode("ab cd")


@pytest.mark.parametrize(
    "kind", ["gpt2", "gemma3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:3])]
)
def test_an_exported_run_has_the_scores_and_the_way_back(pretrained_corpus: Path, kind: str) -> None:
    """Transformers opens it without the folder of the pretrained model, also beyond a block."""
    from lm.export import export_run, import_run

    save_pretrained(pretrained_corpus / "folder", text_of(90, 7), kind)
    prepare("text", Path("data"), PrepareOptions(tokenizer="hf:folder"))
    changes = ["train.max_steps=1", "head.kind=doc", "head.lower_components=[1]", "head.prior_bias=true"]
    resolved = load_config("run.toml", LmConfig, family="lm", overrides=changes)
    train(resolved, Path("run"), no_report)
    shutil.rmtree("folder")
    export_run(Path("run"), Path("out"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained("out"), AutoTokenizer.from_pretrained("out")
    text = Path("text/test.txt").read_text("utf-8")
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    trained = TrainedLm.load(Path("run"))
    rows = list(score_lines(trained, Path("text/test.txt")))
    assert ids[0, 1:].tolist() == [i for line in text.splitlines() for i in trained.codec.encode(line)]
    with torch.no_grad():
        log_probs = model(ids).logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    assert np.allclose(log_probs, [score for row in rows for score in row.log_probs], atol=2e-5)
    prompts = tokenizer(["ab cd", "a"], padding=True, return_tensors="pt")
    together = model.generate(**prompts, max_new_tokens=2 * SPAN, num_beams=2, do_sample=False)
    alone = model.generate(**tokenizer("a", return_tensors="pt"), max_new_tokens=2 * SPAN, num_beams=2)
    assert together[1, -2 * SPAN :].tolist() == alone[0, -2 * SPAN :].tolist()
    import_run(Path("out"), Path("back"))
    again = score_lines(TrainedLm.load(Path("back")), Path("text/test.txt"))
    assert [row.log_probs for row in again] == [row.log_probs for row in rows]


def test_the_example_of_the_page_begins_at_the_pretrained_model(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """Its first validation, before any update, has the loss of transformers."""
    (config,) = re.findall(r"`pretrained.toml`:\n\n```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    Path("pretrained.toml").write_text(config, "utf-8")
    Path("path/to").mkdir(parents=True)
    shutil.move("folder", "path/to/gpt2")
    tokenizer = ("--tokenizer", "hf:path/to/gpt2")
    assert ending(main, "prepare", "text", "--out", "data/texts", *tokenizer)[0] == 0
    changes = [f"model.attention_span={SPAN}", "train.max_steps=1", "data.valid_streams=1"]
    options = [text for change in changes for text in ("--set", change)]
    code, _, error = ending(main, "train", "pretrained.toml", "--run", "run", *options)
    assert code == 0, error
    first = json.loads(Path("run/metrics.jsonl").read_text("utf-8").splitlines()[0])
    trained = TrainedLm.load(Path("run"))
    tokens = torch.from_numpy(load_split("data/texts/valid", trained.codec).ids().astype(np.int64))
    theirs = AutoModelForCausalLM.from_pretrained("path/to/gpt2").eval()
    expected = blockwise(theirs, tokens, trained.codec.vocabulary.bos).mean()
    assert first["nll"] == pytest.approx(float(expected), rel=1e-5)


def test_text_files_are_read_with_the_tokenizer(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """A run on text files has the codec of one on the prepared corpus."""
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    files = [f"data.{split}=text/{split}.txt" for split in ("train", "valid", "test")]
    options = [
        text for change in [*files, "data.tokenizer=hf", "train.max_steps=1"] for text in ("--set", change)
    ]
    assert ending(main, "train", "run.toml", "--run", "run", *options)[0] == 0
    assert Codec.load(Path("run")).fingerprint == Codec.load(Path("data")).fingerprint
    shutil.rmtree("folder")
    assert ending(main, "finetune", "run", "--set", "optim.lr=1", "--set", "train.max_steps=1")[0] == 0


def test_layers_may_be_wider_than_what_the_network_returns(tmp_path: Path) -> None:
    config = OPTConfig(
        hidden_size=16, ffn_dim=16, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=8,
        max_position_embeddings=32, **MARKS,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    trunk = PretrainedTrunk(read_architecture(tmp_path), 16, lower=1).eval()
    words = torch.randn(6, 2, 8)
    whole = trunk(words, trunk.initial_state(2))
    begun = trunk(words[:2], trunk.initial_state(2))
    torch.testing.assert_close(trunk(words[2:], begun.state).outputs, whole.outputs[2:])
    assert [layer.shape[-1] for layer in whole.lower] == [trunk.lower_sizes[0]]


def test_a_trunk_with_longrope_reads_no_further_than_its_original_length(tmp_path: Path) -> None:
    scaling = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **scaling},
        **MARKS,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert read_architecture(tmp_path).positions == 16


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, attn_pdrop=0.5, resid_pdrop=0.5, **MARKS),
        BloomConfig(hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.5, attention_dropout=0.5, **MARKS),
        OPTConfig(
            hidden_size=16, ffn_dim=16, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16,
            max_position_embeddings=32, dropout=0.5, attention_dropout=0.5, layerdrop=0.5, **MARKS,
        ),
    ],
    ids=["gpt2", "bloom", "opt"],
)  # fmt: skip
def test_all_dropout_within_a_network_is_scaled(tmp_path: Path, config: Any) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    trunk = PretrainedTrunk(read_architecture(tmp_path), 16).train()
    words = torch.randn(6, 2, 16)

    def read() -> torch.Tensor:
        return trunk(words, trunk.initial_state(2)).outputs

    assert not torch.equal(read(), read())
    assert 0.5 in trunk.dropout_rates()
    trunk.scale_dropout(0.0)
    assert torch.equal(read(), read())
    assert not any(trunk.dropout_rates())
