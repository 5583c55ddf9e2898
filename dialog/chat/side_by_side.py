"""Two runs that answer the same lines, each in a conversation of its own."""

from dialog.chat.conversation import Conversation, Exchange

SAYS_NOTHING = "(says nothing)"


class SideBySide:
    """A second conversation that hears the lines of a first one.

    Both have the same exchanges so far. From then on each hears its own replies. The settings are those of
    the first one.
    """

    def __init__(self, first: Conversation, second: Conversation) -> None:
        self._first, self._second = first, second
        second.exchanges[:] = first.exchanges
        self.names = _names(first, second)

    def answers(self, said: Exchange) -> list[str]:
        """The reply of the first run, which it has given, and that of the second, each after its name.

        If the second run fails, neither has heard the line.
        """
        self._second.decode = self._first.decode
        try:
            replies = (said.reply.text, self._second.say(said.said.text).reply.text)
        except BaseException:
            self._first.exchanges.pop()
            raise
        width = max(map(len, self.names))
        return [
            f"{name:{width}}  {reply or SAYS_NOTHING}"
            for name, reply in zip(self.names, replies, strict=True)
        ]

    def undo(self) -> None:
        """Take back the last line of the second conversation."""
        self._second.exchanges.pop()


def _names(*conversations: Conversation) -> list[str]:
    """Names of the runs: those of their folders, or whole paths if these are equal."""
    runs = [one.source.run.rstrip("/") if one.source else "this" for one in conversations]
    short = [run.rpartition("/")[2] for run in runs]
    return short if len(set(short)) == len(short) else runs
