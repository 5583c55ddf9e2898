"""Safeguards of files, checkpoints, run folders and prepared folders."""

from tests.matrix.mutants.mutant import Mutant

POWER = "runs/test_checkpoint_crashes.py::test_power_loss_at_any_operation_leaves_the_old_or_the_new_commit"
STORAGE = "lm/disk/storage.py"
CHECKPOINT = "lm/runs/checkpoint.py"
CHECK = "lm/runs/check.py"
COMMIT = "lm/runs/commit.py"
RUN = "lm/runs/run.py"
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
        "a best checkpoint that is missing is named",
        CHECKPOINT,
        "if step not in folders]:",
        "if False]:",
        "runs/test_checkpoint.py::test_no_other_checkpoint_replaces_a_best_one_that_is_missing",
    ),
    Mutant(
        "the last checkpoint of a finished training is missed",
        CHECK,
        "if finished > newest:",
        "if False:",
        "runs/test_integrity.py::test_a_newest_checkpoint_that_is_gone_is_named",
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
        "only joined parts are removed",
        "lm/text/prepared_parts.py",
        "    for path in joined or _joined_before(preparation, out):\n",
        "    for path, _ in _found(out):\n",
        "text/test_prepared_parts.py::test_only_what_was_joined_is_removed",
    ),
)
