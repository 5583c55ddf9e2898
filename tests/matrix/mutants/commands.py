"""Safeguards of readers, the terminal, servers and the doctor."""

from tests.matrix.mutants.mutant import Mutant

BATCHING = "lm/serve/batching.py"
MUTANTS = (
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
        "self._look)\n        self._make_room()\n",
        "self._look)\n",
        "serve/test_server.py::test_silent_connections_end_and_lock_nobody_out",
    ),
    Mutant(
        "place for a request of an open connection",
        "lm/serve/connections.py",
        "        self._make_room()\n        super().data_received(data)\n",
        "        super().data_received(data)\n",
        "serve/test_server.py::test_a_client_that_is_served_is_not_refused_for_a_silent_one",
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
        "length of a request's phrases",
        "dialog/serve/served.py",
        "        require_short_phrases(decode, usual, self.model.codec)\n",
        "",
        "dialog/test_serve_settings.py::test_phrases_of_a_request_are_few_and_short",
    ),
)
