"""Requests a second of a dialog server on the loopback address, by the number of clients.

The server is a process of its own, with a model of random weights in the sizes of ``smalltalk_mos``. Each
client asks again as soon as it has its answer.
"""

import atexit
import http.client
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch

from benchmarks.timing import Case, Ceiling, Variant, Work

CLIENTS = (1, 8, 64)
REQUESTS, TOKENS = 64, 10  # of a run, and of a reply
VOCAB = 2600
KINDS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0},
    "beam 5": {},
    "sampled": {"temperature": 0.8, "seed": 1, "decode": {"nbest": 1}},
    "sampled, the best of 5": {"temperature": 0.8, "seed": 1},
}


def cases(_: Ceiling) -> list[Case]:
    """Greedy and beam search, and sampling, with 1, 8 and 64 clients."""
    return [
        Case(
            f"{REQUESTS} replies of at most {TOKENS} tokens, {name}",
            [Variant(f"{count} clients", partial(_work, count, more)) for count in CLIENTS],
            ("requests", REQUESTS),
            memory=False,
        )
        for name, more in KINDS.items()
    ]


def _work(clients: int, more: dict[str, object]) -> Work:
    port, rng = _server(), random.Random(1)
    texts = [" ".join(f"w{rng.randrange(VOCAB)}" for _ in range(8)) for _ in range(REQUESTS)]
    bodies = [
        json.dumps(
            {"model": "random", "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, **more}
        )
        for text in texts
    ]

    def ask(own: list[str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for body in own:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            told = connection.getresponse()
            told.read()
            if told.status != 200:
                raise RuntimeError(f"the server answers {told.status}")
        connection.close()

    def work() -> None:
        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(ask, [bodies[start::clients] for start in range(clients)]))

    return work


@cache
def _server() -> int:
    """The port of a server that ends with this process."""
    program = f"from benchmarks.serve import answer; answer({torch.get_num_threads()})"
    places = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=places)
    atexit.register(process.kill)
    assert process.stdout is not None
    return int(process.stdout.readline())


def answer(threads: int) -> None:
    """Serve until the end of the process, after a line with the port."""
    from dialog.config import DialogConfig
    from dialog.serve.served import ServedDialog
    from dialog.task import build_model
    from dialog.trained import TrainedModel
    from lm.config.load import load_config
    from lm.serve.app import Server
    from lm.serve.gate import Policy
    from lm.serve.server import Address, answer_at
    from lm.text.tokenizers import DIALOG
    from lm.text.vocabulary import build_codec

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    # Weights so large that the next word is about as open as in a trained model.
    changes = ["model.init_range=0.4", "head.context_scale=30.0", "data.tokenizer=whitespace"]
    config = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=changes).config
    words = " ".join(f"w{number}" for number in range(VOCAB))
    codec = build_codec("whitespace", [words], vocab_size=VOCAB, extra_counts={DIALOG: 1})
    model = TrainedModel(config, codec, build_model(config, codec).eval(), torch.device("cpu"))
    server = Server({"random": ServedDialog(model, None, 0)}, Policy())
    listener = Address(port=0).listen()
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    answer_at(listener, server)
