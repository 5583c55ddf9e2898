"""Chat: what the model hears, the commands, hostile lines, parity with evaluation."""

import gc
import io
import os
import signal
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.batches import START, Example, list_examples
from dialog.chat.conversation import Conversation
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.repl import COMMANDS, Repl
from dialog.chat.terminal import converse
from dialog.chat.transcript import one_line, read_transcript
from dialog.corpora.corpus import Dialog, Utterance
from dialog.decoding.config import DecodeConfig
from dialog.trained import TrainedModel
from lm.errors import DivergenceError
from tests.console.test_terminal import anything, mixtures
from tests.support.toy_chat import chat_lines, conversation, heard, safe
from tests.support.toy_responder import ToyResponder


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_replies_are_those_of_evaluation(tiny: TrainedModel, method: str) -> None:
    """The same context as an example of a corpus, among others in a batch, gets the same response."""
    decode = DecodeConfig.model_validate(tiny.config.decode.model_dump() | {"method": method, "seed": 7})
    chat = Repl(Conversation(tiny, decode))
    said = ["well i saw that film", "Oh, was it LONG?", "yeah", "right", "i think so", "uh-huh", "oh yeah"]
    replies = [chat.feed(line) for line in said]
    utterances = [u for exchange in chat.conversation.exchanges for u in (exchange.said, exchange.reply)]
    corpus = [Dialog("x", "", tuple(utterances)), Dialog("y", "", tuple(utterances[4:] + utterances[:3]))]
    corpus[0] = Dialog("x", "", (*utterances, Utterance("A", "bye")))
    examples = list_examples(corpus, tiny.config.data.context)
    found = tiny.respond(examples, decode, batch_size=5)
    for index, reply in enumerate(replies):
        best = found[2 * index + 1][0]
        assert chat.conversation.exchanges[index].hypotheses[0].tokens == best.tokens
        assert chat.conversation.exchanges[index].hypotheses[0].log_prob == pytest.approx(
            best.log_prob, abs=1e-4
        )
        assert reply == [tiny.codec.decode(best.tokens) or "(says nothing)"]
    assert len({tuple(reply) for reply in replies}) > 1


def test_shares_of_the_components_sum_to_the_probability(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("well was it long")
    lines = chat.feed("/probs 4")
    best = chat.conversation.exchanges[-1].hypotheses[0]
    heads = [line for line in lines if not line.startswith(" ")]
    assert len(heads) == len(best.tokens) + best.finished
    assert len(lines) == 5 * len(heads)
    for line in lines:
        if line.startswith(" "):
            prob, shares = line.split()[0], line.partition(" = ")[2].split(" + ")
            assert len(shares) == 3
            assert sum(map(float, shares)) == pytest.approx(float(prob), abs=3e-4)
        else:
            assert sum(map(float, line.partition("prior ")[2].split())) == pytest.approx(1, abs=3e-4)


def test_the_model_hears_the_last_utterances() -> None:
    chat = conversation()
    chat.feed("hello there")
    (example,) = heard(chat)
    assert example.context == (START, Utterance("A", "hello there"))
    assert example.responder == "B"
    for number in range(20):
        chat.feed(f"line {number}")
    spoken = [u for exchange in chat.conversation.exchanges for u in (exchange.said, exchange.reply)]
    assert heard(chat)[-1].context == tuple(spoken[-10:-1])
    assert len(heard(chat)[-1].context) == 9


def test_undo_and_reset_restore_what_the_model_heard() -> None:
    chat = conversation()
    first = chat.feed("one")
    second = chat.feed("two")
    assert chat.feed("/undo") == ["(took back: two)"]
    assert chat.feed("two") == second
    assert chat.feed("/reset") == ["(a new conversation)"]
    assert chat.feed("one") == first
    chat.feed("/undo")
    assert chat.feed("/undo") == ["(nothing to take back)"]
    assert chat.feed("/probs") == ["(no reply to look into yet)"]


def test_settings_reach_the_model() -> None:
    chat = conversation()
    chat.feed("/beam 7")
    assert (chat.conversation.decode.method, chat.conversation.decode.beam) == ("beam", 7)
    chat.feed("/greedy")
    assert (chat.conversation.decode.method, chat.conversation.decode.beam) == ("beam", 1)
    (line,) = chat.feed("/sample T=0.5 top_k=4 top_p=0.9 on=components")
    decode = chat.conversation.decode
    assert (decode.method, decode.temperature, decode.top_k, decode.top_p) == ("sample", 0.5, 4, 0.9)
    assert decode.temperature_on == "components"
    assert "T=0.5" in line
    before = chat.feed("hello")
    chat.feed("/undo")
    chat.feed("/seed 99")
    assert chat.feed("hello") != before
    assert chat.conversation.decode.seed == 99
    assert chat.feed("/quit") == []
    assert chat.ended


@pytest.mark.parametrize("command", ["/greedy", "/sample T=0.5"])
def test_commands_that_do_not_fit_diverse_groups_end_them(command: str) -> None:
    chat = Repl(Conversation(ToyResponder()))
    alone = Repl(Conversation(ToyResponder()))
    assert chat.feed("/set beam=10 groups=5 diversity=2.0") != chat.feed("/set")
    told = chat.feed(command)
    assert told == [*alone.feed(command), "(without diverse groups)"]
    assert (chat.conversation.decode.groups, chat.conversation.decode.diversity) == (1, 0.5)
    assert chat.feed(command) == told[:-1]


def test_nbest_lists_equal_samples_once() -> None:
    chat = conversation()
    chat.feed("/nbest 5")
    exchange = chat.conversation.say("hello")
    a, b = exchange.hypotheses[:2]
    exchange = replace(exchange, hypotheses=(a, b, a, a), texts=("yes", "no", "yes", "yes"))
    listed = chat._replied(exchange)
    assert [line.split(maxsplit=2)[2] for line in listed] == ["yes  (3 times)", "no …"]
    assert [float(line.split()[1]) for line in listed] == [pytest.approx(x.score, abs=1e-3) for x in (a, b)]


def test_nbest_lists_scores_and_says_the_first() -> None:
    chat = conversation()
    chat.feed("/nbest 3")
    lines = chat.feed("hello")
    assert [line.split()[:2] for line in lines] == [["1.", "-1.500"], ["2.", "-2.500"], ["3.", "-3.500"]]
    assert (chat.conversation.exchanges[0].reply.text or "(says nothing)") in lines[0]


def test_nbest_lists_the_replies_to_the_last_line_at_once() -> None:
    chat = conversation()
    chat.feed("hello")
    told, *lines = chat.feed("/nbest 3")
    assert told == "(the 3 best)"
    texts = chat.conversation.exchanges[0].texts[:3]
    assert [line.split(maxsplit=2)[:2] for line in lines] == [
        ["1.", "-1.500"],
        ["2.", "-2.500"],
        ["3.", "-3.500"],
    ]
    assert all((text or "(says nothing)") in line for text, line in zip(texts, lines, strict=True))
    assert chat.feed("/nbest 1") == ["(the best)"]


def test_nbest_says_if_the_last_reply_kept_fewer() -> None:
    chat = conversation()
    chat.feed("/nbest 2")
    chat.feed("hello")
    told, *lines = chat.feed("/nbest 5")
    assert told == "(the 5 best; the last reply was asked for with 2)"
    assert [line.split()[0] for line in lines] == ["1.", "2."]
    chat.feed("/set nbest=1")
    chat.feed("hello")
    assert chat.feed("/nbest 5") == ["(the 5 best; the last reply was asked for with 1)"]


def test_help_lists_every_command_and_show_the_context() -> None:
    chat = conversation()
    listed = chat.feed("/help")
    assert [line.split()[0] for line in listed if line.startswith("/")] == [f"/{name}" for name in COMMANDS]
    assert max(map(len, [*listed, *chat.feed("/set")])) <= 60, "whole on a narrow terminal"
    assert "nats" in " ".join(listed)
    chat.feed("hello")
    shown = chat.feed("/show")
    assert shown[0] == "(beam search, 10 beams)"
    assert shown[2] == "A  hello"
    assert len(shown) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/rset", "did you mean /reset?"),
        ("/", "/help"),
        ("/nbets 3", "did you mean /nbest?"),
        ("/beam", "use /beam N"),
        ("/beam x", "/beam: decode.beam must be an integer, got 'x'"),
        ("/beam 0", "decode.beam must be greater than or equal to 1, got 0"),
        ("/beam 1000000", "decode.beam must be at most 1,000"),
        ("/beam " + "9" * 5000, "no setting is longer"),
        ("/beam 1 2", "use /beam N"),
        ("/nbest -1", "from 1 to 1000"),
        ("/nbest " + "9" * 5000, "from 1 to 1000"),
        ("/seed -1", "decode.seed must be greater than or equal to 0"),
        ("/sample T=0", "decode.temperature must be greater than 0"),
        ("/sample T=nan", "decode.temperature"),
        ("/sample T=inf", "decode.temperature"),
        ("/sample top_p=2", "decode.top_p must be less than or equal to 1"),
        ("/sample top_k=0.5", "decode.top_k must be an integer"),
        ("/sample on=words", "temperature_on"),
        ("/sample hotter", "as in /sample KEY=VALUE"),
        ("/sample tmperature=1", "did you mean decode.temperature?"),
        ("/set beam", "as in /set KEY=VALUE"),
        ("/set =3", "/set: unknown key"),
        ("/set bmea=3", "/set: unknown key decode.bmea; did you mean decode.beam?"),
        ("/set method=smaple", "must be 'beam' or 'sample', got 'smaple'; did you mean sample?"),
        ("/set beam=3 nbest=none", "decode.nbest must be an integer"),
        ("/set beam=3 decode.beam=4", "/set decode.beam: given twice; leave out one of the two"),
        ("/set beam=3.5", "decode.beam must be an integer, got 3.5"),
        ("/set train.seed=2", "train.seed: fixed when the run was trained"),
        ("/set extends=x", "/set extends: fixed when the run was trained; only decode.* can be set here"),
        ("/set min_length=40", "must be at most max_length = 30"),
        ("/set max_length=5000", "decode.max_length must be at most 1,000"),
        ("/set beam=" + "9" * 5000, "no setting is longer"),
        ("/set beam=" + "[" * 150, "decode.beam must be an integer"),
        ("/set temperature=0x" + "f" * 9000, "no setting is longer"),
        ("/retry", "nothing to answer again"),
        ("/retry 2", "use /retry"),
        ("/history", "nothing was said yet"),
        ("/load", "use /load FILE"),
        ("/load nothing.jsonl", "nothing.jsonl: no such file"),
        ("/load .", "not a regular file"),
        ("/load /dev/zero", "not a regular file"),
        ("/replay", "use /replay FILE"),
        ("/replay nothing.jsonl", "nothing.jsonl: no such file"),
        ("/probs 0", "from 1 to 1000"),
        ("/reset now", "use /reset"),
        ("/save", "use /save FILE"),
        ("/save talk.jsonl", "nothing to save yet"),
    ],
)
def test_bad_commands_get_one_line_and_change_nothing(line: str, says: str, in_tmp: Path) -> None:
    chat = conversation()
    before = (chat.conversation.decode, chat.shown)
    (answer,) = chat.feed(line)
    assert says in answer
    assert (chat.conversation.decode, chat.shown) == before
    assert chat.conversation.exchanges == []
    assert list(in_tmp.iterdir()) == []


def test_set_changes_any_setting_of_decoding() -> None:
    chat = conversation()
    assert chat.feed("/set beam=3 no_repeat_ngram = 2") == ["(beam=3 no_repeat_ngram=2)"]
    assert chat.feed("/set decode.method=sample temperature=1") == ["(method=sample)"]
    assert chat.feed("/set beam=3") == ["(as it was)"]
    chat.feed('/set forbid = ["i do not", "know"] nbest=4')
    assert (chat.conversation.decode.forbid, chat.conversation.decode.nbest) == (("i do not", "know"), 4)
    chat.feed("/set forbid=[] nbest=5")
    decode = chat.conversation.decode
    assert (decode.beam, decode.no_repeat_ngram, decode.method) == (3, 2, "sample")
    listed = [line.split()[0] for line in chat.feed("/set") if not line.startswith(" ")]
    assert [line.split("=")[0] for line in listed] == list(decode.model_dump())
    again = " ".join(line for line in listed if not line.endswith("="))  # others are not set
    assert "require=[]" in again
    assert chat.feed(f"/set {again}") == ["(as it was)"]


def test_retry_takes_the_next_of_a_beam() -> None:
    chat = conversation()
    first = chat.feed("hello")
    texts = chat.conversation.exchanges[0].texts
    others = [[text or "(says nothing)"] for text in dict.fromkeys(texts) if [text] != first]
    assert [chat.feed("/retry") for _ in others] == others
    assert chat.conversation.exchanges[0].reply.text == texts[-1]
    assert len(heard(chat)) == 1, "the same search serves all"
    (answer,) = chat.feed("/retry")
    assert "no other reply was found" in answer
    chat.feed("/set nbest=9")
    (answer,) = chat.feed("/retry")
    assert answer == chat.conversation.exchanges[0].texts[5]
    assert len(chat.conversation.exchanges) == 1
    chat.feed("and then")
    assert heard(chat)[-1].context[-2] == Utterance("B", answer), "the model hears what was said at last"


def test_retry_draws_a_sample_again_with_the_next_seed(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("/sample T=2")
    chat.feed("/seed 7")
    chat.feed("well i saw that film")
    drawn = [chat.feed("/retry") for _ in range(4)]
    assert chat.conversation.exchanges[0].decode == chat.conversation.decode.model_copy(update={"seed": 11})
    assert len({tuple(answer) for answer in drawn}) > 1
    again = Repl(Conversation(tiny, chat.conversation.exchanges[0].decode))
    assert again.feed("well i saw that film") == drawn[-1], "the seed that is saved gives the reply"


def test_retry_is_another_sample_after_a_setting_without_effect(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("/sample T=2")
    first = chat.feed("well i saw that film")
    chat.feed("/set beam=3")
    assert chat.feed("/retry") != first
    exchange = chat.conversation.exchanges[0]
    assert exchange.decode
    assert exchange.asked
    assert (exchange.decode.seed, exchange.decode.beam) == (exchange.asked.seed + 1, 3)


def test_retry_of_samples_takes_another_of_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    chat.feed("/sample")
    first = chat.conversation.exchanges[0]
    monkeypatch.setattr(Conversation, "_respond", lambda *_: first)  # every draw is the same
    said = {first.reply.text}
    for _ in range(len(set(first.texts)) - 1):
        chat.feed("/retry")
        said.add(chat.conversation.exchanges[0].reply.text)
    assert said == set(first.texts)
    chat.feed("/retry")
    assert chat.conversation.exchanges[0].reply == first.reply, "no other was drawn"


def test_a_stopped_retry_leaves_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    before = list(chat.conversation.exchanges)
    chat.feed("/sample")

    def fail(responder: ToyResponder, example: Example) -> None:
        raise DivergenceError("the model's probabilities are not numbers")

    monkeypatch.setattr(ToyResponder, "_wait", fail)
    wait = Example(0, 1, (Utterance("A", "wait"),), "B", Utterance("B", ""))
    chat.conversation.exchanges[0] = replace(before[0], example=wait)
    assert chat.feed("/retry") == ["the model's probabilities are not numbers"]
    assert chat.conversation.exchanges[0].reply == before[0].reply


def test_a_loop_is_hinted_at_once_in_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(chat: Repl, text: str) -> None:
        monkeypatch.setattr(chat.conversation.model.codec, "decode", lambda tokens: text)

    chat = conversation()
    says(chat, "i'm afraid i'm afraid i'm afraid")
    chat.feed("hello there")
    assert [note for note in chat.notes if "no_repeat_ngram=3" in note and "/sample" in note] == [
        chat.notes[-1]
    ]
    chat.feed("hello again")
    assert not any("loop" in note for note in chat.notes)
    chat.feed("/reset")
    says(chat, "yeah , yeah , so so .")
    for line, hints in (("one", 0), ("two", 0), ("Two", 0), ("three", 1), ("four", 0)):
        chat.feed(line)
        assert sum("same reply to different lines" in note for note in chat.notes) == hints, line


def test_unknown_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    chat = conversation()
    chat.feed("yeah Z\u00fcrich is zrh <unk> z\u00fcrich yeah ?! -")
    assert chat.notes == ["unknown: z\u00fcrich, is, zrh"]
    chat.feed("yeah well i think so")
    assert chat.notes == []
    chat.feed(" ".join(f"w{number}" for number in range(5000)))
    assert chat.notes[0].endswith("w7 and 4,992 more")
    converse(conversation(), io.StringIO("yeah\n\x1b[31mqqq\n"), output := io.StringIO())
    assert len(output.getvalue().splitlines()) == 2, "standard output has replies alone"
    assert capsys.readouterr().err == "line 2: unknown: qqq\n"


def test_a_single_reply_is_not_numbered() -> None:
    for command in ("/nbest 1", "/greedy", "/sample", "/set nbest=1"):
        chat = conversation()
        chat.feed(command)
        (answer,) = chat.feed("hello")
        assert answer == (chat.conversation.exchanges[0].reply.text or "(says nothing)"), command
    chat.feed("/nbest 3")
    chat.feed("/set nbest=1")
    (answer,) = chat.feed("hello")
    assert not answer.startswith("1.")


NAMES = (
    "talk.jsonl",
    "notes",
    "run/config.json",
    "run",
    "link",
    "deep.json",
    "none/x",
    "new file",
    "..",
    "~",
)


SETTINGS = (
    "beam=3",
    "nbest=2",
    "bmea=1",
    "temperature=nan",
    "seed=9",
    "method=sample",
    "max_length=-1",
    "=",
    "",
)


names = st.sampled_from(NAMES) | anything.filter(lambda text: "/" not in text)


values = st.lists(st.sampled_from(SETTINGS) | mixtures, max_size=3).map(" ".join)


commands = st.one_of(
    st.tuples(st.sampled_from(("save", "load", "replay")), names),
    st.tuples(st.sampled_from(("set", "sample")), values),
    st.tuples(st.sampled_from([*COMMANDS, "x", ""]), st.just("") | mixtures | st.integers().map(str)),
)


lines_of_input = mixtures | anything | commands.map(lambda pair: f"/{pair[0]} {pair[1]}")


def on_disk() -> dict[str, bytes | None]:
    """Every file and folder below the current one, with what is in it."""
    found = (path for path in Path().rglob("*") if not path.is_symlink())
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(lines_of_input, max_size=12))
def test_no_line_breaks_it_and_nothing_is_touched_but_what_it_saves(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    """Every file afterwards is as it was, or a saved conversation under a name that was given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("chat"))
        patch.setenv("HOME", os.getcwd())
        chat_lines("talk.jsonl")
        Path("run").mkdir()
        Path("run/config.json").write_text("{}")
        Path("notes").write_text("mine")
        Path("deep.json").write_text("[" * 5000)
        Path("link").symlink_to("notes")
        chat = conversation()
        chat.feed("hello")
        for line in lines:
            before = on_disk()
            assert safe(chat.feed(line))
            after = on_disk()
            changed = {name for name in before | after if before.get(name) != after.get(name)}
            saves = one_line(line)[:5].lower() == "/save"
            assert changed <= ({os.path.normpath(one_line(line)[6:].strip())} if saves else set())
            assert all(read_transcript(Path(name)) for name in changed)
        assert safe(chat.feed("and then"))
        for line in ("/retry", "/probs 50", "/show", "/history", "/undo"):
            assert safe(chat.feed(line))


def test_memory_is_that_of_the_conversation(in_tmp: Path) -> None:
    chat = conversation()
    for turn in range(30):
        chat.feed(f"turn {turn}")
    chat.feed("/save talk.jsonl")
    commands = (
        "/load talk.jsonl",
        "/retry",
        "/replay talk.jsonl",
        "/set beam=3",
        "/save talk.jsonl",
        "/nope",
    )

    def round_trip() -> None:
        for command in commands:
            chat.feed(command)
        heard(chat).clear()

    round_trip()
    tracemalloc.start()
    try:
        round_trip()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            round_trip()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000


def test_a_megabyte_and_many_turns(in_tmp: Path) -> None:
    chat = conversation()
    assert safe(chat.feed("word \x1b[1m" * 100_000))
    chat.feed("/reset")
    started = time.perf_counter()
    for turn in range(2000):
        assert len(chat.feed(f"turn {turn}")) == 1
    assert time.perf_counter() - started < 10
    assert len(heard(chat)[-1].context) == 9


def test_empty_lines_are_passed_over() -> None:
    chat = conversation()
    assert [chat.feed(line) for line in ("", "   ", "\n", "\x1b[31m", "\udcff")] == [[]] * 5
    assert chat.conversation.exchanges == []


def test_a_stopped_or_failed_reply_leaves_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    before = list(chat.conversation.exchanges)

    def press(responder: ToyResponder, example: Example) -> None:
        signal.raise_signal(signal.SIGINT)

    def fail(responder: ToyResponder, example: Example) -> None:
        raise DivergenceError("the model's probabilities are not numbers")

    with CTRL_C.held():
        for meddle, told in ((press, "(stopped)"), (fail, "the model's probabilities are not numbers")):
            monkeypatch.setattr(ToyResponder, "_wait", meddle)
            CTRL_C.forget()
            assert chat.feed("wait") == [told]
            chat.conversation.decode = chat.conversation.decode.model_copy(update={"seed": 5})
            assert chat.feed("/retry") == [told]
            assert chat.conversation.exchanges == before
