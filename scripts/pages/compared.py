"""Heads, pairs and settings that the tables of results compare, by the labels of their entries."""

# labels: heads of the Penn Treebank that Switchboard has otherwise begin with PTB
SOFTMAX = "softmax"
SOFTMAX_X4 = "softmax ×4"
MOC = "MoC ×4, K = 3"
MOS = "MoS ×4, K = 3"
MOSS = "MoSS ×4, K = 3"
MOC_X1 = "MoC ×1, K = 3"
MOS_X1 = "MoS ×1, K = 3"
MOSS_X1 = "MoSS ×1, K = 3"
MOC_LEARNED = "MoC, learned factor, K = 3"
MOS_LEARNED = "MoS, learned factor, K = 3"
MOSS_LEARNED = "MoSS, learned factor, K = 3"
ONE = "MoS ×4, K = 1"
ONE_X1 = "MoS ×1, K = 1"
PTB_DOC = "DOC ×4, 2 + 1 components of two layers"
DOC = "DOC ×4, K = 3"
PTB_MIXTAPE = "Mixtape ×4, K = 4, gates for 2,000 words"
PTB_MFS = "MFS ×4, K = 3, four parts, two layers"
MFS = "MFS ×4, K = 3, four parts"
PTB_CPR = "CPR ×4, likely words only, two layers"
CPR = "CPR ×4, 20 and 100 likely words, words of the context, pointer"

BASELINES = (SOFTMAX, SOFTMAX_X4, MOC)  # labels that every model is tested against
START = "bias at the frequencies"  # heading of head.start = "frequencies"
BEYOND_MOS = (PTB_DOC, DOC, CPR)  # labels of heads with more than mixed probabilities
MIXTURES = (MOC, MOS, MOSS, MOS_X1, *BEYOND_MOS)
STARTS = (  # pairs of labels: heads that begin so and the same with the bias at zero, and two that begin so
    *((f"{label}, {START}", label) for label in (SOFTMAX, SOFTMAX_X4, *MIXTURES)),
    (f"{SOFTMAX}, {START}", SOFTMAX_X4),
    *((f"{label}, {START}", f"{SOFTMAX}, {START}") for label in (SOFTMAX_X4, *MIXTURES)),
    *((f"{label}, {START}", f"{SOFTMAX_X4}, {START}") for label in MIXTURES),
    *((f"{MOS}, {START}", f"{label}, {START}") for label in (MOC, MOS_X1)),
    (f"{MOSS}, {START}", f"{MOS}, {START}"),
    *((f"{label}, {START}", f"{MOS}, {START}") for label in BEYOND_MOS),
)
REMOVED = (  # labels of the leads that this start takes a share of
    (SOFTMAX_X4, SOFTMAX),
    (MOC, SOFTMAX),
    (MOS, SOFTMAX),
)
PAIRS = {  # labels of further tests by file
    "ptb_small": (
        (MOS_X1, MOS),
        (MOC_X1, MOC),
        (MOS_X1, MOC_X1),
        (MOC_LEARNED, MOC_X1),
        (MOS_LEARNED, MOS_X1),
        (MOS_LEARNED, MOS),
        (MOSS_LEARNED, MOSS_X1),
        (MOSS_X1, MOSS),
        (MOSS_X1, MOS_X1),
        (MOSS, MOS),
        (ONE, ONE_X1),
        (MOS, ONE),
        (MOC, ONE),
        (MOS_X1, ONE_X1),
        (MOC_X1, ONE_X1),
        (f"Mogrifier, {MOS}", MOS),
        (PTB_DOC, MOS),
        (PTB_DOC, PTB_MIXTAPE),
        (PTB_MIXTAPE, MOS),
        (PTB_MFS, MOS),
        (PTB_CPR, MOS),
        (f"Mogrifier, {SOFTMAX_X4}", f"Mogrifier, {SOFTMAX}"),
        (f"Mogrifier, {MOS}", f"Mogrifier, {SOFTMAX}"),
        (f"Mogrifier, {MOS}", f"Mogrifier, {SOFTMAX_X4}"),
        (f"Mogrifier, {SOFTMAX}, rate .004", f"{SOFTMAX}, rate .004"),
        (f"{MOS}, dropout .1", f"{SOFTMAX_X4}, dropout .1"),
        (f"{PTB_DOC}, dropout .1", f"{MOS}, dropout .1"),
    ),
    "switchboard_bleu": (
        (MOS_X1, ONE_X1),
        (MOS, ONE),
        (MOC, ONE),
        (MOC_X1, ONE_X1),
        (DOC, MOS),
        (MFS, MOS),
        (MOC_LEARNED, MOC_X1),
        (MOS_LEARNED, MOS_X1),
        (MOSS_LEARNED, MOSS_X1),
        (MOSS_X1, MOS_X1),
        (MOSS, MOS),
        (MOS_X1, MOC_X1),
        (CPR, MOS),
        (CPR, f"attention, {SOFTMAX_X4}"),
        (CPR, f"Mogrifier, {SOFTMAX_X4}"),
        (f"attention, {SOFTMAX_X4}", f"attention, {SOFTMAX}"),
        (f"attention, {MOC}", f"attention, {SOFTMAX}"),
        (f"attention, {MOS}", f"attention, {SOFTMAX}"),
        (f"attention, {MOS}", f"attention, {SOFTMAX_X4}"),
        (f"Mogrifier, {SOFTMAX_X4}", f"Mogrifier, {SOFTMAX}"),
        (f"Mogrifier, {MOS}", f"Mogrifier, {SOFTMAX}"),
        (f"Mogrifier, {MOS}", f"Mogrifier, {SOFTMAX_X4}"),
        (f"Mogrifier, {SOFTMAX_X4}", SOFTMAX_X4),
        (f"Mogrifier, {MOS}", MOS),
        (f"{SOFTMAX_X4}, rate .006, dropout .1", f"{SOFTMAX}, rate .006, dropout .1"),
        (f"{MOS}, rate .006, dropout .1", f"{SOFTMAX}, rate .006, dropout .1"),
        (f"{MOS}, rate .006, dropout .1", f"{SOFTMAX_X4}, rate .006, dropout .1"),
        (CPR, f"{SOFTMAX_X4}, rate .006, dropout .1"),
    ),
}
SETTINGS = {  # labels of heads, and what each heading adds to them, of a grid of leads by file
    "ptb_small": (
        (SOFTMAX_X4, MOC, MOS, PTB_DOC),
        {
            "rate .008, dropout .2": "{}",
            "rate .004": "{}, rate .004",
            "dropout .1": "{}, dropout .1",
            START: "{}, " + START,
        },
    ),
    "switchboard_bleu": (
        (SOFTMAX_X4, MOC, MOS, MOS_X1),
        {
            "rate .003, dropout .2": "{}",
            "rate .006": "{}, rate .006",
            "dropout .1": "{}, dropout .1",
            "rate .006, dropout .1": "{}, rate .006, dropout .1",
            START: "{}, " + START,
            "Mogrifier": "Mogrifier, {}",
            "attention": "attention, {}",
        },
    ),
}
SHARED = {"ptb_small": (SOFTMAX, MOS)}  # labels of the baseline and of the whole lead
SHORT = {  # tables with these labels only
    "ptb_small, perplexity": (
        *BASELINES,
        MOS_X1,
        MOS,
        PTB_DOC,
        f"{SOFTMAX}, {START}",
        f"{MOS}, {START}",
    ),
    "switchboard_bleu, short": (
        *BASELINES,
        MOS_X1,
        MOS,
        CPR,
        f"{SOFTMAX}, {START}",
        f"{MOS}, {START}",
    ),
}
LEADS = {  # heading by file
    "ptb_short": "Penn Treebank, 2,000 updates",
    "ptb_small": "12,000",
    "switchboard_short": "Switchboard, 500 updates",
    "switchboard_bleu": "5,000",
}
TRIALS = {  # files by heading of a training of seed 1, by table
    "ptb_trials": {
        "rate .004": "ptb_trials_lr4",
        "rate .008": "ptb_trials",
        "rate .016": "ptb_trials_lr16",
        "rate .008, dropout .1": "ptb_trials_dropout1",
    },
    "ptb_trials, full": {
        "rate .008, dropout .2": "ptb_small",
        "rate .004": "ptb_small_lr4",
        "dropout .1": "ptb_small_dropout1",
    },
    "switchboard_trials": {
        "rate .003": "switchboard_trials",
        "rate .006": "switchboard_trials_lr6",
        "rate .012": "switchboard_trials_lr12",
        "rate .012, dropout .1": "switchboard_trials_lr12_dropout1",
    },
    "switchboard_trials, full": {
        "rate .003, dropout .2": "switchboard_bleu",
        "rate .006": "switchboard_bleu_lr6",
        "dropout .1": "switchboard_bleu_dropout1",
        "dropout .3": "switchboard_bleu_dropout3",
        "rate .006, dropout .1": "switchboard_bleu_lr6_dropout1",
    },
    "ptb_trials, start": {"bias at zero": "ptb_trials", START: "ptb_trials_frequencies"},
    "ptb_small, start": {"bias at zero": "ptb_small", START: "ptb_small_frequencies"},
    "switchboard_bleu, start": {"bias at zero": "switchboard_bleu", START: "switchboard_bleu_frequencies"},
}
LEADING = {  # label and bound on the rank of log P by end of the preset's name
    "sigsoftmax": ("sigsoftmax", "none"),
    "plif": ("PLIF", "none"),
    "mos_k1_linear": ("softmax ×4", "E + 2"),
    "mos_k1_scale1": ("MoS ×1, K = 1", "E + 2"),
    "mos_k1": ("MoS ×4, K = 1", "E + 2"),
    "moc_scale1": ("MoC ×1", "E + 2"),
    "moc_learned_scale": ("MoC, learned factor", "E + 2"),
    "moc": ("MoC ×4", "E + 2"),
    "mos_scale1": ("MoS ×1", "none"),
    "mos_learned_scale": ("MoS, learned factor", "none"),
    "mos": ("MoS ×4", "none"),
    "moss_scale1": ("MoSS ×1", "none"),
    "moss_learned_scale": ("MoSS, learned factor", "none"),
    "moss": ("MoSS ×4", "none"),
    "doc": ("DOC ×4", "none"),
    "mixtape": ("Mixtape ×4", "above E + 2"),
    "mfs": ("MFS ×4", "none"),
    "cpr": ("CPR ×4", "above E + 2"),
}
