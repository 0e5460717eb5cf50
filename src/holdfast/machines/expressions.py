"""Conditions: a small language of our own, parsed once into a tree that only reads plain data.

What is missing is null. A comparison by order with null is false, so a condition on a field that is not there yet does
not hold; arithmetic with null is an error, since no number could be right.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

LONGEST = 4_000
DEEPEST = 60
MOST_OPERATORS = 200  # fields of paths included: each may be one level of the tree
NAMES = ("context", "input", "output")
FILTERS = ("length", "count")

_MOST_MADE = 1_048_576  # characters or items of a text or a list that it makes
_MOST_BITS = 4_096  # of a number that it computes

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.\d+|\d+)(?:[eE][-+]?\d{1,3})?(?![\w]))
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>==|!=|<=|>=|<|>|\+|-|\*|/|%|\(|\)|\[|\]|\.|\||,)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None, "none": None}
_COMPARING: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class BadExpression(ValueError):
    """The text is no expression; `column` is where it goes wrong, from 0."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


class ExpressionError(Exception):
    """A condition cannot be evaluated with the values that the context has now."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True)
class Subscript:
    of: Tree
    key: Tree


@dataclass(frozen=True, slots=True)
class LengthOf:
    of: Tree


@dataclass(frozen=True, slots=True)
class Unary:
    sign: str
    of: Tree


@dataclass(frozen=True, slots=True)
class Binary:
    sign: str
    left: Tree
    right: Tree


Tree = Literal | Variable | Subscript | LengthOf | Unary | Binary


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition: its text, and its tree."""

    text: str
    tree: Tree

    def value(self, names: Mapping[str, Any]) -> Any:
        """What it says of these values. `ExpressionError` when it can say nothing."""
        return _value(self.tree, names)

    def holds(self, names: Mapping[str, Any]) -> bool:
        return bool(self.value(names))

    def fields(self) -> set[str]:
        """The fields of the context that it reads."""
        return set(_fields(self.tree))


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def parse(text: str) -> Expression:
    """`BadExpression` when it is none."""
    if len(text) > LONGEST:
        raise BadExpression(f"a condition has at most {LONGEST:,} characters.", 0)
    if "{{" in text or "{%" in text:
        raise BadExpression("a condition is written without braces: context.x > 0.", text.find("{"))
    return Expression(text, _Parser(text).parse())


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            advice = " Did you mean '=='?" if text[at] == "=" else ""
            raise BadExpression(f"{text[at]!r} has no meaning here.{advice}", at)
        tokens.append(_Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
        at = found.end()
    return [*tokens, _Token("end", "", end)]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Tree:
        operators = [each for each in self._tokens if each.kind == "sign" or each.text in ("and", "or", "not")]
        counted = [each for each in operators if each.text not in ("(", ")", "]")]
        if len(counted) > MOST_OPERATORS:
            raise BadExpression(f"a condition has at most {MOST_OPERATORS} operators.", counted[MOST_OPERATORS].column)
        tree = self._either()
        if self._next.kind != "end":
            raise self._wrong("an operator such as == or and")
        return tree

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> str | None:
        token = self._next
        if token.kind in ("sign", "name") and token.text in texts:
            self._at += 1
            return token.text
        return None

    def _wrong(self, wanted: str) -> BadExpression:
        token = self._next
        found = f"{token.text!r}" if token.text else "the end"
        return BadExpression(f"{wanted} should stand here, not {found}.", token.column)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadExpression(f"this is nested more than {DEEPEST} levels deep.", self._next.column)

    def _either(self) -> Tree:
        self._deeper()
        tree = self._both()
        while self._take("or"):
            tree = Binary("or", tree, self._both())
        self._depth -= 1
        return tree

    def _both(self) -> Tree:
        tree = self._negated()
        while self._take("and"):
            tree = Binary("and", tree, self._negated())
        return tree

    def _negated(self) -> Tree:
        if self._take("not"):
            self._deeper()
            tree = Unary("not", self._negated())
            self._depth -= 1
            return tree
        return self._compared()

    def _compared(self) -> Tree:
        tree = self._sum()
        sign = self._take("==", "!=", "<=", ">=", "<", ">")
        if sign is None:
            return tree
        tree = Binary(sign, tree, self._sum())
        if self._next.text in ("==", "!=", "<=", ">=", "<", ">"):
            raise BadExpression("two comparisons are joined by and.", self._next.column)
        return tree

    def _sum(self) -> Tree:
        tree = self._product()
        while sign := self._take("+", "-"):
            tree = Binary(sign, tree, self._product())
        return tree

    def _product(self) -> Tree:
        tree = self._signed()
        while sign := self._take("*", "/", "%"):
            tree = Binary(sign, tree, self._signed())
        return tree

    def _signed(self) -> Tree:
        if self._take("-"):
            self._deeper()
            tree = Unary("-", self._signed())
            self._depth -= 1
            return tree
        return self._filtered()

    def _filtered(self) -> Tree:
        tree = self._path()
        while self._take("|"):
            if not self._take(*FILTERS):
                raise self._wrong("the filter length")
            tree = LengthOf(tree)
        return tree

    def _path(self) -> Tree:
        tree = self._atom()
        while sign := self._take(".", "["):
            if sign == ".":
                if self._next.kind != "name":
                    raise self._wrong("the name of a field")
                tree = Subscript(tree, Literal(self._next.text))
                self._at += 1
            else:
                tree = Subscript(tree, self._either())
                self._close("]")
        return tree

    def _atom(self) -> Tree:
        token = self._next
        if self._take("("):
            tree = self._either()
            self._close(")")
            return tree
        if token.kind == "number":
            self._at += 1
            return Literal(_number(token))
        if token.kind == "text":
            self._at += 1
            return Literal(_ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), token.text[1:-1]))
        if token.kind != "name" or token.text in ("and", "or", "not"):
            raise self._wrong("a value")
        self._at += 1
        if token.text in _WORDS:
            return Literal(_WORDS[token.text])
        if self._next.text == "(":
            raise BadExpression(f"conditions call nothing; {token.text!r} is no filter.", token.column)
        return Variable(token.text)

    def _close(self, sign: str) -> None:
        if not self._take(sign):
            raise self._wrong(repr(sign))


def _number(token: _Token) -> int | float:
    if token.text.isdigit():
        if len(token.text) > 18:
            raise BadExpression("this number is too large.", token.column)
        return int(token.text)
    value = float(token.text)
    if not math.isfinite(value):
        raise BadExpression("this number is too large.", token.column)
    return value


def names_of(tree: Tree) -> set[str]:
    """The names that stand at the beginning of its paths."""
    match tree:
        case Variable():
            return {tree.name}
        case Literal():
            return set()
        case Subscript():
            return names_of(tree.of) | names_of(tree.key)
        case LengthOf() | Unary():
            return names_of(tree.of)
        case Binary():
            return names_of(tree.left) | names_of(tree.right)


def _fields(tree: Tree) -> set[str]:
    match tree:
        case Subscript(Variable("context"), Literal(str() as field)):
            return {field}
        case Subscript():
            return _fields(tree.of) | _fields(tree.key)
        case LengthOf() | Unary():
            return _fields(tree.of)
        case Binary():
            return _fields(tree.left) | _fields(tree.right)
        case _:
            return set()


def _value(tree: Tree, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911  one for each sort of tree
    match tree:
        case Literal():
            return tree.value
        case Variable():
            return names.get(tree.name)
        case Subscript():
            return _item(_value(tree.of, names), _value(tree.key, names))
        case LengthOf():
            return _length(_value(tree.of, names))
        case Unary("not"):
            return not _value(tree.of, names)
        case Unary():
            return _computed("-", 0, _value(tree.of, names))
        case Binary("and"):
            return _value(tree.left, names) and _value(tree.right, names)
        case Binary("or"):
            return _value(tree.left, names) or _value(tree.right, names)
        case Binary():
            return _combined(tree.sign, _value(tree.left, names), _value(tree.right, names))


def _item(value: Any, key: Any) -> Any:
    """A field or an item of plain data; null when it is not there."""
    if isinstance(value, dict) and isinstance(key, str):
        return value.get(key)
    if isinstance(value, list | str) and isinstance(key, int) and not isinstance(key, bool):
        return value[key] if -len(value) <= key < len(value) else None
    return None


def _length(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, dict | list | str):
        return len(value)
    raise ExpressionError(f"{_shown(value)} has no length.")


def _combined(sign: str, left: Any, right: Any) -> Any:
    if sign == "==":
        return _same(left, right)
    if sign == "!=":
        return not _same(left, right)
    if sign in _COMPARING:
        if left is None or right is None:
            return False
        if isinstance(left, dict) or isinstance(right, dict):
            raise ExpressionError(f"{_shown(left)} {sign} {_shown(right)}: mappings have no order.")
        try:
            return _COMPARING[sign](left, right)
        except TypeError:
            raise ExpressionError(f"{_shown(left)} {sign} {_shown(right)}: these have no common order.") from None
    return _computed(sign, left, right)


def _same(left: Any, right: Any) -> bool:
    """JSON has no `1 == true`."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _computed(sign: str, left: Any, right: Any) -> Any:
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        _check_size(left, right)
        return left + right
    if sign == "+" and isinstance(left, list) and isinstance(right, list):
        _check_size(left, right)
        return left + right
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExpressionError(f"{_shown(left)} {sign} {_shown(right)}: {_shown(value)} is not a number.")
    try:
        match sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                if isinstance(left, int) and isinstance(right, int):
                    _check_product(left, right)
                return left * right
            case "/":
                return left / right
            case _:
                return left % right
    except (ZeroDivisionError, OverflowError) as problem:
        raise ExpressionError(f"{_shown(left)} {sign} {_shown(right)}: {problem}.") from None


def _check_size(left: Sequence[Any], right: Sequence[Any]) -> None:
    if len(left) + len(right) > _MOST_MADE:
        raise ExpressionError(f"the condition makes more than {_MOST_MADE:,} characters or items.")


def _check_product(left: int, right: int) -> None:
    if left.bit_length() + right.bit_length() > _MOST_BITS:
        raise ExpressionError(f"{_shown(left)} * {_shown(right)}: this product is too large.")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a very large number"
    return text if len(text) <= 40 else f"{text[:39]}…"
