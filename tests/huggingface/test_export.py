"""Exported language models: what transformers opens, its beams, and the way back."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dialog.cli import main as dialog_main
from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks
from lm.cli import main
from lm.errors import DivergenceError, StorageError
from lm.export import export_run, import_run
from lm.hf import HighrankLanguageModel
from lm.huggingface.folder import read_export
from lm.huggingface.source import require_folder
from lm.language.scoring import score_lines, token_nll
from lm.language.trained import TrainedLm
from lm.numbers import number
from lm.runs.checkpoint import CheckpointStore
from lm.trunks.trunk import TrunkState
from tests.support.faults import kill_at
from tests.support.outcomes import files_below
from tests.support.pretrained import edit
from tests.support.tiny_lm import text_of, write_run

LAYERS = {"trunk": "transformer"}
HEADS: list[dict[str, Any]] = [
    {"kind": "softmax", "tied": True},
    {"kind": "mos", "components": 3, "tied": True} | LAYERS,
    {"kind": "doc", "components": 3, "lower_components": (1,), "tied": False} | LAYERS,
    {"kind": "moss", "components": 3, "tied": True, "learn_shift": True, "learn_context_scale": True},
    {"kind": "doc", "components": 3, "lower_components": (1,), "tied": False},
    {"kind": "mixtape", "components": 2, "tied": False, "temperature": "exponential"},
    {"kind": "plif", "tied": False, "intervals": 10},
    {"kind": "mfs", "components": 2, "tied": True, "partitions": 3, "facet_layers": 1},
    {"kind": "cpr", "components": 2, "tied": True, "candidates": (2, 4), "facet_layers": 1},
]


def exported(folder: Path, **options: Any) -> tuple[TrainedLm, Any, Any]:
    """A run, its exported model, and its tokenizer."""
    run = write_run(folder / "run", lines=(5, 2, 2), **options)
    export_run(run, folder / "exported")
    model = AutoModelForCausalLM.from_pretrained(folder / "exported")
    assert isinstance(model, HighrankLanguageModel)
    return TrainedLm.load(run), model, AutoTokenizer.from_pretrained(folder / "exported")


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head['kind']}-{head.get('trunk', '')}")
def test_scores_are_those_of_the_run_and_the_way_back_is_exact(tmp_path: Path, head: dict[str, Any]) -> None:
    trained, model, tokenizer = exported(tmp_path, **head)
    text = tmp_path / "lines.txt"
    text.write_text(text_of(4, seed=3))
    for line, row in zip(
        text.read_text().splitlines(), score_lines(trained, text, independent=True), strict=True
    ):
        ids = tokenizer(f"{line}\n", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            loss = model(ids, labels=ids).loss
        assert log_probs.tolist() == pytest.approx(row.log_probs, abs=2e-5)
        assert float(loss) == pytest.approx(row.nll, abs=2e-5)
    import_run(tmp_path / "exported", tmp_path / "back")
    back = TrainedLm.load(tmp_path / "back").model.state_dict()
    ours = trained.model.state_dict()
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_a_padded_batch_has_the_mean_loss_of_its_rows_alone(tmp_path: Path) -> None:
    _, model, tokenizer = exported(tmp_path, kind="mos", components=2)
    lines = sorted(text_of(4, seed=3).splitlines(), key=len)
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    rows = [tokenizer(line, return_tensors="pt")["input_ids"] for line in lines]
    assert len({row.shape[1] for row in rows}) > 1
    with torch.no_grad():
        nats = [float(model(row, labels=row).loss) * (row.shape[1] - 1) for row in rows]
        found = float(model(**batch, labels=labels).loss)
    assert found == pytest.approx(sum(nats) / sum(row.shape[1] - 1 for row in rows), rel=1e-5)


@pytest.mark.parametrize("beam", [4, 1])
@pytest.mark.parametrize("trunk", [{}, {"cell": {"kind": "mogrifier", "rank": 2}}, LAYERS], ids=str)
def test_beams_of_generate_find_what_ours_finds(tmp_path: Path, trunk: dict[str, Any], beam: int) -> None:
    """The state follows the hypotheses, also beyond the span of attention. One beam is greedy search."""
    head = {"kind": "mos", "components": 3, "tied": False, "context_scale": 6.0, "output_bias": True}
    trained, model, _ = exported(tmp_path, **trunk, **head)
    eos, sources = trained.codec.vocabulary.eos, 16
    with torch.no_grad():
        for parameter in (*trained.model.layers.parameters(), trained.model.embedding.weight):
            parameter *= 3  # so that contexts differ
        trained.model.head.bias[eos] -= 20  # so that every hypothesis has full length
    model.model.load_state_dict(trained.model.state_dict())
    prompts = torch.randint(0, len(trained.codec.vocabulary), (sources, 3))
    calls = iter([prompts[:, -1]])  # the search begins with the last token of each prompt

    def step(tokens: torch.Tensor, state: TrunkState) -> tuple[torch.Tensor, TrunkState]:
        outputs = trained.model(next(calls, tokens)[None], state)
        return trained.model.head.log_probs(outputs.hidden.last[0]), outputs.state

    with torch.no_grad():
        state = trained.model(prompts[:, :-1].T, trained.model.initial_state(sources)).state
    config = DecodeConfig(beam=beam, nbest=min(beam, 3), max_length=12)
    ours = beam_search(step, state, sources, config, Marks(eos, eos))
    assert len({found[0].tokens for found in ours}) > sources // 3
    theirs = model.generate(
        prompts, num_beams=beam, num_return_sequences=config.nbest, max_new_tokens=13, do_sample=False,
        forced_eos_token_id=eos, **({"length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}),
    )  # fmt: skip
    said = theirs[:, prompts.shape[1] : -1].tolist()
    assert said == [list(one.tokens) for found in ours for one in found]


@pytest.mark.parametrize("trunk", ["recurrent", "transformer"])
def test_a_sampled_text_has_the_probabilities_of_its_score(tmp_path: Path, trunk: str) -> None:
    trained, model, tokenizer = exported(tmp_path, kind="mos", components=3, tied=True, trunk=trunk)
    torch.manual_seed(1)
    prompt = tokenizer("a b", return_tensors="pt")
    found = model.generate(
        **prompt, do_sample=True, top_k=0, max_new_tokens=15, min_new_tokens=15, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    ids = found.sequences[0, 1:]  # after the <eos> that begins the text
    logits = torch.stack(found.logits)[:, 0].gather(1, ids[-15:, None])[:, 0]
    assert (-logits).tolist() == pytest.approx(token_nll(trained, ids.numpy())[-15:].tolist(), rel=1e-4)


@pytest.mark.parametrize("trunk", ["recurrent", "transformer"])
def test_padding_changes_nothing(tmp_path: Path, trunk: str) -> None:
    head: dict[str, Any] = {"kind": "doc", "components": 3, "lower_components": (1,), "tied": False}
    _, model, tokenizer = exported(tmp_path, **head, trunk=trunk)
    texts = text_of(9, seed=5).splitlines()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    together = model.generate(**batch, max_new_tokens=4, min_new_tokens=4, num_beams=2, do_sample=False)
    for text, row in zip(texts, together, strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        apart = model.generate(ids, max_new_tokens=4, min_new_tokens=4, num_beams=2, do_sample=False)
        assert row[-4:].tolist() == apart[0, -4:].tolist()
    right = batch["attention_mask"].flip(1)
    assert not bool(right.all())
    with pytest.raises(ValueError, match="pad on the left"):
        model(batch["input_ids"].flip(1), attention_mask=right)


def test_a_saved_model_comes_back_too(tmp_path: Path) -> None:
    """What transformers saves in the folder after fine-tuning."""
    _, model, _ = exported(tmp_path, kind="mos", components=3, tied=True)
    with torch.no_grad():
        model.model.embedding.weight += 1
    model.save_pretrained(tmp_path / "exported")
    import_run(tmp_path / "exported", tmp_path / "back")
    back = TrainedLm.load(tmp_path / "back").model
    assert torch.equal(back.embedding.weight, model.model.embedding.weight)
    assert back.head.weight is back.embedding.weight


@pytest.mark.parametrize("second", [False, True])
def test_a_kill_leaves_a_whole_folder_or_none(tmp_path: Path, second: bool) -> None:
    run, out = write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), tmp_path / "exported"

    def export() -> None:
        export_run(run, out)

    if second:
        export()
    for operation in range(1, 60, 7):
        if not kill_at(operation, export):
            break
        assert out.exists() or not second
        if out.exists():
            read_export(out, "lm")
    export()
    read_export(out, "lm")
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_the_card_names_numbers_with_their_commands(
    tmp_path: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """Of the exported weights alone: not of an ensemble, of a part of the text, or of other weights."""
    run = write_run(tmp_path / "run", lines=(300, 40, 60), kind="mos", components=2)
    store = CheckpointStore(run / "checkpoints")
    weights = store.weights("best")
    other = {"model": {name: 2 * tensor for name, tensor in weights.items()}}
    store.commit(4, other, {"progress": {"best": [[1.0, 3]]}}, {})
    shutil.copytree(run, tmp_path / "other")
    text = str(tmp_path / "valid.txt")
    commands = [
        (["evaluate", str(run)], ["perplexity"]),
        (["evaluate", str(run), "--data", text, "--cache", "50,0.3,0.1"], ["perplexity", "cache"]),
        (["dynamic", str(run), "--lr", "0.001", "--streams", "4"], ["perplexity", "static"]),
        (["evaluate", str(run), "--checkpoint", "last"], []),
        (["evaluate", str(run), str(tmp_path / "other")], []),
        (["evaluate", str(run), "--limit", "20"], []),
    ]
    wanted = []
    for words, measures in commands:
        words += ["--json", str(tmp_path / "found.json")]
        assert ending(main, *words)[0] == 0
        found = json.loads((tmp_path / "found.json").read_text())
        values = [found[key]["perplexity"] if key != "perplexity" else found[key] for key in measures]
        wanted += [(number("perplexity", value), f"`{shlex.join(['lm', *words])}`") for value in values]
    assert ending(main, "export", str(run), "--to", "hf", str(tmp_path / "out"), "--license", "mit")[0] == 0
    card = (tmp_path / "out" / "README.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("|")]
    assert sorted((row[2], row[3]) for row in rows[2:]) == sorted(wanted)
    assert "license: mit" in card
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "highrank_lm"


def test_an_exported_folder_is_no_run_and_the_error_names_the_way_back(
    tmp_path: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    export_run(write_run(run, lines=(5, 2, 2), kind="softmax"), out)
    told = f"{out}: an exported model, not a run; make a run of it with `lm import {out} --run RUN`\n"
    for program in (main, dialog_main):
        for command in (["evaluate", str(out)], ["check", str(out)], ["compare", str(out), str(run)]):
            code, _, said = ending(program, *command)
            assert (code, said.removeprefix("error: ")) == (4, told)
    code, _, said = ending(main, "import", str(run), "--run", str(tmp_path / "again"))
    assert (code, said) == (4, f"{run}: a run, not an exported model; `lm runs {run}` shows it\n")
    with pytest.raises(StorageError, match="a run, not a model of transformers"):
        require_folder(run)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".git/objects/1", "would be lost; move it elsewhere"),
        ("highrank/notes", "would be lost; move it elsewhere"),
        ("model.safetensors", "changed since the export"),
        ("highrank/manifest.json", "was not written by `export`"),
    ],
)
def test_an_export_replaces_only_what_an_export_wrote(tmp_path: Path, name: str, message: str) -> None:
    run, out = write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), tmp_path / "out"
    export_run(run, out)
    (out / "README.md").unlink()
    export_run(run, out)
    assert (out / "README.md").exists()
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(b"{}")
    before = files_below(out)
    with pytest.raises(StorageError, match=message) as error:
        export_run(run, out)
    assert name in str(error.value) or name.endswith("manifest.json")
    assert files_below(out) == before
    (out / name).unlink()
    if name == "highrank/manifest.json":
        with pytest.raises(StorageError, match=message):
            export_run(run, out)
    else:
        export_run(run, out)
        assert files_below(out).keys() == before.keys() - {name} | {"model.safetensors"}


def test_an_import_notices_one_flipped_byte(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), out)
    names = [path for path in sorted((out / "highrank").iterdir()) if path.name != "manifest.json"]
    assert len(names) >= 2
    for path in names:
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(StorageError, match="missing or damaged"):
            import_run(out, tmp_path / "new")
        path.write_bytes(content)
        assert not (tmp_path / "new").exists()
    import_run(out, tmp_path / "new")


def test_weights_that_are_not_finite_are_not_imported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), out)
    tensors = load_file(out / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    with pytest.raises(DivergenceError, match="its weights are not finite; export another checkpoint"):
        import_run(out, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_import_needs_every_file_except_the_card(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), out)
    (out / "README.md").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"):
        (out / name).rename(tmp_path / name)
        with pytest.raises(StorageError, match=rf"{name}: missing or damaged; export the run again"):
            import_run(out, tmp_path / "new")
        (tmp_path / name).rename(out / name)
        assert not (tmp_path / "new").exists()
    import_run(out, tmp_path / "new")


def test_bad_folders_are_refused_in_one_line(
    tmp_path: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    run = write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    export_run(run, tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"no tensors")
    for arguments, word in [
        (("export", str(run), str(tmp_path / "mine")), "choose another DIR"),
        (("export", str(tmp_path / "none"), str(tmp_path / "other")), "no such run"),
        (("import", str(tmp_path / "mine"), "--run", str(tmp_path / "new")), "no folder of `lm export`"),
        (("import", str(tmp_path / "out"), "--run", str(tmp_path / "new")), "not readable as safetensors"),
        (("import", str(tmp_path / "out"), "--run", str(run)), "exists; choose another --run"),
    ]:
        code, _, said = ending(main, *arguments)
        assert (code, said.count("\n")) == (4, 1), said
        assert word in said
    assert not (tmp_path / "new").exists()


CHEAP = """
import contextlib, io, json, os, sys
from lm.cli import main
for arguments in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.suppress(SystemExit):
        main(arguments)
    print(error.getvalue(), end="")
print("heavy:", *{"torch", "numpy", "transformers"} & set(sys.modules), os.times().user < 1)
"""


def test_what_is_bad_is_refused_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    run, out, plain = (str(tmp_path / name) for name in ("run", "out", "plain"))
    export_run(write_run(tmp_path / "run", lines=(5, 2, 2), kind="softmax"), tmp_path / "out")
    shutil.copytree(out, plain)
    shutil.rmtree(tmp_path / "plain" / "highrank")
    shutil.copytree(out, tmp_path / "light")
    (tmp_path / "light" / "model.safetensors").unlink()
    shutil.copytree(out, tmp_path / "dialog")
    edit(tmp_path / "dialog" / "config.json", model_type="highrank_dialog")
    said = {
        ("export", run, run): "choose another DIR",
        ("export", run, out, "--checkpoint", "step-9"): "no checkpoint 'step-9'",
        ("export", run, out, "--checkpoint", "finest"): "must be last",
        ("export", f"{run}s", out): "no such run",
        ("import", f"{out}s", "--run", "new"): "no such folder",
        ("import", out, "--run", run): "exists",
        ("import", plain, "--run", "new"): f'model.trunk = "hf:{plain}"',
        ("import", str(tmp_path / "light"), "--run", "new"): "model.safetensors: missing",
        ("import", str(tmp_path / "dialog"), "--run", "new"): "not of a model of `lm`; use `dialog`",
    }
    command = [sys.executable, "-c", CHEAP, json.dumps(list(said))]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found.pop() == "heavy: True"
    assert len(found) == len(said)
    for line, word in zip(found, said.values(), strict=True):
        assert word in line
