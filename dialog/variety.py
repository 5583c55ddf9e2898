"""Variety of the responses of people, the yardstick of that of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dialog.config import DataConfig, DialogConfig
from dialog.corpora.own_data import in_run
from dialog.evaluate import bleu_tokenizer, load_test_set
from dialog.metrics.distinct import Diversity, diversity
from dialog.tables import variety_row
from lm.config.named_data import split_of_run
from lm.console.tables import Table
from lm.errors import visible
from lm.results import Merged
from lm.runs.inputs import CONFIG, opened_run
from lm.text.tokenizers import Tokenizer, WordPunct
from lm.text.vocabulary import tokens_of


@dataclass(frozen=True)
class HumanVariety:
    """Variety of the true responses to all contexts of a corpus, in tokens of ``tokenizer``."""

    source: str
    contexts: int
    tokenizer: str
    diversity: Merged[Diversity]


def human_variety(source: str, limit: int | None = None) -> HumanVariety:
    """Measure the variety of the responses of people.

    Args:
        source: a source for :func:`dialog.corpora.corpus.load_dialogs`, or a run, which stands for its test
            split and its tokenizer. Other sources have the default one, WordPunct in lower case.
        limit: measure only the first ``limit`` contexts.

    Raises the errors of :func:`dialog.evaluate.load_test_set`, and StorageError for a damaged run.
    """
    tokenizer: Tokenizer = WordPunct(lowercase=True)
    corpus, data = source, DataConfig()
    if (Path(source) / CONFIG).exists():
        config, codec = opened_run(Path(source), DialogConfig)
        tokenizer, data = bleu_tokenizer(codec.tokenizer), in_run(Path(source), config.data)
        corpus = split_of_run(data, "test", "name a corpus instead of the run")
    test = load_test_set(corpus, None, limit, data)
    responses = [[tokens_of(tokenizer, example.response.text)] for example in test.examples]
    return HumanVariety(source, len(responses), tokenizer.kind, diversity(responses))


def variety_tables(found: Sequence[HumanVariety]) -> list[Table | str]:
    """A row for each corpus, and the most common response of each."""
    rows = [variety_row(visible(one.source), one.diversity) | {"contexts": one.contexts} for one in found]
    common = [
        f"{visible(one.source)}: the most common response is"
        f" {visible(' '.join(one.diversity.most_common_answer)[:60])!r}; {one.tokenizer} tokens"
        for one in found
    ]
    return [Table("Variety of the responses of people", rows), *common]
