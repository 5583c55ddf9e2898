"""One-line errors for wrong usage: an unknown command or option, a missing or invalid argument."""

import os
import re
import shlex
from typing import Any

from lm.config.mistakes import WORDING
from lm.config.named_data import SPLITS
from lm.config.settings import named_keys, require_distinct
from lm.config.suggest import did_you_mean
from lm.ending import given_command
from lm.errors import ConfigError

_WORDING = {  # of the library's messages, and ours
    "Value error, ": "",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    **WORDING,
}
ONLY = {  # commands that one program has, by its models
    "language models": (
        *(f"lm {name}" for name in ("bottleneck", "dynamic", "finetune", "generate", "reverse-copy")),
        *(
            f"lm analyze {name}"
            for name in (
                "components", "divergence", "examples", "gates", "geometry", "histories", "recovery",
                "temperature", "unargmaxable",
            )
        ),
    ),
    "dialog models": tuple(f"dialog {name}" for name in ("chat", "demo", "distinct", "references", "show")),
}  # fmt: skip
_SAME = {"--run": "--out", "--out": "--run"}  # names of the folder that a command writes


def usage_error(error: Any) -> ConfigError | None:
    """A usage error of typer as one line with the nearest valid name and the command that shows the help.

    None for any other exception, and for the help text that a group of commands shows without a command.
    """
    if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return None
    context = getattr(error, "ctx", None)
    help_of = f"`{context.command_path} --help`" if context else "the command's --help"
    return ConfigError(f"{_message(error, context)}; see {help_of}")


def require_once(command: Any, context: Any, arguments: list[str]) -> None:
    """Raise ConfigError if ``arguments`` of a command repeat an option with one value, or a key of --set."""
    inner = command.context_class(command, info_name=command.name, parent=context)
    values, _, given = command.make_parser(inner).parse_args([*arguments])
    options = [one for one in given if one.param_type_name == "option" and not one.is_flag]
    names = [_name(option) for option in options if not option.multiple]
    for option in {option.name: option for option in options if option.metavar == "KEY=VALUE"}.values():
        names += named_keys(_name(option), values[option.name])
    require_distinct(names)


def _examples(context: Any) -> str:
    """The examples in a command's help, as a part of a message."""
    found = re.findall(r"^Example: (.*)", context.command.help or "", re.MULTILINE)
    return f"; write the command as in {' or '.join(f'`{example}`' for example in found)}" if found else ""


def _message(error: Any, context: Any) -> str:
    if context and (unknown := _unknown(error)):
        options = [name for parameter in context.command.params for name in parameter.opts if name[0] == "-"]
        hint = (
            f"; for the file, write ./{unknown}"
            if os.path.lexists(unknown)
            else _instead(unknown, options, context)
        )
        return f"{unknown}: no such option{hint}"
    if context and (command := re.match(r"No such command '(.*?)'", error.message, re.DOTALL)):
        return f"{command[1]}: no such command{_of_others(command[1], context)}"
    parameter = getattr(error, "param", None)
    name = _name(parameter) if parameter else ""
    if type(error).__name__ == "MissingParameter":
        return f"{name} is missing{_examples(context)}"
    message = error.message
    for theirs, ours in _WORDING.items():
        message = message.replace(theirs, ours)
    if option := getattr(error, "option_name", ""):
        name, message = option, message.replace(f"Option {option!r} ", "")
    if extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return f"too many arguments: {extra[1]}{_examples(context)}"
    text = f"{message.rstrip('.')}{_given(error)}"
    return f"{name}: {text}" if name else text


def _of_others(command: str, context: Any) -> str:
    """End of the message on an unknown command: the program that has it, or else the nearest command."""
    place = f"{context.command_path} {command}".partition(" ")[2]
    for models, commands in ONLY.items():
        for other in commands:
            if place == other.partition(" ")[2]:
                return f"; only {models} have it: `{other}`"
    return did_you_mean(command, context.command.commands)


def _unknown(error: Any) -> str:
    """The word of the command line that is no option, or empty if the error is another one."""
    name = str(error.option_name) if hasattr(error, "possibilities") else ""
    if re.fullmatch("-[^-]", name):  # typer reads -abc as -a -b -c
        return next((word for word in shlex.split(given_command()) if word.startswith(name)), name)
    return name


def _instead(unknown: str, options: list[str], context: Any) -> str:
    """Words on what replaces an unknown option: the one of the same purpose, or else the nearest name."""
    if unknown == "--data" and "--set" in options:
        return "; name the texts with " + " ".join(f"--set data.{split}=…" for split in SPLITS)
    arguments = [one for one in context.command.params if one.param_type_name == "argument"]
    if unknown in _SAME and any(one.metavar == "DIR" for one in arguments):
        return f"; write the folder without an option{_examples(context)}"
    same = _SAME.get(unknown)
    return f"; did you mean {same}?" if same in options else did_you_mean(unknown, options)


def _name(parameter: Any) -> str:
    """The longest name of an option, or the metavar of an argument."""
    is_option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len) if is_option else parameter.metavar or parameter.name.upper())


def _given(error: Any) -> str:
    """The rejected value, if the message lacks it, or else the nearest of the choices that it lists."""
    cause = error.__cause__ or error.__context__
    if not hasattr(cause, "errors"):
        return ""
    value = str(cause.errors()[0]["input"])
    choices = re.findall(r"'([^']*)'", error.message)
    return did_you_mean(value, choices[1:]) if value in error.message else f", got {value[:60]}"
