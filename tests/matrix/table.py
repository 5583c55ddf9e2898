"""The rows of the matrix, in order."""

from tests.matrix import arithmetic, configs, crashes, damage, machine, ranks, readers, sabotage, talk
from tests.matrix.crashes import row_of
from tests.matrix.row import Row

GPU = "not applicable: needs a GPU, see Limits"
PLATFORMS = "one Python and one system here: releases try the others"

ROWS = (
    Row("A1", "SIGKILL at random in a training", 500, row_of(crashes.kill_at_random), 4),
    Row("A2", "SIGKILL at every kind of change of the disk", 240, row_of(crashes.kill_at_every_step)),
    Row("A3", "power loss at any moment of a command", 2_000, crashes.power_losses, 14),
    Row("A4", "SIGKILL while a killed training resumes", 100, row_of(crashes.kill_while_it_recovers), 3),
    Row("A5", "SIGKILL in every other command", 150, row_of(crashes.kill_other_commands), 6),
    Row("A6", "SIGKILL of one of two processes of a training", 30, ranks.kill_a_rank),
    Row("A7", "memory runs out (RLIMIT_AS)", 20, row_of(crashes.little_memory)),
    Row("B", "four signals at random in seven commands", 560, row_of(crashes.signal_at_random), 7),
    Row("C1", "NaN or ±inf in loss, gradient, weight, embedding, state", 200, arithmetic.non_finite, 10),
    Row("C2", "logits of ±1e4, all equal, one-hot", 10_000, arithmetic.extreme_logits, 200),
    Row("D1", "full disk (RLIMIT_FSIZE, a small file system)", 200, row_of(crashes.full_disk), 5),
    Row("D2", "a change of the disk fails", 100, row_of(crashes.failing_disk), 5),
    Row("E1", "one bit of a checkpoint", 10_000, damage.flipped_bits, 500),
    Row("E2", "a checkpoint cut, zeroed, exchanged, renamed, newer", 2_000, damage.other_damage, 100),
    Row("F", "checkpoints of an attacker", 1_000, damage.hostile, 100),
    Row("G1", "bad data, chosen by hand", 80, readers.chosen, 20),
    Row("G2", "mutated files for every reader", 10_000, readers.mutated, 200),
    Row("H", "mistyped configs", 2_400, configs.mistyped, 100),
    Row("I", "paths that lead elsewhere or nowhere", 200, configs.odd_paths, 10),
    Row("J1", "lines typed into chat", 10_000, talk.typed, 200),
    Row("J2", "text of models and data on a terminal", 2_000, talk.shown, 200),
    Row("J3", "keys, Ctrl-C, resizing, hanging up, on a terminal", 300, talk.sessions, 10),
    Row("K1", "the same seed, logged and saved at other times", 60, row_of(crashes.same_seed), 3),
    Row("K2", "other batches, other order", 1_000, arithmetic.other_ways, 50),
    Row("K3", "the same twice on a GPU", 20, limit=GPU),
    Row("L", "scores against NLTK", 1_000, arithmetic.scores, 200),
    Row("M", "no network", 12, machine.offline, limit=PLATFORMS),
    Row("N", "10,000 updates in one process; equal curves of 200", 8, machine.endurance),
    Row("Z", "a safeguard of our own code is taken out", len(sabotage.MUTANTS), sabotage.sabotage),
)
