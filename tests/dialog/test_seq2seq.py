"""The encoder-decoder: what it may look at, and that batching and stepping change nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dialog import seq2seq
from dialog.batches import Batch, Example, collate, encode_examples, list_examples
from dialog.config import DialogConfig
from dialog.corpora.corpus import train_codec
from dialog.encoders import join_context
from dialog.seq2seq import Seq2Seq
from dialog.utterance import Dialog, Utterance
from lm.regularize import dropout, dropout_mask
from lm.text.vocabulary import Codec

TURNS = ("hello", "hi how are you", "fine", "it rains a lot here", "yes", "we had snow", "oh really", "bye")
DIALOG = Dialog("d", "weather", tuple(Utterance("AABBABAB"[i], text) for i, text in enumerate(TURNS)))
CODEC: Codec = train_codec([DIALOG], "wordpunct", vocab_size=100)
EXAMPLES = list_examples([DIALOG])
SHAPES = [
    (encoder, cell, attention)
    for encoder in ("hierarchical", "flat")
    for cell in ("lstm", "gru")
    for attention in ("none", "dot", "additive")
] + [
    ("hierarchical", "mogrifier", "dot"),
    ("hierarchical", "mogrifier_gru", "none"),
    ("flat", "mlstm", "none"),
    ("flat", "capped", "additive"),
    ("hierarchical", "doc", "additive"),
    ("flat", "summed", "dot"),
    ("transformer", "lstm", "dot"),
    ("hierarchical", "transformer", "none"),
    ("transformer", "transformer", "none"),
    ("transformer", "transformer_doc", "none"),
    ("hierarchical", "cpr", "dot"),
    ("flat", "cpr", "none"),
    ("transformer", "transformer_cpr", "none"),
]
CELLS: dict[str, dict[str, Any]] = {
    "mogrifier": {"rounds": 3, "rank": 2},
    "mogrifier_gru": {"zigzag": False},
    "capped": {"cap_input_gate": True, "init": "truncated"},
}
MOS = {"kind": "mos", "components": 3, "embedding_size": 6, "tied": True}
HEADS: dict[str, dict[str, Any]] = {
    "doc": {"kind": "doc", "lower_components": [1, 1]},
    "cpr": {"kind": "cpr", "candidates": [3, 8], "source": "pointer", "facet_layers": 1},
}


def make_model(encoder: str, cell: str, attention: str) -> Seq2Seq:
    """Two layers, dropout and a context fed to every step wherever the architecture allows."""
    settings = CELLS.get(cell, {})
    head = MOS | HEADS.get(cell[-3:], {})
    summed, transforms = cell == "summed", cell.startswith("transformer")
    cell = "lstm" if cell in ("capped", "doc", "cpr", "summed") or transforms else cell
    parts = {"kind": "transformer"} if transforms else {"feed_context": True, "layer_sum": summed}
    size = 8 if encoder == "transformer" else 7
    config = DialogConfig.model_validate(
        {
            "model": {"embedding_size": 6, "dropout": 0.5, "word_dropout": 0.2, "init_range": 0.5},
            "encoder": {
                "kind": encoder,
                "cell": cell,
                "utterance_size": 5,
                "context_size": size,
                "layers": 2,
            },
            "decoder": {"cell": cell, "hidden_size": 8, "layers": 2, "attention": attention} | parts,
            "cell": settings,
            "transformer": {"heads": 2, "kv_heads": 1}
            if "transformer" in (encoder, parts.get("kind"))
            else {},
            "head": head,
        }
    )
    return Seq2Seq(config, len(CODEC.vocabulary)).double().eval()


def batch_of(examples: list[Example]) -> Batch:
    return collate(encode_examples(examples, CODEC, 40), CODEC.vocabulary.pad)


@pytest.mark.parametrize(("encoder", "cell", "attention"), SHAPES)
def test_scores_do_not_depend_on_batch_mates(encoder: str, cell: str, attention: str) -> None:
    model = make_model(encoder, cell, attention)
    together = model.nll(batch_of(EXAMPLES))
    alone = torch.cat([model.nll(batch_of([example])) for example in EXAMPLES])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(model.objective(batch_of(EXAMPLES))[1], alone.sum())
    reversed_order = model.nll(batch_of(EXAMPLES[::-1]))
    torch.testing.assert_close(reversed_order.flip(0), together)


@pytest.mark.parametrize(("encoder", "cell", "attention"), SHAPES)
def test_stepping_equals_teacher_forcing(encoder: str, cell: str, attention: str) -> None:
    model = make_model(encoder, cell, attention)
    items = encode_examples(EXAMPLES, CODEC, 40)
    batch = collate(items, CODEC.vocabulary.pad)
    state = model.start(batch)
    longest = max(len(item.response) for item in items)
    total = torch.zeros(len(items), dtype=torch.float64)
    for position in range(longest - 1):
        said = torch.tensor([item.response[min(position, len(item.response) - 1)] for item in items])
        log_probs, state = model.step(said, state)
        for row, item in enumerate(items):
            if position + 1 < len(item.response):
                total[row] -= log_probs[row, item.response[position + 1]]
    torch.testing.assert_close(total, model.nll(batch))


@pytest.mark.parametrize("encoder", ["hierarchical", "flat", "transformer"])
@pytest.mark.parametrize("cell", ["lstm", "mogrifier", "mogrifier_gru", "transformer", "cpr"])
def test_selected_states_go_on_as_their_rows_would(encoder: str, cell: str) -> None:
    model = make_model(encoder, cell, "none" if cell == "transformer" else "dot")
    state = model.start(batch_of(EXAMPLES))
    rows = torch.tensor([3, 3, 0, 6])
    tokens = torch.arange(2, 2 + len(EXAMPLES))
    wanted, later = model.step(tokens, state)
    got, chosen = model.step(tokens[rows], state.select(rows))
    torch.testing.assert_close(got, wanted[rows])
    again = model.step(tokens[rows], later.select(rows))[0]
    torch.testing.assert_close(model.step(tokens[rows], chosen)[0], again)


@pytest.mark.parametrize("encoder", ["hierarchical", "flat", "transformer"])
def test_the_model_hears_words_order_and_speakers(encoder: str) -> None:
    model = make_model(encoder, "transformer" if encoder == "transformer" else "gru", "none")
    example = EXAMPLES[4]
    baseline = model.nll(batch_of([example]))

    def changed(context: tuple[Utterance, ...]) -> bool:
        other = Example(0, 4, context, example.responder, example.response)
        return not torch.allclose(model.nll(batch_of([other])), baseline, rtol=0, atol=1e-12)

    heard = example.context
    assert changed((*heard[:2], Utterance(heard[2].speaker, "we had snow"), *heard[3:]))
    assert changed((*heard[:1], heard[2], heard[1], *heard[3:]))
    assert changed((*heard[:-1], Utterance("B" if heard[-1].speaker == "A" else "A", heard[-1].text)))
    assert not changed(heard)


def test_the_future_is_not_heard() -> None:
    model = make_model("hierarchical", "lstm", "additive")
    cut = Dialog("d", "weather", DIALOG.utterances[:5])
    torch.testing.assert_close(model.nll(batch_of(list_examples([cut]))), model.nll(batch_of(EXAMPLES[:4])))


def test_equal_utterances_are_encoded_once() -> None:
    model = make_model("hierarchical", "gru", "none")
    seen = []
    model.encoder.utterance.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    model.nll(batch_of(EXAMPLES * 3))
    assert len(seen) == 1
    assert int(seen[0].batch_sizes[0]) == len(TURNS) - 1  # <d> and all turns but the last two


def test_the_head_may_read_the_sum_of_all_layers() -> None:
    plain, summed = make_model("flat", "lstm", "none"), make_model("flat", "summed", "none")
    summed.load_state_dict(plain.state_dict())
    batch = batch_of(EXAMPLES)
    words = torch.randn(len(EXAMPLES), 6, dtype=torch.float64)
    with torch.no_grad():
        of_plain, after = plain.decoder.step(words, plain.start(batch))
        of_summed, _ = summed.decoder.step(words, summed.start(batch))
    below, above = (layer[0][0] for layer in after.layers)
    torch.testing.assert_close(of_plain.last, above)
    torch.testing.assert_close(of_summed.last, below + above)


def test_the_flat_encoder_reads_the_context_as_one_sequence() -> None:
    batch = batch_of(EXAMPLES)
    tokens, floors, lengths, places = join_context(batch)
    items = encode_examples(EXAMPLES, CODEC, 40)
    for row, number in enumerate(batch.order.tolist()):
        wanted = [token for utterance in items[number].context for token in utterance]
        speakers = [f for u, f in zip(items[number].context, items[number].floors, strict=True) for _ in u]
        assert tokens[row, : int(lengths[row])].tolist() == wanted
        assert floors[row, : int(lengths[row])].tolist() == speakers
        assert int(lengths[row]) == len(wanted)
        assert batch.utterances.flatten()[places[row, : int(lengths[row])]].tolist() == wanted


@pytest.mark.parametrize(("encoder", "cell", "attention"), SHAPES)
def test_every_parameter_learns(encoder: str, cell: str, attention: str) -> None:
    model = make_model(encoder, cell, attention).train()
    model.objective(batch_of(EXAMPLES))[0].backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_dropout_acts_in_training_only() -> None:
    model = make_model("hierarchical", "lstm", "none")
    batch = batch_of(EXAMPLES)
    assert torch.equal(model.objective(batch)[0], model.objective(batch)[0])
    model.train()
    assert not torch.equal(model.objective(batch)[0], model.objective(batch)[0])


def test_word_dropout_spares_the_beginning_of_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("hierarchical", "lstm", "none").train()
    model.config = model.config.model_copy(
        update={"model": model.config.model.model_copy(update={"word_dropout": 0.999})}
    )
    read: list[Any] = []
    embed = seq2seq.embed
    monkeypatch.setattr(
        seq2seq, "embed", lambda table, ids, *more: read.append(ids) or embed(table, ids, *more)
    )
    batch = batch_of(EXAMPLES)
    model.hidden(batch)
    rows, words = len(batch.inputs), read[-1].data
    assert words[:rows].tolist() == [CODEC.vocabulary.bos] * rows
    assert set(words[rows:].tolist()) == {model.unk}


def test_attention_sees_nothing_of_the_padding() -> None:
    model = make_model("flat", "gru", "additive")
    batch = batch_of(EXAMPLES)
    memory = model.encode(batch)
    noisy = type(memory)(memory.summary, memory.states.masked_fill(~memory.mask[..., None], 1e3), memory.mask)
    hidden = torch.randn(len(EXAMPLES), 2, 8, dtype=torch.float64)
    torch.testing.assert_close(
        model.decoder.attention(hidden, noisy), model.decoder.attention(hidden, memory)
    )


@pytest.mark.parametrize(
    ("encoder", "sizes"), [("hierarchical", (6, 2 * 5, 6, 8)), ("flat", (6, 6, 8))], ids=str
)
def test_dropout_is_on_words_utterances_and_outputs(
    encoder: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(encoder, "lstm", "dot")
    dropped: list[tuple[int, float, bool]] = []

    def watched(states: Tensor, rate: float, training: bool) -> Tensor:
        dropped.append((states.shape[-1], rate, training))
        return dropout(states, rate, training)

    for module in ("encoders", "recurrent_decoder"):
        monkeypatch.setattr(f"dialog.{module}.dropout", watched)
    for training in (False, True):
        dropped.clear()
        model.train(training).objective(batch_of(EXAMPLES))
        assert dropped == [(size, 0.5, training) for size in sizes]


def test_the_tokens_of_a_response_share_a_mask_of_latent_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("hierarchical", "lstm", "none").train()
    model.head.config = model.head.config.model_copy(update={"latent_dropout": 0.5})
    masks: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        "lm.heads.mixer.dropout_mask",
        lambda like, shape, rate: masks.append(tuple(shape)) or dropout_mask(like, shape, rate),
    )
    model.objective(batch_of(EXAMPLES))
    assert [shape[0] for shape in masks] == [len(EXAMPLES)]


def test_initial_weights_are_uniform_in_their_range() -> None:
    config = DialogConfig()
    model = Seq2Seq(config, 500)
    for part in (model.embedding, model.encoder.context, model.decoder.bridge):
        for parameter in part.parameters():
            assert float(parameter.detach().abs().max()) == pytest.approx(config.model.init_range, rel=0.02)


@pytest.mark.parametrize("kind", ["dot", "additive"])
def test_attention_is_the_published_formula(kind: str) -> None:
    """Luong et al. 2015, sections 3.1 and 3.3; Bahdanau et al. 2015, appendix A.1.2."""
    model = make_model("flat", "gru", kind)
    attention, memory = model.decoder.attention, model.encode(batch_of(EXAMPLES))
    hidden = torch.randn(len(EXAMPLES), 2, 8, dtype=torch.float64)
    found = attention(hidden, memory)
    for row, mask in enumerate(memory.mask):
        states = memory.states[row, mask]
        keys = states @ attention.key.weight.T
        for step, query in enumerate(hidden[row]):
            if kind == "dot":
                scores = keys @ query
            else:
                scores = torch.tanh(keys + attention.query(query)) @ attention.energy.weight[0]
            read = torch.cat((query, scores.softmax(0) @ states))
            torch.testing.assert_close(found[row, step], torch.tanh(attention.join(read)))
