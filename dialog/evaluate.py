"""Evaluation of a trained model on a corpus: perplexity, BLEU of its best responses, and their variety.

Every evaluation is stored in the run (:mod:`lm.runs.evaluations`) as ``{"result": …, "contexts": …}``: the
printed result, and the numbers of each context, which :mod:`dialog.compare` resamples.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dialog.batches import Example, list_examples
from dialog.config import DataConfig, DialogConfig, with_decoding
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.own_data import in_run
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from dialog.details import evaluation_details
from dialog.evaluation_names import evaluation_name, setting_name
from dialog.metrics.bleu import token_lists
from dialog.metrics.distinct import warnings
from dialog.metrics.references import ReferenceItem, align_references, read_references
from dialog.metrics.scores import Responses, ResponseScores, Scorer, responses_report
from dialog.results import DialogData, DialogEvaluation, ResponseLikelihood
from dialog.trained import TargetScore, TrainedModel, open_models
from dialog.utterance import Dialog
from lm.config.load import Resolved, require_effect
from lm.config.named_data import own_split, split_of_run
from lm.disk.jsonfile import canonical_json
from lm.disk.regular import open_regular
from lm.disk.storage import write_atomic
from lm.engine.device import flushed_denormals
from lm.errors import ConfigError, DataError, visible
from lm.measures import guessing, more_unknown, perplexity, require_finite
from lm.parallel.group import process_group
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import (
    Member,
    Subject,
    keep,
    members,
    require_keepable,
)
from lm.runs.outputs import require_output
from lm.steps import OnProgress, no_progress
from lm.text.lines import InputLog, read_lines
from lm.text.tokenizers import UNK, Tokenizer, WordPunct
from lm.text.vocabulary import Codec, require_known, tokens_of

ZHAO_BATCH = 30  # examples of a batch in Zhao et al.'s mean of perplexities
_PIECES = ("char", "unigram", "bpe", "hf")  # tokenizers whose tokens are not words
_TRUE_FIRST = "the true response first, then the other ones of the file"
_TRUE_ONLY = "the true response"


@dataclass(frozen=True)
class EvaluationData:
    """Contexts of a test set with their references, the true response first."""

    name: str
    source: str
    dialogs: Sequence[Dialog]
    examples: Sequence[Example]
    items: Sequence[ReferenceItem] | None  # parallel to ``examples``; None = only the true response
    references_file: str | None

    def texts(self) -> list[tuple[str, ...]]:
        """The references of every example."""
        if self.items is None:
            return [(example.response.text,) for example in self.examples]
        return [item.responses for item in self.items]

    def fingerprint(self) -> str:
        """SHA-256 of the conversations and the references. Equal for comparable evaluations."""
        said = [[[u.speaker, u.text] for u in dialog.utterances] for dialog in self.dialogs]
        return hashlib.sha256(canonical_json([said, self.texts()])).hexdigest()


@flushed_denormals()
def evaluate(
    run: Path,
    *,
    others: Sequence[Path] = (),
    data: str | None = None,
    references: Path | None = None,
    output: Path | None = None,
    checkpoint: str = "best",
    limit: int | None = None,
    overrides: Sequence[str] = (),
    batch_size: int = 16,
    progress: OnProgress = no_progress,
) -> DialogEvaluation:
    """Evaluate a run on a corpus and keep the result in the run.

    Under torchrun, the processes share the contexts by contiguous slices of batches. Rank 0 writes.

    Args:
        others: further runs, whose probabilities are averaged with those of ``run``.
        data: a source for :func:`dialog.corpora.corpus.load_dialogs`; default: the run's own test split.
        references: a ``test_multi_ref.json`` with several references for every context. By default the only
            reference is the true response.
        output: file for the responses, one JSON object per context.
        checkpoint: ``best``, ``last``, ``average-best`` or ``step-N``.
        overrides: ``decode.key=value`` texts that override the run's config, of keys that its method reads.
        batch_size: number of contexts decoded together. It affects speed and memory, and results only by the
            rounding of float32 products.
        progress: called with the number of finished contexts and their total.

    Raises:
        ConfigError: bad options.
        DataError: bad data or references, or a backward run whose weights change meanwhile.
        StorageError: a bad run, or a full disk.
        DivergenceError: the model's probabilities are not finite.
    """
    with process_group() as group:
        group.share(lambda: require_output(output, [data, references]))
        model, weights = group.every(lambda: open_models([run, *others], checkpoint))
        group.share(lambda: require_keepable(run))
        model = replace(model, group=group)
        search = _overridden(model.config, overrides)
        backward = group.every(lambda: _require_decoding(model, search))
        test = group.every(lambda: load_test_set(data, references, limit, in_run(run, model.config.data)))
        group.require_equal({"checkpoint": weights, "mmi_run": backward, "data": test.fingerprint()})
        tokenizer = bleu_tokenizer(model.codec.tokenizer)
        own = tokenizer is model.codec.tokenizer
        data_facts = _describe_data(model, test, in_run(run, model.config.data))
        scores = model.nll(test.dialogs)[: len(test.examples)]
        likelihood = perplexities(
            scores, f"{visible(run)} on {visible(test.source)}", len(model.codec.vocabulary)
        )
        answers = _answers(model, test.examples, search, backward, batch_size, progress)
        responses = _for_bleu(model.codec, answers, test)
        report, contexts = responses_report(responses, tokenizer.split)
        human = report.yardsticks.true_response.scores.diversity
        result = DialogEvaluation(
            subject=Subject.of(model, run, checkpoint, weights[0], data_facts),
            ensemble_with=members(others, weights[1:]),
            mmi_with=backward,
            bleu_tokens=tokenizer.kind,
            decode=search,
            likelihood=likelihood,
            report=report,
            warnings=[
                *_unanswered(answers),
                *warnings(report.scores.diversity, human, likelihood.contexts, search, by_words=own),
            ],
            name=setting_name(test.name, checkpoint, search, model.config.decode, others),
        )
        columns = {key: [getattr(one, key) for one in scores] for key in ("dialog", "turn", "nll", "tokens")}

        def write() -> str:
            if output is not None:
                write_atomic(output, hypotheses_jsonl(test.examples, responses, answers))
            details = evaluation_details(model, test.dialogs, test.examples, answers)
            return keep(run, result, columns | contexts, details).name

        return replace(result, name=group.share(write))


def _overridden(config: DialogConfig, overrides: Sequence[str]) -> DecodeConfig:
    """Settings of decoding after overrides. ConfigError for bad ones, and for those without effect."""
    changed = with_decoding(Resolved(config, {}), overrides).config
    require_effect(changed, overrides)
    return changed.decode


def _require_decoding(model: TrainedModel, decode: DecodeConfig) -> Member | None:
    """Raise the errors of a decoding. Return the backward run of mutual information, if it takes part."""
    model.require(decode)
    return _backward_of(decode)


def _backward_of(decode: DecodeConfig) -> Member | None:
    """The backward run of mutual information with its present weights, if it takes part."""
    if decode.select != "mmi":
        return None
    return Member(decode.mmi_run, CheckpointStore.of(Path(decode.mmi_run)).fingerprint("best"))


def _answers(
    model: TrainedModel,
    examples: Sequence[Example],
    decode: DecodeConfig,
    backward: Member | None,
    batch_size: int,
    progress: OnProgress,
) -> list[list[Hypothesis]]:
    """Responses to every context. DataError if a training changes the backward run meanwhile."""
    answers = model.respond(examples, decode, batch_size, progress)

    def require_unchanged() -> None:
        if _backward_of(decode) != backward:
            raise DataError(
                f"decode.mmi_run {visible(decode.mmi_run)}: checkpoint best has changed during the"
                " evaluation; evaluate again when its training has ended"
            )

    model.group.every(require_unchanged)
    return answers


def _for_bleu(codec: Codec, answers: Sequence[Sequence[Hypothesis]], test: EvaluationData) -> Responses:
    """Responses and references as tokens for BLEU. A context without a response has an empty one."""
    tokenizer = bleu_tokenizer(codec.tokenizer)
    return Responses(
        [[bleu_tokens(codec, h.tokens) for h in found] or [[]] for found in answers],
        [[tokens_of(tokenizer, text) for text in group] for group in test.texts()],
    )


def _unanswered(answers: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """A warning about contexts for which decoding found no response, if any."""
    missing = sum(not found for found in answers)
    if not missing:
        return []
    return [
        f"{missing} of {len(answers)} contexts count as answered by nothing, as no response keeps to the "
        "rules: relax decode.min_length, no_repeat_ngram, block_context_ngram, require or forbid"
    ]


def bleu_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Tokenizer of text for BLEU: WordPunct if a run's tokens are characters or pieces, else its own."""
    return WordPunct(tokenizer.lowercase) if tokenizer.kind in _PIECES else tokenizer


def bleu_tokens(codec: Codec, ids: Sequence[int]) -> list[str]:
    """A response as tokens for BLEU, including ``<unk>``. Characters and pieces are joined to words first."""
    tokens = codec.vocabulary.words(ids)
    tokenizer = bleu_tokenizer(codec.tokenizer)
    if tokenizer is codec.tokenizer:
        return tokens
    known, *rest = (tokenizer.split(part) for part in codec.tokenizer.join(tokens).split(UNK))
    return known + [token for part in rest for token in (UNK, *part)]


def own_test_corpus(config: DataConfig) -> str:
    """The test corpus of a run. DataError if it is missing."""
    return split_of_run(config, "test", "name a corpus with --data")


def load_test_set(
    source: str | None, references: Path | None, limit: int | None, config: DataConfig
) -> EvaluationData:
    """Read a corpus and its references.

    DataError if there is no context, or if the references belong to other conversations. ConfigError for
    references with ``last_response`` or a backward run.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be at least 1")
    listed = read_references(references) if references else None
    if references and config.direction == "backward":
        raise ConfigError(f"{references}: has no references for a backward run; leave out --references")
    if references and config.last_response:
        raise ConfigError(
            f"{references}: lacks the last responses, which data.last_response adds; leave out --references"
        )
    source = source or own_test_corpus(config)
    dialogs = load_dialogs(source)
    backward = config.direction == "backward"
    examples = list_examples(dialogs, config.context, config.last_response, backward)
    if not examples:
        raise DataError(f"{source}: no context to evaluate; a dialog needs two utterances")
    items = align_references(listed, dialogs, str(references)) if listed else None
    name = evaluation_name(source, references)
    if limit is not None and limit < len(examples):
        name = f"{name}.first-{limit}"
        examples = examples[:limit]
        items = items[:limit] if items else None
        dialogs = dialogs[: examples[-1].dialog + 1]
    return EvaluationData(name, source, dialogs, examples, items, str(references) if references else None)


def perplexities(scores: Sequence[TargetScore], name: str, words: int) -> ResponseLikelihood:
    """Likelihood of true responses by a model with ``words`` words.

    DivergenceError, with the ``name`` of the model, if a number is not finite.
    """
    for score in scores:
        require_finite(score.nll, name)
    nll, tokens = math.fsum(s.nll for s in scores), sum(s.tokens for s in scores)
    batches = [scores[at : at + ZHAO_BATCH] for at in range(0, len(scores), ZHAO_BATCH)]
    means = [perplexity(math.fsum(s.nll for s in b) / sum(s.tokens for s in b)) for b in batches]
    return ResponseLikelihood(
        perplexity=require_finite(perplexity(nll / tokens), name),
        nll=nll / tokens,
        vocabulary=words,
        near_guessing=guessing(nll / tokens, words),
        tokens=tokens,
        responses_cut=sum(s.cut > 0 for s in scores),
        tokens_cut=sum(s.cut for s in scores),
        contexts=len(scores),
        perplexity_batch_mean=require_finite(math.fsum(means) / len(means), name),
        perplexity_batch_size=ZHAO_BATCH,
    )


def hypotheses_jsonl(
    examples: Sequence[Example], responses: Responses, answers: Sequence[Sequence[Hypothesis]]
) -> bytes:
    """``HYPS.jsonl`` with a line per context. References and hypotheses are token lists, the best first."""
    rows = zip(examples, responses.references, responses.hypotheses, answers, strict=True)
    lines = [
        json.dumps(
            {
                "dialog": example.dialog,
                "turn": example.turn,
                "context": [f"{u.speaker}: {u.text}" if u.speaker else u.text for u in example.context],
                "references": references,
                "hypotheses": hypotheses,
                "scores": [h.score for h in found],
            },
            ensure_ascii=False,
        )
        for example, references, hypotheses, found in rows
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def score_responses(
    hypotheses: Sequence[Sequence[Sequence[str]]], references: Sequence[Sequence[Sequence[str]]]
) -> ResponseScores:
    """BLEU in all versions, sacreBLEU, variety and edge cases of given responses. Needs no model.

    Every context has token lists, the best hypothesis and the true response first. DataError for no context,
    contexts that do not pair up, an empty list, or text instead of token lists.
    """
    return Scorer(references).score(hypotheses)[0]


def rescore(path: Path, *, true_only: bool = False) -> ResponseScores:
    """Score a ``HYPS.jsonl`` again; ``true_only`` scores only against the first reference, the true response.

    DataError, with the line, if the file is not from ``evaluate``.
    """
    hypotheses: list[list[tuple[str, ...]]] = []
    references: list[list[tuple[str, ...]]] = []
    with open_regular(path) as file:
        for number, line in read_lines(file, str(path), InputLog(command=None)):
            try:
                row = json.loads(line)
                hypotheses += token_lists([row["hypotheses"]], "hypothesis")
                references += token_lists([row["references"]], "reference")
            except (ValueError, KeyError, TypeError, RecursionError, DataError):
                raise DataError(
                    f"{path}:{number}: not an object with lists of tokens under hypotheses and references; "
                    "write the file with `dialog evaluate --output`"
                ) from None
    if not hypotheses:
        raise DataError(f"{path}: empty; write the file with `dialog evaluate --output`")
    return score_responses(hypotheses, [texts[:1] for texts in references] if true_only else references)


def _unknown_share(model: TrainedModel, test: EvaluationData) -> float:
    """Share of response tokens outside the run's vocabulary."""
    codec = model.codec
    words = [word for example in test.examples for word in tokens_of(codec.tokenizer, example.response.text)]
    unknown = sum(word == UNK or word not in codec.vocabulary for word in words)
    return unknown / len(words) if words else 0.0


def require_readable(model: TrainedModel, test: EvaluationData, own: DataConfig) -> float:
    """Share of unknown tokens in a test set; DataError if most of a corpus other than ``own`` are unknown."""
    unknown = _unknown_share(model, test)
    if not own_split(own, test.source):
        require_known(unknown, test.source)
    return unknown


def _describe_data(model: TrainedModel, test: EvaluationData, own: DataConfig) -> DialogData:
    """Description of a test set for a model with ``own`` splits. DataError if most of another is unknown."""
    unknown = require_readable(model, test, own)

    def own_share() -> float:
        return _unknown_share(model, load_test_set(None, None, None, own))

    return DialogData(
        name=test.name,
        source=test.source,
        sha256=test.fingerprint(),
        unknown_share=unknown,
        own_unknown_share=None if test.source == own.test else more_unknown(unknown, own_share),
        dialogs=len(test.dialogs),
        references_file=test.references_file,
        references_layout=_TRUE_ONLY if test.items is None else _TRUE_FIRST,
    )
