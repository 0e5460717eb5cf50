"""How a bug is planted: in the words of a named statement, in the source of a function, or in the place of a value.

An anchor is a statement's name, or what `pkgutil.resolve_name` finds, never a line. An anchor that no longer matches
raises `AnchorLost`, which says what is gone: give the bug its new place, and never drop it to make the list pass.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, Protocol

import holdfast
from holdfast.kernel import sql
from holdfast.kernel.sql import Dialect, Source

ROOT: Final = Path(holdfast.__path__[0])
_NAME: Final = re.compile(r"^-- name: (\w+) ", re.MULTILINE)


class AnchorLost(Exception):
    """What a planted bug changes is no longer there."""


class Patch(Protocol):
    """As much of `pytest.MonkeyPatch` as planting needs."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None: ...


class Words(NamedTuple):
    """Some words of a statement, in all its texts or in those that `on` executes; white space counts as one space."""

    statement: str  # its name; with the file's before a dot, where two files have that name
    old: str
    new: str = ""
    on: Dialect | None = None

    def check(self) -> None:
        package, file, name = self._place()
        written = [each for each in sql.sources(file, package) if each.name == name]
        for source in written:
            self._reword(source)

    def plant(self, patch: Patch) -> None:
        """In all statements that are rendered from now on."""
        self.check()
        place, genuine = self._place(), sql.sources

        def sources(file: str, package: str = sql.__name__) -> tuple[Source, ...]:
            return tuple(
                self._reword(each) if (package, file, each.name) == place else each for each in genuine(file, package)
            )

        patch.setattr(sql, "sources", sources)
        sql.catalogue.cache_clear()

    def _reword(self, source: Source) -> Source:
        if self.on is not None and source.dialect not in (None, self.on):
            return source
        where = f"the statement {self.statement}"
        return source._replace(text=replaced(source.text, self.old, self.new, where=where))

    def _place(self) -> tuple[str, str, str]:
        file, _, name = self.statement.rpartition(".")
        found = [place for place in places().get(name, ()) if file in ("", place[1].removesuffix(".sql"))]
        if len(found) != 1:
            raise AnchorLost(f"{len(found)} files have a statement {self.statement}")
        return *found[0], name


class Code(NamedTuple):
    """Some words of a function's source, which is compiled again and put into the same function.

    Whoever imported the function before has the changed one too. White space counts as one space.
    """

    function: str  # `holdfast.kernel.families:settle`, or `…:Class.method`
    old: str
    new: str = ""

    def check(self) -> None:
        self._changed(function_of(self.function))

    def plant(self, patch: Patch) -> None:
        function = function_of(self.function)
        made = compiled_again(function, self._changed(function))
        patch.setattr(function, "__code__", made)

    def _changed(self, function: FunctionType) -> str:
        source = textwrap.dedent(inspect.getsource(function))
        return replaced(source, self.old, self.new, where=self.function, once=True)


class Swap(NamedTuple):
    """Another value in the place of what a name stands for, in a module or a class."""

    name: str  # `holdfast.workers.sweeper:LIMIT`
    value: Any

    def check(self) -> None:
        resolved(self.name)

    def plant(self, patch: Patch) -> None:
        owner, attribute = self._place()
        patch.setattr(owner, attribute, self.value)

    def _place(self) -> tuple[Any, str]:
        resolved(self.name)
        module, _, path = self.name.partition(":")
        owner, _, attribute = path.rpartition(".")
        return resolved(f"{module}:{owner}" if owner else module), attribute


Edit = Words | Code | Swap


class Mutant(NamedTuple):
    """A bug, and the tests that must notice it: each of them must fail while the bug is planted."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # node ids, without `tests/` in front
    shows: tuple[str, ...] = ()  # the statements of docs/reference that it would break

    def plant(self, patch: Patch) -> None:
        for edit in self.edits:
            edit.plant(patch)

    def check(self) -> None:
        for edit in self.edits:
            edit.check()


class Planted:
    """Planted for as long as the process lives."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        setattr(target, name, value)


@cache
def places() -> dict[str, tuple[tuple[str, str], ...]]:
    """Statement -> the packages and files that have it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(ROOT.rglob("*.sql")):
        package = ".".join((ROOT.name, *file.parent.relative_to(ROOT).parts))
        for name in sorted(set(_NAME.findall(file.read_text("utf-8")))):
            found.setdefault(name, []).append((package, file.name))
    return {name: tuple(each) for name, each in found.items()}


def replaced(text: str, old: str, new: str, *, where: str, once: bool = False) -> str:
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    changed, count = re.subn(pattern, lambda _: new, text)
    if count == 0 or (once and count > 1):
        raise AnchorLost(f"{where} says {old!r} {count} times")
    return changed


def resolved(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise AnchorLost(f"there is no {name}: {error}") from error


def function_of(name: str) -> FunctionType:
    """The function itself, below what decorates it."""
    module, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    owner = resolved(f"{module}:{'.'.join(owners)}") if owners else resolved(module)
    found = vars(owner).get(attribute)
    for unwrap in _WRAPPINGS:
        found = unwrap(found)
    if not isinstance(found, FunctionType):
        raise AnchorLost(f"{name} is no function")
    return found


_WRAPPINGS: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda found: found.__func__ if isinstance(found, staticmethod | classmethod) else found,
    lambda found: found.fget if isinstance(found, property) else found,
    lambda found: found.func if isinstance(found, cached_property) else found,
    lambda found: inspect.unwrap(found) if callable(found) else found,
)


def compiled_again(function: FunctionType, source: str) -> CodeType:
    """The code of a function whose source was changed, with the variables of the scope in which it stands."""
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), source
    tree.decorator_list = []
    free = function.__code__.co_freevars
    scope = ast.parse(f"def scope({', '.join(free)}): ...").body[0]
    assert isinstance(scope, ast.FunctionDef)
    scope.body = [tree]
    module = ast.fix_missing_locations(ast.Module([scope], type_ignores=[]))
    outer = _code_in(compile(module, f"<planted in {function.__qualname__}>", "exec"), "scope")
    made = _code_in(outer, tree.name)
    if made.co_freevars != free:
        raise AnchorLost(f"{function.__qualname__} would need other variables of its scope: {made.co_freevars}")
    return made


def _code_in(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
