"""Details of an evaluation for reports: samples, and the use of components."""

from collections.abc import Sequence

from dialog.batches import Example
from dialog.decoding.steps import Hypothesis
from dialog.seq2seq import Seq2Seq
from dialog.task import encode_dialogs
from dialog.trained import TrainedModel
from dialog.utterance import Dialog
from lm.heads.usage import use_in_sample
from lm.results import as_json
from lm.runs.evaluations import JsonObject, spread
from lm.text.tokenizers import DIALOG

SAMPLES = 12  # contexts of a record, evenly spaced
_UTTERANCES = 4  # of a context, the last ones


def _text_of(model: TrainedModel, answers: Sequence[Hypothesis]) -> str:
    """Text of the best response, empty without one."""
    return model.codec.tokenizer.join(model.codec.vocabulary.words(answers[0].tokens)) if answers else ""


def evaluation_details(
    model: TrainedModel,
    dialogs: Sequence[Dialog],
    examples: Sequence[Example],
    answers: Sequence[Sequence[Hypothesis]],
) -> JsonObject:
    """Details of an evaluation.

    ``samples`` have ``index`` of the example, ``context``, ``true`` and ``reply``. ``components`` is that
    of :func:`lm.heads.usage.use_in_sample`.
    """
    samples = [
        {
            "index": index,
            "context": [
                f"{said.speaker}: {said.text}" if said.speaker else said.text
                for said in examples[index].context[-_UTTERANCES:]
                if said.text != DIALOG
            ],
            "true": examples[index].response.text,
            "reply": _text_of(model, answers[index]),
        }
        for index in spread(len(examples), SAMPLES)
    ]
    use = None  # of an ensemble
    if isinstance(model.model, Seq2Seq):
        words = model.codec.vocabulary.tokens
        data = encode_dialogs(dialogs, model.codec, model.config)
        use = use_in_sample(model.model.head, model.readings(data), words)
    return {"samples": samples, "components": use and as_json(use)}
