"""Safeguards of training: its state, its faults, signals, and several processes."""

from tests.matrix.mutants.mutant import Mutant

RESUMED = "engine/test_loop.py::test_stopping_and_resuming_at_every_step_changes_nothing"
SHARDED = "lm/engine/sharded.py"
SHARED = "parallel/test_training.py::test_a_run_goes_on_with_any_number_of_processes"
STATE = "lm/engine/state.py"
SAVING = "lm/engine/saving.py"
TRAIN = "lm/engine/loop.py"
MUTANTS = (
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
        "        self._journal.cut(_log_of(commit).size if keep_log else 0)\n",
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
        "            before.restore()\n            self.task.skipped",
        "            self.task.skipped",
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
        "system/test_stop_flag.py::test_a_second_signal_ends_at_once",
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
        "            if self._raises and",
        "            if False and",
        "system/test_signals.py::test_a_flag_ends_a_section_of_training_at_once",
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
        "slices joined by index",
        "lm/parallel/slices.py",
        "    return torch.cat(group.gather_rows(group.every(lambda: work(own))))\n",
        "    return torch.cat(group.gather_rows(group.every(lambda: work(own)))[::-1])\n",
        "parallel/test_slices.py::test_slices_are_joined_in_order",
    ),
    Mutant(
        "refusal of a run that lost its checkpoints",
        "lm/runs/run.py",
        "    require_checkpoints(path.parent)\n",
        "",
        "runs/test_integrity.py::test_a_run_without_its_checkpoints_is_not_trained_anew",
    ),
    Mutant(
        "comparison of the texts before the config is saved",
        "lm/engine/session.py",
        "    _require_unchanged(config, group.share(lambda: changed_inputs(folder, hashes)))\n",
        "",
        "language/test_train.py::test_changed_text_is_noticed_when_a_run_is_resumed",
    ),
    Mutant(
        "signal after the last update",
        "lm/runs/run.py",
        '            self.stop.check("the training had ended; the same command shows how")\n',
        "            pass\n",
        "tuning/test_lost.py::test_a_signal_after_the_last_validation_of_a_trial_ends_the_search",
    ),
    Mutant(
        "refusal to save into a folder that was moved or replaced",
        SAVING,
        "        self._run.require_place()\n",
        "",
        "engine/test_loop_storage.py::test_a_folder_that_is_moved_gets_nothing_more",
    ),
)
