"""Processes that have imported torch and computed nothing: forked from one that only imports."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

LOADED = ("dialog.cli", "dialog.train", "lm.cli", "lm.language.train", "pytest", "tests.support.forked")


def fork_server() -> ForkServerContext:
    """The context of the one server of this process, which starts at the first use."""
    server = get_context("forkserver")
    server.set_forkserver_preload(list(LOADED))
    return server


def forked(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """A started process that calls a function of a module."""
    process = fork_server().Process(target=target, args=arguments)
    process.start()
    return process
