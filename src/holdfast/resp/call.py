"""A call of a command, and what a command is: its name, its arguments in words, and the function that answers.

The table of commands makes COMMAND, the checks of arity and rights, and the reference page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache

from holdfast.errors import UsageError
from holdfast.resp.client import Client
from holdfast.resp.gateway import RespGateway
from holdfast.resp.replies import Reply


class CallRefused(Exception):
    """A command refuses a call with this text. Nothing was changed."""

    def __init__(self, message: str, code: str = "ERR") -> None:
        super().__init__(message)
        self.message, self.code = message, code


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One request: the arguments after the command's name."""

    command: str
    arguments: list[bytes]
    client: Client
    gateway: RespGateway

    def text(self, at: int, what: str) -> str:
        """An argument that must be text, as names and JSON are."""
        try:
            return self.arguments[at].decode()
        except UnicodeDecodeError:
            raise CallRefused(f"{what} must be UTF-8 text") from None


Answer = Callable[[CommandCall], Awaitable[Reply]]
AnswerMany = Callable[[Sequence[CommandCall]], "Awaitable[Sequence[Reply | Exception]]"]


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments` are written as in a manual: `key [key ...] timeout`. Arity and documentation follow from them."""

    name: str
    arguments: str
    summary: str
    answer: Answer
    misuse: str = ""  # what a wrong number of arguments is answered with; default: as Redis does
    before_auth: bool = False
    always: bool = False  # for every key, whatever commands it is limited to
    keys: tuple[int, int, int] = (0, 0, 0)  # first, last and step, as COMMAND says them
    writes: bool = False
    waits: bool = False
    rate: int | None = None  # calls a minute by one principal
    together: Callable[[list[bytes]], bool] | None = None  # whether calls that follow each other may share a commit
    many: AnswerMany | None = None  # answers such calls at less cost than one by one

    @property
    def least(self) -> int:
        """The fewest arguments."""
        return _arity(self.arguments)[0]

    @property
    def most(self) -> int | None:
        """The most arguments; None: no limit."""
        return _arity(self.arguments)[1]

    @property
    def arity(self) -> int:
        """As COMMAND says it: with the name, negative if there may be more."""
        return self.least + 1 if self.most == self.least else -(self.least + 1)

    def takes(self, count: int) -> bool:
        least, most = _arity(self.arguments)
        return count >= least and (most is None or count <= most)

    @property
    def wrong_number(self) -> str:
        return self.misuse or f"wrong number of arguments for '{self.name.lower()}' command"


@cache
def _arity(arguments: str) -> tuple[int, int | None]:
    """The fewest and the most arguments; None: no limit."""
    words = _words(arguments)
    least = sum(1 for word in words if not word.startswith("["))
    if "..." in arguments:
        return least, None
    return least, least + sum(len(word[1:-1].split()) for word in words if word.startswith("["))


def _words(text: str) -> list[str]:
    """The parts of a manual's line; what is in brackets is one of them."""
    words: list[str] = []
    depth = 0
    for part in text.split():
        if depth:
            words[-1] += f" {part}"
        else:
            words.append(part)
        depth += part.count("[") - part.count("]")
    if depth:
        raise UsageError(f"the brackets of {text!r} do not match.")
    return words
