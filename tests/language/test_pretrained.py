"""Language models on pretrained networks of transformers: prepared, trained, resumed, scored, refused."""

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

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig

from lm.cli import main
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.errors import StorageError
from lm.huggingface.architecture import read_architecture
from lm.huggingface.starting import start_pretrained
from lm.language.config import LmConfig
from lm.language.corpus import load_split
from lm.language.generate import GenerateOptions, generate
from lm.language.model import LanguageModel
from lm.language.prepare import PrepareOptions, prepare
from lm.language.scoring import score_lines, token_nll
from lm.language.sizes import sized
from lm.language.train import train
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.pretrained import edit, save_model, save_pretrained, tiny_configs, tiny_pairs
from tests.support.tiny_lm import text_of

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
KINDS = ("gpt2", "llama", "qwen2", "gemma3")
SPAN = 16
CALM: dict[str, Any] = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "output_dropout", "weight_dropout"), 0.0
) | {"activation_penalty": 0.0, "slowness_penalty": 0.0}
PLAIN: dict[str, Any] = {"context_activation": "none", "components": 4}
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
CONFIG = f"""
[data]
train = "data/train"
valid = "data/valid"
test = "data/test"
valid_streams = 3
[window]
length = 7
shortest = 2
[model]
trunk = "hf:folder"
attention_span = {SPAN}
{chr(10).join(f"{name} = {value}" for name, value in CALM.items())}
[head]
kind = "mos"
components = 2
context_activation = "none"
start = "pretrained"
latent_dropout = 0.1
products = "float32"
[optim]
name = "adamw"
lr = 0.01
[train]
batch_size = 4
max_steps = 9
validate_every = 3
checkpoint_every = 4
"""


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    """A folder with a model, and a text prepared with its tokenizer."""
    text = in_tmp / "text"
    text.mkdir()
    for seed, (split, lines) in enumerate({"train": 60, "valid": 12, "test": 20}.items()):
        (text / f"{split}.txt").write_text(text_of(lines, seed), "utf-8")
    save_pretrained(in_tmp / "folder", text_of(90, 7))
    (in_tmp / "run.toml").write_text(CONFIG, "utf-8")
    return in_tmp


def started(folder: Path, head: dict[str, Any], **model: Any) -> tuple[LmConfig, LanguageModel]:
    """A model in evaluation mode that begins as the pretrained one."""
    config = LmConfig.model_validate(
        {
            "model": {"trunk": f"hf:{folder}", "attention_span": SPAN, **CALM, **model},
            "head": head | {"start": "pretrained"},
        }
    )
    words = 305
    config = sized(config, words)
    began = LanguageModel(config, words, 1)
    start_pretrained(config, began.layers, began.embedding, began.head)
    return config, began.eval()


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
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
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


def test_a_head_alone_trains_and_resumes_with_rates_of_its_own(corpus: Path) -> None:
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
    _, model = started(corpus / "folder", {"kind": "mos", **PLAIN, "components": 2})
    for key, value in model.state_dict().items():
        moved = not torch.equal(weights["frozen"][key], value)
        assert moved == key.startswith("head."), key
        assert torch.equal(weights["whole"][key], weights["recomputed"][key]), key
        assert not torch.equal(weights["whole"][key], value), key


def test_recomputed_activations_are_not_kept(corpus: Path) -> None:
    """Far fewer bytes wait for the backward pass, and the gradients are the same."""
    kept, gradients = [], []
    tokens = torch.randint(0, 305, (2 * SPAN, 2), generator=torch.Generator().manual_seed(1))
    for recompute in (False, True):
        _, model = started(corpus / "folder", {"kind": "softmax"}, recompute=recompute)
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


def test_the_tokenizer_gives_the_ids_of_transformers(corpus: Path) -> None:
    from lm.huggingface.pieces import read_tokenizer
    from lm.text.vocabulary import Vocabulary

    theirs, tokenizer = AutoTokenizer.from_pretrained("folder"), read_tokenizer(corpus / "folder")
    codec = Codec(tokenizer, Vocabulary(tokenizer.names, [0] * len(tokenizer.names), tokenizer.begin))
    assert codec.vocabulary.bos == theirs.bos_token_id
    assert len(codec.vocabulary) == len(theirs) + 5
    for line in [*text_of(20, 3).splitlines(), "", "Zürich  —  naïve", " a\tb "]:
        assert codec.encode(line) == theirs(f"{line}\n")["input_ids"]
        assert codec.decode(codec.encode(line)) == f"{line}\n"
    codec.save(corpus)
    loaded = Codec.load(corpus)
    assert loaded.fingerprint == codec.fingerprint
    assert loaded.vocabulary.bos == codec.vocabulary.bos
    assert loaded.encode("ab cd") == codec.encode("ab cd")


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_run_has_the_scores_and_the_way_back(corpus: Path, kind: str) -> None:
    """Transformers opens it without the folder of the pretrained model, also beyond a block."""
    from lm.export import export_run, import_run

    save_pretrained(corpus / "folder", text_of(90, 7), kind)
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
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """Its first validation, before any update, has the loss of transformers."""
    (config,) = re.findall(r"`pretrained.toml`:\n\n```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    Path("pretrained.toml").write_text(config, "utf-8")
    Path("path/to").mkdir(parents=True)
    shutil.move("folder", "path/to/gpt2")
    tokenizer = ("--tokenizer", "hf:path/to/gpt2")
    assert ending(main, "prepare", "text", "--out", "data/own", *tokenizer)[0] == 0
    changes = [f"model.attention_span={SPAN}", "train.max_steps=1", "data.valid_streams=1"]
    options = [text for change in changes for text in ("--set", change)]
    code, _, error = ending(main, "train", "pretrained.toml", "--run", "run", *options)
    assert code == 0, error
    first = json.loads(Path("run/metrics.jsonl").read_text("utf-8").splitlines()[0])
    trained = TrainedLm.load(Path("run"))
    tokens = torch.from_numpy(load_split("data/own/valid", trained.codec).ids().astype(np.int64))
    theirs = AutoModelForCausalLM.from_pretrained("path/to/gpt2").eval()
    expected = blockwise(theirs, tokens, trained.codec.vocabulary.bos).mean()
    assert first["nll"] == pytest.approx(float(expected), rel=1e-5)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def change(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, **values)


def shard(folder: Path) -> None:
    """Weights in several files, one of which is missing."""
    save_model(folder, tiny_configs(305)["gpt2"], max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    next(folder.glob("model-00002-of-*.safetensors")).unlink()


def pair(folder: Path) -> None:
    save_model(folder, tiny_pairs(305)["t5"])


def spoil_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    spoilt = {name: tensor / 0 for name, tensor in load_file(path).items()}
    save_file(spoilt, path, metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BAD: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "no folder": (shutil.rmtree, 4, "no such folder; download the model there"),
    "no config": (remove("config.json"), 4, "config.json: no such file"),
    "no weights": (remove("model.safetensors"), 4, "no model.safetensors"),
    "code": (change("config.json", auto_map={"AutoModelForCausalLM": "own.Own"}), 4, "never run"),
    "code of the tokenizer": (
        change("tokenizer_config.json", auto_map={"AutoTokenizer": "own.Own"}), 4, "never run",
    ),
    "unknown kind": (change("config.json", model_type="nonsense"), 4, "no causal language model"),
    "no kind": (change("config.json", model_type=7), 4, "no causal language model"),
    "encoder-decoder": (pair, 4, "choose a causal language model, or use `dialog` instead of `lm`"),
    "no encoder-decoder": (change("config.json", is_encoder_decoder=True), 4, "no encoder-decoder of texts"),
    "quantised": (change("config.json", quantization_config={"bits": 4}), 4, "quantised"),
    "too many layers": (change("config.json", n_layer=10**9), 4, "n_layer = 1000000000"),
    "too wide": (change("config.json", n_embd=10**9), 4, "hidden_size = 1000000000"),
    "too long": (change("config.json", n_positions=10**12), 4, "wpe.weight of shape (1000000000000, 16)"),
    "too wide within": (change("config.json", n_inner=10**12), 4, "c_fc.weight of shape (16, 1000000000000)"),
    "odd width": (change("config.json", n_embd=17), 4, "its sizes make no model"),
    "text for a number": (change("config.json", n_embd="wide"), 4, "config.json"),
    "other width": (change("config.json", n_embd=32), 4, "are not those of its config.json"),
    "other vocabulary": (change("config.json", vocab_size=400), 3, "not that of the tokenizer"),
    "small vocabulary": (change("config.json", vocab_size=200), 4, "use the files of one model"),
    "adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), 4, "merge it"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), 4, "config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), 4, "no tokenizer"),
    "missing shard": (shard, 4, "missing; download all files"),
    "cut weights": (cut_weights, 4, "its weights cannot be loaded"),
    "NaN": (spoil_weights, 4, "hidden states that are not finite"),
    "no words": (change("config.json", vocab_size=0), 4, "vocab_size = 0: must be a number"),
}  # fmt: skip


def test_a_bad_folder_gets_one_line_with_the_remedy(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    shutil.copytree("folder", "whole")
    for name, (damage, expected, said) in BAD.items():
        shutil.rmtree("folder", ignore_errors=True)
        shutil.copytree("whole", "folder")
        damage(Path("folder"))
        code, _, error = ending(main, "train", "run.toml", "--run", "run")
        assert (code, error.count("\n")) == (expected, 1), (name, error)
        assert said in error, (name, error)
        assert not Path("run", "checkpoints").exists()


def test_a_kind_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    """A recurrent network reads the second half of a text without the first."""
    save_model(tmp_path, MambaConfig(vocab_size=305, hidden_size=16, num_hidden_layers=2, state_size=4))
    edit(tmp_path / "config.json", num_attention_heads=2)
    with pytest.raises(StorageError, match="reads a text in parts"):
        started(tmp_path, {"kind": "softmax"})


def test_a_config_names_no_kernels_and_no_other_files(tmp_path: Path) -> None:
    """Transformers would download a kernel by this name, and read another file of weights."""
    save_pretrained(tmp_path, text_of(90, 7))
    names = {"attn_implementation": "org/kernel", "transformers_weights": "other.safetensors"}
    edit(tmp_path / "config.json", **names, num_labels=10**5)
    _, model = started(tmp_path, {"kind": "softmax"})
    config = model.layers.network.config
    assert config._attn_implementation == "sdpa"
    assert len(config.id2label) < 10, "memory for the labels of a classifier"


def test_a_number_of_layers_is_refused_before_transformers_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many kinds make a list of the kinds of their layers, which 10 billion layers would not fit."""
    monkeypatch.setattr("transformers.Qwen2Config.from_dict", lambda values: pytest.fail("was counted"))
    for values in ({"num_hidden_layers": 10**10}, {"text_config": {"num_hidden_layers": 10**10}}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **values}), "utf-8")
        with pytest.raises(StorageError, match=r"num_hidden_layers = 10000000000: must be .* to 1,000$"):
            read_architecture(tmp_path)


UNFIT: list[tuple[list[str], int, str]] = [
    (["model.attention_span=33"], 2, "at most 32 tokens"),
    (["head.context_activation=tanh"], 2, "set head.context_activation = none"),
    (
        ["head.kind=softmax", "head.context_activation=tanh", "head.components=1", "head.tied=true"],
        2, "head.tied",
    ),
    (["model.hidden_dropout=0.5"], 2, "hidden_dropout belongs to"),
    (["data.train=text/train.txt", "data.valid=text/valid.txt"], 3, 'data.tokenizer = "hf"'),
    (["model.trunk=recurrent", "model.attention_span=256"], 2, "needs a pretrained trunk"),
    (["model.trunk=hf:"], 2, "recurrent, transformer or hf:FOLDER"),
    (["model.trunk=hf"], 2, "recurrent, transformer or hf:FOLDER"),
]  # fmt: skip


def test_a_config_that_does_not_fit_the_model_is_refused(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    save_pretrained(corpus / "folder", text_of(90, 7), "llama")
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    for changes, expected, said in UNFIT:
        options = [text for change in changes for text in ("--set", change)]
        code, _, error = ending(main, "train", "run.toml", "--run", "run", *options)
        assert (code, error.count("\n")) == (expected, 1), (changes, error)
        assert said in error, (changes, error)


def test_text_files_are_read_with_the_tokenizer(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """A run on text files has the codec of one on the prepared corpus."""
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    files = [f"data.{split}=text/{split}.txt" for split in ("train", "valid", "test")]
    options = [
        text for change in [*files, "data.tokenizer=hf", "train.max_steps=1"] for text in ("--set", change)
    ]
    assert ending(main, "train", "run.toml", "--run", "run", *options)[0] == 0
    assert Codec.load(Path("run")).fingerprint == Codec.load(Path("data")).fingerprint


def test_a_missing_extra_is_named(
    corpus: Path, ending: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (
        ("prepare", "text", "--out", "data", "--tokenizer", "hf:folder"),
        ("describe", "run.toml"),
    ):
        code, _, error = ending(main, *words)
        assert (code, error.count("\n")) == (2, 1)
        assert "pip install 'highrank[hf]'" in error
