"""Columns of the tables of README.md and docs/: headings, keys in results/*.json, forms of numbers."""

from functools import partial

from pages.table_forms import (
    LEAST_P,
    Column,
    fixed,
    mean_perplexity,
    p_value,
    percent,
    precision_recall,
    share,
    three_digits,
    times,
)

PARAMETERS = ("parameters", "parameters", fixed(0))
MINUTES = ("minutes", "minutes", fixed(1))
KNOWN_TRUTH = (
    PARAMETERS,
    ("test perplexity", "perplexity", fixed(2)),
    ("true perplexity", "true_perplexity", fixed(2)),
    ("excess, nats a token", "excess_nats", fixed(3)),
    ("BLEU-2 P/R", "bleu_2", precision_recall),
)
VALID, TEST = ("valid ppl", "valid_perplexity", fixed(2)), ("test ppl", "test_perplexity", fixed(2))
TWO_SEEDS = (
    PARAMETERS,
    ("valid ppl, seeds 1, 2", "valid_perplexity", fixed(2)),
    ("test ppl, seeds 1, 2", "test_perplexity", fixed(2)),
)
EFFICIENCIES = tuple(
    (f"{processes} processes", f"computing_{processes}", fixed(0)) for processes in (8, 64, 512)
)
DECODED: tuple[Column, ...] = (
    ("perplexity", "perplexity", fixed(2)),
    ("legacy BLEU-1 P/R", "bleu_legacy_1", precision_recall),
    ("legacy BLEU-4 P/R", "bleu_legacy_4", precision_recall),
    ("distinct-1", "inter_distinct_1", share),
    ("distinct-2", "inter_distinct_2", share),
    ("length", "mean_length", fixed(1)),
    ("same answer, %", "same_answer", percent(0)),
)
ANSWERS = (
    ("legacy BLEU-1 P/R", "bleu_legacy_1", precision_recall),
    ("legacy BLEU-4 P/R", "bleu_legacy_4", precision_recall),
    ("undefined, %", "undefined", percent(1)),
    ("length", "mean_length", fixed(1)),
    ("same answer, %", "same_answer", percent(0)),
)
GRADIENT: tuple[Column, ...] = (
    ("share of the norm", "gradient_share", fixed(3)),
    ("effective rank at the states", "gradient_rank_of_states", fixed(0)),
    ("of the update", "gradient_rank_of_update", fixed(0)),
)
EARLY: tuple[Column, ...] = (
    VALID,
    ("rank of 3,039", "rank", fixed(0)),
    *GRADIENT,
    ("gain", "gradient_gain", three_digits),
)
GEOMETRY: tuple[Column, ...] = (
    ("anisotropy of states", "anisotropy_of_states", fixed(2)),
    ("of contexts", "anisotropy_of_contexts", fixed(2)),
    ("of the output matrix", "anisotropy_of_output", fixed(2)),
    ("effective rank of states", "effective_rank_of_states", fixed(0)),
    ("of contexts", "effective_rank_of_contexts", fixed(0)),
    ("of the output matrix", "effective_rank_of_output", fixed(0)),
    ("of 200 histories", "histories_rank_without_future", fixed(0)),
    ("with 4 futures", "histories_rank_with_futures", fixed(0)),
)
SPREAD: tuple[Column, ...] = (  # over training
    ("anisotropy of states", "anisotropy_of_states", fixed(2)),
    ("effective rank of contexts", "effective_rank_of_contexts", fixed(0)),
)
# name of the table: file, heading of the labels, columns
TABLES: dict[str, tuple[str, str, tuple[Column, ...]]] = {
    "demo": ("demo", "head", KNOWN_TRUTH),
    "smalltalk": ("smalltalk", "head", (*KNOWN_TRUTH, MINUTES)),
    "ptb_small, perplexity": ("ptb_small", "head", (VALID, TEST)),
    "ptb_transformer": ("ptb_transformer", "head", (PARAMETERS, VALID, TEST, MINUTES)),
    "ptb_transformer_frequencies": ("ptb_transformer_frequencies", "head", (VALID, TEST, MINUTES)),
    "switchboard_transformer": (
        "switchboard_transformer",
        "head",
        (*TWO_SEEDS, ("mean", "test_perplexity", mean_perplexity(2))),
    ),
    "ptb_small": (
        "ptb_small",
        "head",
        (
            VALID,
            ("best at", "best_at", fixed(0)),
            TEST,
            ("rank of 4,000", "rank", fixed(0)),
            MINUTES,
        ),
    ),
    "ptb_small, gradients": (
        "ptb_small",
        "head",
        GRADIENT,
    ),
    "switchboard_bleu, short": (
        "switchboard_bleu",
        "head",
        (VALID, TEST, ("legacy BLEU-1 P/R", "bleu_legacy_1", precision_recall)),
    ),
    "switchboard_bleu": (
        "switchboard_bleu",
        "head",
        (
            VALID,
            TEST,
            ("legacy BLEU-1 P/R", "bleu_legacy_1", precision_recall),
            ("legacy BLEU-4 P/R", "bleu_legacy_4", precision_recall),
            ("undefined, %", "undefined", percent(1)),
            ("current BLEU-1 P/R", "bleu_1", precision_recall),
            ("current BLEU-4 P/R", "bleu_4", precision_recall),
            ("length", "mean_length", fixed(1)),
            ("same answer, %", "same_answer", percent(0)),
            ("minutes", "minutes", fixed(0)),
        ),
    ),
    "switchboard_ranks": (
        "switchboard_ranks",
        "head",
        (TEST, ("rank of 6,100", "rank", fixed(0)), *GRADIENT, ("minutes", "minutes", fixed(0))),
    ),
    "switchboard_early": ("switchboard_early", "head", EARLY),
    "switchboard_early_frequencies": ("switchboard_early_frequencies", "head", EARLY),
    "switchboard_early_linear": ("switchboard_early_linear", "head", EARLY),
    "switchboard_full": (
        "switchboard_full",
        "head",
        (
            PARAMETERS,
            ("updates", "updates", fixed(0)),
            ("best at", "best_at", fixed(0)),
            VALID,
            TEST,
            *ANSWERS,
        ),
    ),
    "switchboard_full_frequencies": (
        "switchboard_full_frequencies",
        "head",
        (("updates", "updates", fixed(0)), ("best at", "best_at", fixed(0)), VALID, TEST, *ANSWERS),
    ),
    "switchboard_bleu_frequencies": ("switchboard_bleu_frequencies", "head", (VALID, TEST, *ANSWERS)),
    "decoding": ("decoding", "decoding", DECODED),
    "decoding_trained": ("decoding_trained", "training", DECODED),
    "scale": (
        "scale",
        "work",
        (
            ("1 process, 1 thread: s", "one", fixed(2)),
            ("the same in 2 shards: s", "both", fixed(2)),
            ("1 process, 2 threads: s", "threads", fixed(2)),
            ("2 processes, 1 thread each: s", "two", fixed(2)),
            ("one of the 2 shards: s", "half", fixed(2)),
            ("gain over 1 thread", "over_one", fixed(2)),
            ("at most", "most", fixed(2)),
            ("over 1 thread in 2 shards", "over_both", fixed(2)),
            ("gain over 2 threads", "over_threads", fixed(2)),
        ),
    ),
    "exchange": (
        "exchange",
        "parameters",
        (
            ("MB sent by each of two", "megabytes", fixed(0)),
            ("exact: ms", "exact_milliseconds", fixed(0)),
            ("fast: ms", "fast_milliseconds", fixed(0)),
        ),
    ),
    "exchange, efficiency": ("exchange", "parameters", EFFICIENCIES),
    "ptb_gradient": (
        "ptb_gradient",
        "head",
        (
            ("share of the norm", "gradient_share", fixed(3)),
            ("random share", "gradient_random_share", fixed(3)),
            ("gain", "gradient_gain", fixed(1)),
            ("alignment", "gradient_alignment", fixed(3)),
            ("effective rank of logits", "gradient_rank_of_logits", fixed(0)),
            ("of states", "gradient_rank_of_states", fixed(0)),
            ("of the update", "gradient_rank_of_update", fixed(0)),
            VALID,
        ),
    ),
    "ptb_gradient, geometry": ("ptb_gradient", "head", GEOMETRY),
    "ptb_geometry": ("ptb_geometry", "head", GEOMETRY),
    "unargmaxable": (
        "unargmaxable",
        "head",
        (
            ("words, bounded contexts", "unargmaxable", fixed(0)),
            ("free contexts", "unargmaxable_free", fixed(0)),
        ),
    ),
    "speed": (
        "speed",
        "work",
        (
            ("naive: s", "naive", three_digits),
            ("float32: s", "float32", three_digits),
            ("times as fast as naive", "over_naive", fixed(1)),
            ("times the floor", "over_floor", fixed(2)),
            ("bfloat16 products: s", "bfloat16", three_digits),
            ("times as fast as naive", "bfloat16_over_naive", fixed(1)),
            ("times the floor", "bfloat16_over_floor", fixed(1)),
        ),
    ),
    "speed_epyc": (
        "speed_epyc",
        "work; the other code",
        (
            ("other: s", "other", fixed(1)),
            ("float32: s", "float32", fixed(1)),
            ("times as fast", "gain", fixed(1)),
        ),
    ),
    "record": (
        "record",
        "class",
        (VALID, TEST, ("goal: test ppl", "goal", fixed(0)), ("minutes", "minutes", fixed(0))),
    ),
    "log": (
        "log",
        "try",
        (
            ("nats, updates 1–100", "train_nats_100", fixed(3)),
            ("201–300", "train_nats_300", fixed(3)),
            ("401–500", "train_nats_500", fixed(3)),
            VALID,
            ("processor minutes", "processor_minutes", fixed(2)),
        ),
    ),
    "record_tries": (
        "record_tries",
        "try",
        (
            ("nats, updates 1–40", "train_nats_40", fixed(3)),
            ("81–120", "train_nats_120", fixed(3)),
            ("121–160", "train_nats_160", fixed(3)),
            VALID,
            ("processor minutes", "processor_minutes", fixed(2)),
        ),
    ),
    "own_small": (
        "own_small",
        "variation",
        (("best at, seeds 1, 2", "best_at", fixed(0)), ("valid ppl", "valid_perplexity", fixed(2))),
    ),
    "record_tries_20": (
        "record_tries_20",
        "try",
        (("updates", "updates", fixed(0)), VALID, MINUTES),
    ),
    "threads": (
        "threads",
        "processes",
        (("threads each", "threads", fixed(0)), ("tokens a second", "tokens_per_second", fixed(0))),
    ),
    "serve": (
        "serve",
        "decoding",
        (
            ("8 clients", "clients_8", times),
            ("64 clients", "clients_64", times),
            ("decoding alone, 8 together", "together_8", times),
            ("32 together", "together_32", times),
        ),
    ),
    "trunks": (
        "trunks",
        "work",
        (
            ("`transformers`, tokens a second", "transformers", three_digits),
            ("ours", "ours", three_digits),
            ("ratio", "ratio", fixed(2)),
        ),
    ),
    "loss_memory": (
        "loss_memory",
        "loss",
        tuple((f"V = {words:,}: MB", f"megabytes_{words}", fixed(0)) for words in (32_000, 128_000)),
    ),
    "ptb_trials_early": (
        "ptb_trials_early",
        "head",
        tuple(
            (f"×{factor}, `optim.lr` = .{rate}", f"{factor}_{rate}", fixed(1))
            for factor, rate in (("1", "004"), ("1", "008"), ("1", "016"), ("4", "008"), ("4", "016"))
        ),
    ),
    "switchboard_trials_early": (
        "switchboard_trials_early",
        "`optim.lr`",
        (
            ("softmax", "softmax", fixed(2)),
            ("MoC ×4", "moc", fixed(2)),
            ("MoS ×4", "mos", fixed(2)),
            ("MoSS ×4", "moss", fixed(2)),
        ),
    ),
    "speed_gpu": (
        "speed_gpu",
        "head",
        tuple(
            (heading, key, fixed(2))
            for heading, key in (
                ("naive", "naive"),
                ("naive, autocast", "naive_autocast"),
                ("tensor operations, float32", "eager"),
                ("TF32", "eager_tf32"),
                ("bfloat16", "eager_bfloat16"),
                ("kernels, TF32", "fused_tf32"),
                ("kernels, bfloat16", "fused_bfloat16"),
            )
        ),
    ),
    "recovery": (
        "recovery",
        "cell",
        (
            ("gain over the LSTM, nats a token", "gain", fixed(3)),
            ("after surprises", "gain_after", fixed(3)),
            ("difference, 95 %", "excess_after", fixed(3)),
        ),
    ),
    "melis_reasons": (
        "melis_reasons",
        "variation",
        (
            ("LSTM, valid and test ppl", "lstm", fixed(2)),
            ("Mogrifier, valid and test ppl", "mogrifier", fixed(2)),
            ("Mogrifier ahead on test, %", "ahead_percent", fixed(1)),
        ),
    ),
    "comparisons": (
        "comparisons",
        "models",
        (("p of the text", "p", p_value), ("p over seeds", "p_over_seeds", partial(p_value, least=LEAST_P))),
    ),
    "ptb_short": ("ptb_short", "model", (*TWO_SEEDS, ("mean", "test_perplexity", mean_perplexity(1)))),
    "switchboard_short": (
        "switchboard_short",
        "model",
        (
            *TWO_SEEDS,
            ("mean", "test_perplexity", mean_perplexity(2)),
            ("same answer", "same_answer", fixed(2)),
        ),
    ),
}
