"""Beam search by Hugging Face's transformers, where it is installed, finds what ours finds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dialog.batches import Item, collate
from dialog.config import DialogConfig
from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks
from dialog.seq2seq import Seq2Seq

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
VOCAB, SOURCES = 40, 24
MARKS = Marks(bos=2, eos=3, forbidden=(0, 1, 2))
CONFIG = DialogConfig.model_validate(
    {
        "model": {"embedding_size": 12, "init_range": 2.0},
        "encoder": {"kind": "flat", "cell": "lstm", "context_size": 16},
        "decoder": {"cell": "lstm", "hidden_size": 16, "layers": 2},
        "head": {"kind": "mos", "components": 3, "embedding_size": 8, "context_scale": 6},
    }
)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("rules", [{}, {"length_penalty": 0.7}, {"no_repeat_ngram": 2}])
@pytest.mark.parametrize("towards_end", [-0.5, 0.5])
def test_both_searches_find_the_same_responses(rules: dict[str, Any], towards_end: float) -> None:
    """All nbest, where responses end by </s> and where all reach full length; no two scores nearly tie."""
    from benchmarks.huggingface import Generator, generate

    torch.manual_seed(1)
    model = Seq2Seq(CONFIG, VOCAB).eval()
    words = torch.randint(4, VOCAB, (SOURCES, 6)).tolist()
    with torch.no_grad():
        assert model.head.bias is not None
        model.head.bias[MARKS.eos] += towards_end
        state = model.start(collate([Item(((2, *row, 3),), (0,), (2, 7, 3)) for row in words], 0))
    config = DecodeConfig.model_validate({"beam": 4, "nbest": 2, "max_length": 16, "min_length": 3} | rules)
    ours = beam_search(model.step, state, SOURCES, config, MARKS)
    theirs = generate(Generator(model, model.step), state, SOURCES, config, MARKS)
    assert {best.finished for best, _ in ours} == {towards_end > 0}
    assert len({best.tokens for best, _ in ours}) > SOURCES // 2
    assert theirs == [[found.tokens for found in of_source] for of_source in ours]


@pytest.mark.usefixtures("scripts")
def test_what_is_timed_finds_the_same_responses_of_the_lengths_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks import beam

    monkeypatch.setattr(beam, "CONFIG", CONFIG)
    monkeypatch.setattr(beam, "VOCAB", VOCAB)
    for lengths in (beam.SPREAD, (beam.LENGTH,) * 2):
        reference = beam.work_on(lengths, beam.exact_step, beam.ours)()
        assert [len(response) for response in reference] == list(lengths)
        for step in (beam.exact_step, beam.plain_step):
            found = beam.work_on(lengths, step, beam.theirs)()
            assert beam.changed(reference, found) == {"tokens changed": 0}
    assert beam.changed([(4, 5), (6, 7)], [(4, 6), (6,)]) == {"tokens changed": 0.5}
