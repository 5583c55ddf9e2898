"""Safeguards of formulas, sampling and search."""

from tests.matrix.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a record of the beam, under its rules",
        "dialog/decoding/beam.py",
        ".scatter(1, going, True)",
        ".scatter(1, going, False)",
        "dialog/test_trace.py::test_every_step_shows_what_the_search_kept_ended_and_dropped",
    ),
    Mutant(
        "log domain of improbable words",
        "lm/heads/rows.py",
        "(~(out.amin(1) > IMPROBABLE[self.precision]))",
        "torch.zeros(len(out))",
        "heads/test_rows.py::test_mixtures_are_the_formula",
    ),
    Mutant(
        "log domain for each token by itself",
        "lm/heads/rows.py",
        "(~(out.amin(1) > IMPROBABLE[self.precision]))",
        "(~(out.amin() > IMPROBABLE[self.precision])).expand(len(out))",
        "heads/test_rows.py::test_an_improbable_word_changes_no_other_token",
    ),
    Mutant(
        "all words where few do not hold a nucleus",
        "lm/heads/sampling.py",
        "        if count == vocab or bool((before[:, -1] >= top_p).all()):\n",
        "        if True:\n",
        "heads/test_sampling.py::test_blocks_of_rows_and_a_search_among_few_words_change_no_token",
    ),
)
