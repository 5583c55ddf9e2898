"""Row Z: builds of our own code with one safeguard taken out, each of which a test has to notice.

A mutant replaces a piece of source that occurs exactly once; where it no longer does, the list is out of
date, which is an error. The test that notices it is one of the default suite.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.row import Case
from tests.support.crash_process import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent.parent
FAILED = 1  # exit code of pytest where tests ran and failed
POWER = "runs/test_checkpoint_crashes.py::test_power_loss_at_any_operation_leaves_the_old_or_the_new_commit"
RESUMED = "engine/test_loop.py::test_stopping_and_resuming_at_every_step_changes_nothing"


@dataclass(frozen=True)
class Mutant:
    """What is taken out of which file, and the test that fails then."""

    about: str
    file: str
    old: str
    new: str
    test: str

    def spoil(self, root: Path) -> None:
        """Apply it to a copy of the packages; ValueError where its text is not there exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.about}: {self.file} has its text {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


STORAGE, CHECKPOINT, COMMIT, RUN = (
    "lm/disk/storage.py",
    "lm/runs/checkpoint.py",
    "lm/runs/commit.py",
    "lm/runs/run.py",
)
SHARDED, SHARED = "lm/engine/sharded.py", "parallel/test_training.py::test_two_processes_give_the_bits_of_one"
BATCHING = "lm/serve/batching.py"
STATE, SAVING, TRAIN = "lm/engine/state.py", "lm/engine/saving.py", "lm/engine/loop.py"
MUTANTS = (
    Mutant("fsync of files", STORAGE, "            os.fsync(fd)\n        finally", "        finally", POWER),
    Mutant(
        "fsync of the folder that a commit gets its name in",
        STORAGE,
        "    move(tmp, final)\n    sync(final.parent)\n",
        "    move(tmp, final)\n",
        "runs/test_checkpoint_crashes.py::test_the_order_of_a_commit",
    ),
    Mutant("fsync of a commit's folder", STORAGE, "    sync(tmp)\n    move(tmp", "    move(tmp", POWER),
    Mutant(
        "rename over the old file",
        STORAGE,
        "            move(tmp, path)\n",
        "            remove_tree(path)\n            move(tmp, path)\n",
        "disk/test_storage.py::test_a_kill_leaves_the_old_or_the_new_file",
    ),
    Mutant(
        "fsync of a new folder's parent",
        STORAGE,
        "        sync(path.parent)\n",
        "",
        "disk/test_storage.py::test_folders_are_made_durably_and_once",
    ),
    Mutant(
        "refusal of links",
        "lm/disk/regular.py",
        "(0 if follow else os.O_NOFOLLOW)",
        "0",
        "runs/test_checkpoint_damage.py::test_links_and_special_files_are_never_followed",
    ),
    Mutant(
        "limit on the length of a file",
        STORAGE,
        "    if data is None or len(data) > limit:\n",
        "    data = data or b''\n    if False:\n",
        "disk/test_storage.py::test_a_file_larger_than_its_limit_is_refused",
    ),
    Mutant(
        "hash check",
        COMMIT,
        "    if sha256 != record.sha256:\n",
        "    if False:\n",
        "runs/test_checkpoint_damage.py::test_every_flipped_bit_is_noticed_and_the_file_is_named",
    ),
    Mutant(
        "hash of the manifest itself",
        COMMIT,
        "    if data != canonical:\n",
        "    if False:\n",
        "runs/test_checkpoint_damage.py::test_every_flipped_bit_of_a_manifest_is_noticed",
    ),
    Mutant(
        "names that a manifest may list",
        COMMIT,
        r'pattern=rf"^({_GROUP}\.safetensors|state\.json)$"',
        'pattern=r"^.+"',
        "runs/test_checkpoint_damage.py::test_a_hostile_manifest_is_refused",
    ),
    Mutant(
        "step in the name of a commit",
        COMMIT,
        "    if match is None or int(match[1]) != manifest.step:\n",
        "    if match is None:\n",
        "runs/test_checkpoint_damage.py::test_other_damage_is_noticed",
    ),
    Mutant(
        "pruning only after what stays is verified",
        CHECKPOINT,
        "        Commit.read(kept)\n",
        "",
        "runs/test_checkpoint.py::test_prune_deletes_only_after_verifying_what_stays",
    ),
    Mutant(
        "renaming before deleting",
        CHECKPOINT,
        "            move(path, grave)\n        sync(self.folder)\n",
        "            remove_tree(path)\n",
        "runs/test_checkpoint_crashes.py::test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_commit",
    ),
    Mutant(
        "an older commit of a step stays until the new one is there",
        CHECKPOINT,
        "            move(final, old)\n",
        "            remove_tree(final)\n",
        "runs/test_checkpoint_crashes.py::test_a_kill_while_a_step_is_replaced_leaves_one_of_the_two",
    ),
    Mutant(
        "check of a pointer",
        CHECKPOINT,
        "if not isinstance(steps, list) or any(type(step) is not int or step < 0 for step in steps):",
        "if False:",
        "runs/test_checkpoint.py::test_open_and_pointers",
    ),
    Mutant("random generators", STATE, '        load_rng(tensors("rng"))\n', "", RESUMED),
    Mutant("hidden state", STATE, '        self.task.load_state(tensors("task"))\n', "", RESUMED),
    Mutant(
        "state of the optimiser",
        STATE,
        '        load_optimizer_tensors(self.optimizer, self.task.model, tensors("optimizer"))\n',
        "",
        RESUMED,
    ),
    Mutant(
        "average of the weights",
        STATE,
        '        self.averager.load(tensors("average"), int(values["averaged"]), start)\n',
        "",
        RESUMED,
    ),
    Mutant("schedule", STATE, '        self.schedule.load(values["schedule"])\n', "", RESUMED),
    Mutant(
        "early-stop counter",
        STATE,
        "cls(**(values | parts))",
        'cls(**(values | parts | {"stale": 0}))',
        RESUMED,
    ),
    Mutant(
        "list of the best",
        STATE,
        'best = [(float(nll), int(step)) for nll, step in values["best"]]',
        "best: list[tuple[float, int]] = []",
        RESUMED,
    ),
    Mutant(
        "history of NT-ASGD",
        STATE,
        'parts = {"best": best,',
        'parts = {"history": [], "best": best,',
        "engine/test_nt_asgd.py::test_a_run_stopped_after_the_trigger_resumes_bit_for_bit",
    ),
    Mutant(
        "position in the data", TRAIN, "(progress.epoch, progress.index))", "(progress.epoch, 0))", RESUMED
    ),
    Mutant(
        "cutting the log back",
        SAVING,
        "        self._journal.cut(_log_of(commit)[0] if keep_log else 0)\n",
        "",
        "engine/test_loop.py::test_a_kill_at_any_batch_or_validation_changes_nothing",
    ),
    Mutant(
        "three failures in a row",
        SAVING,
        "if final or self._failures >= FAILURES:",
        "if final:",
        "engine/test_loop_storage.py::test_three_failed_commits_in_a_row_end_training",
    ),
    Mutant(
        "skipping what is not finite",
        TRAIN,
        "        if sums.finite:\n            self.updater.apply",
        "        if True:\n            self.updater.apply",
        "engine/test_loop_faults.py::test_a_bad_update_is_skipped_counted_and_leaves_no_trace",
    ),
    Mutant(
        "what a skipped update changed",
        TRAIN,
        "            before.restore()\n            self.skipped",
        "            self.skipped",
        "engine/test_loop_faults.py::test_a_bad_update_is_skipped_counted_and_leaves_no_trace",
    ),
    Mutant(
        "weights are finite before they are saved",
        TRAIN,
        "(saves and not self.finite())",
        "False",
        "engine/test_loop_faults.py::test_weights_that_overflow_are_never_committed",
    ),
    Mutant(
        "NaN is never best",
        STATE,
        "        if not math.isfinite(nll):\n",
        "        if False:\n",
        "engine/test_loop_faults.py::test_a_validation_that_is_not_finite_is_never_best",
    ),
    Mutant(
        "stop flag of training",
        TRAIN,
        "            self.agreement.check()\n            self.step()",
        "            self.step()",
        "engine/test_loop.py::test_a_training_in_shards_stops_after_the_update_and_resumes",
    ),
    Mutant(
        "a second signal ends at once",
        "lm/stop.py",
        "            os._exit(Interrupted.exit_code)\n",
        "            pass\n",
        "runs/test_run.py::test_a_second_signal_ends_at_once",
    ),
    Mutant(
        "signals wait while a file is published",
        "lm/stop.py",
        "    return _shield.pending\n",
        "    return False\n",
        "system/test_signals.py::test_a_deferred_signal_comes_at_the_end_of_the_outermost_section",
    ),
    Mutant(
        "a flag ends validation at once",
        "lm/stop.py",
        "            if self._raises:\n",
        "            if False:\n",
        "system/test_signals.py::test_a_flag_ends_a_section_of_training_at_once",
    ),
    Mutant(
        "comparison of the config",
        RUN,
        "if fixed := [key for key in changed_keys(before, now) if key not in resumable_keys]:",
        "if fixed := [key for key in changed_keys(before, now) if key == resumable_keys]:",
        "runs/test_run.py::test_another_config_is_refused_with_both_values",
    ),
    Mutant(
        "lock",
        RUN,
        "    if not _acquired(lock):\n",
        "    if not _acquired(lock) and False:\n",
        "runs/test_run.py::test_a_second_writer_is_told_who_holds_the_run",
    ),
    Mutant(
        "length of the log",
        "lm/runs/metrics_log.py",
        "        if (size := self.offset) < offset:\n",
        "        if (size := self.offset) < 0:\n",
        "runs/test_metrics_log.py::test_a_log_is_cut_back_to_an_offset",
    ),
    Mutant(
        "torn last line",
        "lm/runs/metrics_log.py",
        "                self._drop_torn_line()\n",
        "",
        "runs/test_metrics_log.py::test_a_torn_last_line_is_dropped_on_opening",
    ),
    Mutant(
        "sanitiser",
        "lm/console/terminal.py",
        r"\x0b-\x1f\x7f-\x9f",
        r"\x0b-\x1f\x7f",
        "console/test_terminal.py::test_single_characters",
    ),
    Mutant(
        "refusal of code in pickles",
        "dialog/corpora/unpickle.py",
        '        raise pickle.UnpicklingError(f"it asks for {module}.{name}, but data needs no code")\n',
        "        return super().find_class(module, name)  # type: ignore[return-value]\n",
        "dialog/test_corpus_releases.py::test_a_malicious_pickle_is_refused_and_runs_nothing",
    ),
    Mutant(
        "fsync of a prepared corpus",
        "lm/disk/new_folder.py",
        "                sync(path)\n",
        "                pass\n",
        "system/test_matrix.py::test_power_fails_while_a_corpus_is_prepared",
    ),
    Mutant(
        "foreign files in an exported folder",
        "lm/huggingface/folder.py",
        "    for path in strangers(out, (_LIST, *written)):\n",
        "    for path in strangers(out, ())[:0]:\n",
        "huggingface/test_export.py::test_an_export_replaces_only_what_an_export_wrote",
    ),
    Mutant(
        "return of the older folder after a kill",
        "lm/disk/new_folder.py",
        "            move(self._old, self._final)\n",
        "            pass\n",
        "disk/test_new_folder.py::test_a_kill_leaves_the_older_or_the_new_folder",
    ),
    Mutant(
        "gradient of every rank",
        "lm/parallel/reduction.py",
        "        whole[own] = tree_sum(",
        "        known[self._plan[0][1]].zero_()\n        whole[own] = tree_sum(",
        SHARED,
    ),
    Mutant(
        "sum of every shard's gradient",
        SHARDED,
        "        self._updater.put(self._reduced(mine))\n",
        "        self._updater.put(mine[0])\n",
        "engine/test_sharded.py::test_all_ranks_have_the_gradient_of_one_process",
    ),
    Mutant(
        "one division by the tokens of all, instead of a mean of means",
        SHARDED,
        "            (loss.objective / DIVISOR).backward()\n",
        "            (loss.objective / loss.tokens).backward()\n",
        "engine/test_sharded.py::test_the_gradient_of_shards_is_that_of_the_batch",
    ),
    Mutant(
        "every slice of the carried state",
        "lm/engine/shared_saving.py",
        "                for shard in shards_of(rank, group.size, shards)\n",
        "                for shard in shards_of(0, group.size, shards)\n",
        SHARED,
    ),
    Mutant(
        "random numbers of each shard",
        SHARDED,
        "torch.manual_seed(random_seed(self._seed, update, shard))",
        "torch.manual_seed(random_seed(self._seed, update, 0))",
        "engine/test_sharded.py::test_shards_and_updates_draw_numbers_of_their_own",
    ),
    Mutant(
        "a signal to one rank is one to all",
        "lm/engine/agreement.py",
        "self._agreed = Standing(any(stop for stop, *_ in every), seconds, bool(old))",
        "self._agreed = Standing(bool(every[0][0]), seconds, bool(old))",
        "engine/test_agreement.py::test_all_see_the_signal_of_one_and_the_clock_of_rank_0",
    ),
    Mutant(
        "ranks recover only together",
        "lm/engine/agreement.py",
        "        return all(self._group.gather(holds))\n",
        "        return holds\n",
        "engine/test_agreement.py::test_one_rank_that_disagrees_is_enough",
    ),
    Mutant(
        "only joined parts are removed",
        "lm/text/prepared_parts.py",
        "    for path in joined or _joined_before(preparation, out):\n",
        "    for path, _ in _found(out):\n",
        "text/test_prepared_parts.py::test_only_what_was_joined_is_removed",
    ),
    Mutant(
        "slices joined by index",
        "lm/parallel/slices.py",
        "    return torch.cat(group.gather_rows(group.every(lambda: work(own))))\n",
        "    return torch.cat(group.gather_rows(group.every(lambda: work(own)))[::-1])\n",
        "parallel/test_slices.py::test_slices_are_joined_in_order",
    ),
    Mutant(
        "a job that fails runs alone",
        BATCHING,
        "        elif len(batch) > 1:\n",
        "        elif False:\n",
        "serve/test_batching.py::test_an_error_reaches_only_the_job_at_fault_and_later_ones_go_on",
    ),
    Mutant(
        "time limit of a batch",
        BATCHING,
        "            if time.monotonic() > end:\n",
        "            if False:\n",
        "serve/test_batching.py::test_a_batch_ends_when_its_time_is_over_or_when_all_of_its_clients_have_left",
    ),
    Mutant(
        "end of silent connections",
        "lm/serve/connections.py",
        "        if due <= now:\n",
        "        if False:\n",
        "serve/test_server.py::test_silent_connections_end_and_lock_nobody_out",
    ),
    Mutant(
        "place for a new connection",
        "lm/serve/connections.py",
        "        self._make_room()\n",
        "",
        "serve/test_server.py::test_silent_connections_end_and_lock_nobody_out",
    ),
    Mutant(
        "folders of the server stay its own",
        "dialog/serve/served.py",
        'model_dump(exclude={"mmi_run"})',
        "model_dump()",
        "dialog/test_serve.py::test_no_folder_of_the_server_is_told",
    ),
    Mutant(
        "what the doctor's process prints besides its rows",
        "lm/doctor/cli.py",
        "    return row if isinstance(row, dict) else {}\n",
        "    return row\n",
        "doctor/test_doctor.py::test_only_a_problem_ends_with_its_code",
    ),
    Mutant(
        "a lock that the doctor holds",
        "lm/doctor/checks.py",
        "    return noticed and not held(path)\n",
        "    return True\n",
        "doctor/test_doctor.py::test_locks_without_effect_are_a_problem",
    ),
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
    Mutant(
        "length of a request's phrases",
        "dialog/serve/served.py",
        "        require_short_phrases(decode, usual, self.model.codec)\n",
        "",
        "dialog/test_serve.py::test_phrases_of_a_request_are_few_and_short",
    ),
)


@contextmanager
def sabotage(folder: Path) -> Iterator[Case]:
    """Z: case after case the mutants; a test notices each, and passes without it."""
    clean, passed = folder / "clean", set[str]()
    copy_of_ours(clean)

    def case(rng: random.Random, index: int) -> int:
        if index >= len(MUTANTS):
            return 0
        mutant = MUTANTS[index]
        build = folder / f"build-{index}"
        shutil.copytree(clean, build)
        mutant.spoil(build)
        code, said = run_test(build, mutant.test)
        assert code == FAILED, f"{mutant.about} is gone, and {mutant.test} ends with {code}: {said[-300:]}"
        shutil.rmtree(build)
        if mutant.test not in passed:
            code, said = run_test(clean, mutant.test)
            assert not code, f"{mutant.test} fails without any mutant: {said[-300:]}"
            passed.add(mutant.test)
        return 1

    yield case


def copy_of_ours(target: Path) -> None:
    """The packages, their configs, tests, and the pages that tests read."""
    for name in ("lm", "dialog", "configs", "docs", "tests", "scripts"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, target / name)


def run_test(root: Path, test: str) -> tuple[int, str]:
    """Exit code and output of pytest on one test of a copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        f"tests/{test}",
    ]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr
