"""A corpus as Zhao et al.'s pickle has it."""

import json
import pickle

from tests.support.corpus_files import OTHER, TURNS, zhao


def pickled(value: object, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol)


CORPUS = {split: [json.loads(zhao(TURNS)), json.loads(zhao(OTHER))] for split in ("train", "valid", "test")}
