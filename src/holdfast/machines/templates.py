"""Templates: Jinja over plain data, where nothing but that data can be reached and nothing can run away.

A template that is one expression keeps the type of its value; one with text around it gives a text. What a template may
contain is listed here, node by node, filter by filter: whatever is not listed is refused when the machine is loaded.
Every loop, filter and product is metered while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingExtra
from holdfast.kernel import codec
from holdfast.machines.meter import (
    DEEPEST,
    METER,
    MOST_BITS,
    MOST_ITEMS,
    MOST_OUTPUT,
    Meter,
    TemplateError,
    allow,
    compared,
    measure,
    measured,
    metered_items,
    plain,
    rounded,
    sliced,
    weight,
    whole_number,
)

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.environment import Template as Compiled
    from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST = 20_000
_MOST_STRIPPED = 100

# fmt: off
_NODES = frozenset(
    {
        "Template", "Output", "TemplateData", "Const", "Name", "Getattr", "Getitem", "Slice", "Filter",
        "Test", "Call", "Compare", "Operand", "And", "Or", "Not", "Neg", "Pos", "Add", "Sub", "Mul", "Div",
        "FloorDiv", "Mod", "Pow", "Concat", "CondExpr", "List", "Tuple", "Dict", "Pair", "Keyword", "If",
        "For", "Assign",
    }
)
FILTERS = frozenset(
    {
        "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "fromjson", "groupby",
        "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
        "rejectattr", "replace", "reverse", "round", "select", "selectattr", "sort", "string", "sum",
        "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount",
    }
)
TESTS = frozenset(
    {
        "boolean", "defined", "divisibleby", "eq", "equalto", "even", "false", "float", "ge", "greaterthan",
        "gt", "in", "integer", "iterable", "le", "lessthan", "lower", "lt", "mapping", "ne", "none",
        "number", "odd", "sequence", "string", "true", "undefined", "upper", "==", "!=", ">", ">=", "<",
        "<=",
    }
)
_METHODS: Mapping[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values"}),
    str: frozenset({
        "capitalize", "count", "endswith", "find", "isdigit", "lower", "lstrip", "replace", "rstrip",
        "split", "splitlines", "startswith", "strip", "title", "upper",
    }),
    list: frozenset({"count", "index"}),
}
# fmt: on
# fmt: off
_TEXTS = frozenset({
    "capitalize", "lower", "string", "title", "trim", "truncate", "upper", "wordcount",
})  # filters that write whatever they are given as a text
# fmt: on
_ORDERED = frozenset({"dictsort", "groupby", "sort"})  # filters that make a key of every item
_WALKED = _ORDERED | {"list", "max", "min"}  # filters that read all items at once
_LOOP = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"})
FUNCTIONS = frozenset({"range"})


class BadTemplate(ValueError):
    """The text is no template of this language; `line` is where it goes wrong, from 0."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A text with templates in it, compiled. `native`: it is one expression, whose value it gives."""

    text: str
    native: bool
    names: frozenset[str]  # that it reads
    fields: frozenset[str]  # of the context, as far as they stand in it
    compiled: Compiled

    def render(self, names: Mapping[str, Any]) -> Any:
        """`TemplateError` when it cannot be."""
        token = METER.set(Meter())
        try:
            return self._value(names) if self.native else self._joined(names)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError(f"{_short(self.text)}: the value is nested too deep.") from None
        except Exception as problem:  # noqa: BLE001  whatever Jinja raises is the template's
            raise TemplateError(f"{_short(self.text)}: {problem}") from None
        finally:
            METER.reset(token)

    def _value(self, names: Mapping[str, Any]) -> Any:
        context = self.compiled.new_context(dict(names))
        for _ in self.compiled.root_render_func(context):
            pass
        return plain(context.vars["result"])

    def _joined(self, names: Mapping[str, Any]) -> str:
        parts, size = [], 0
        for part in self.compiled.root_render_func(self.compiled.new_context(dict(names))):
            parts.append(part)
            size += len(part)
            if size > MOST_OUTPUT:
                raise TemplateError(f"{_short(self.text)}: the text has more than {MOST_OUTPUT:,} characters.")
        return "".join(parts)


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


def compile_template(text: str, *, native: bool = True) -> TextTemplate:
    """`BadTemplate` when it is none, or holds what is not part of the language.

    `native`: one expression alone keeps the type of its value, as in the dialects before 1.0.
    """
    from jinja2 import TemplateSyntaxError, meta, nodes

    if len(text) > LONGEST:
        raise BadTemplate(f"a template has at most {LONGEST:,} characters.")
    environment = _environment()
    try:
        tree = environment.parse(text)
        alone = _expression_of(tree) if native else None
        if alone is not None:
            kept = nodes.Assign(nodes.Name("result", "store", lineno=1), alone, lineno=1)
            tree = nodes.Template([kept], lineno=1)
            tree.set_environment(environment)
        fields = _check(tree)
        _meter_loops(tree)
        names = frozenset(meta.find_undeclared_variables(tree)) - FUNCTIONS
        compiled = environment.from_string(tree)
    except TemplateSyntaxError as problem:
        raise BadTemplate(f"{problem.message}", problem.lineno - 1) from None
    except (RecursionError, MemoryError, SyntaxError):
        raise BadTemplate("this is nested too deep.") from None
    except BadTemplate:
        raise
    except ValueError:
        raise BadTemplate("a number in it has too many digits.") from None
    return TextTemplate(text, alone is not None, names, frozenset(fields), compiled)


def _expression_of(tree: nodes.Template) -> nodes.Expr | None:
    """The one expression that a template consists of, if that is all."""
    from jinja2 import nodes

    body = tree.body
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = [part for part in body[0].nodes if not (isinstance(part, nodes.TemplateData) and not part.data.strip())]
    alone = len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData)
    return parts[0] if alone else None


def _check(tree: nodes.Template) -> set[str]:
    """Refuse what is not part of the language; returns the fields of the context that are read."""
    from jinja2 import nodes

    fields: set[str] = set()
    left: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while left:
        node, depth = left.pop()
        kind, line = type(node).__name__, max(0, (node.lineno or 1) - 1)
        if depth > DEEPEST:
            raise BadTemplate(f"this is nested more than {DEEPEST} levels deep.", line)
        if kind not in _NODES:
            raise BadTemplate(f"{kind} is not part of the language.", line)
        _check_node(node, line)
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "context":
            fields.add(node.attr)
        left += [(child, depth + 1) for child in node.iter_child_nodes()]
    return fields


def _check_node(node: nodes.Node, line: int) -> None:
    from jinja2 import nodes

    match node:
        case nodes.Filter():
            _known(node.name, "filter", FILTERS, line)
        case nodes.Test():
            _known(node.name, "test", TESTS, line)
        case nodes.Getattr():
            _no_underscore(node.attr, line)
        case nodes.Getitem(arg=nodes.Const(value=str() as name)):
            _no_underscore(name, line)
        case nodes.Call():
            _check_call(node, line)
        case nodes.For() if node.recursive:
            raise BadTemplate("recursive loops are not part of the language.", line)
        case nodes.Assign() if not isinstance(node.target, nodes.Name):
            raise BadTemplate("{% set %} sets a name.", line)
        case _:
            pass


def _check_call(node: nodes.Call, line: int) -> None:
    from jinja2 import nodes

    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise BadTemplate("a call names each of its arguments.", line)
    if isinstance(node.node, nodes.Name):
        _known(node.node.name, "function", FUNCTIONS, line)
    elif isinstance(node.node, nodes.Getattr):
        _known(node.node.attr, "method", frozenset().union(*_METHODS.values()), line)
    else:
        raise BadTemplate("only range() and methods of plain values can be called.", line)


def _known(name: str, what: str, known: frozenset[str], line: int) -> None:
    from holdfast.validation import did_you_mean

    if name not in known:
        raise BadTemplate(f"there is no {what} {name!r}.{did_you_mean(name, sorted(known))}", line)


def _no_underscore(name: str, line: int) -> None:
    if name.startswith("_"):
        raise BadTemplate(f"{name!r} begins with an underscore: such names cannot be read.", line)


def _meter_loops(tree: nodes.Template) -> None:
    """Let every loop count its iterations, `~` its characters, and what is listed, compared or cut its size."""
    from jinja2 import nodes

    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "_metered", [], [], None, None, lineno=loop.lineno)
    for node in reversed(list(tree.find_all(nodes.Node))):  # what is inside comes first
        for field in node.fields:
            value = getattr(node, field)
            metered = [_metered_node(each) for each in value] if isinstance(value, list) else _metered_node(value)
            setattr(node, field, metered)


def _metered_node(node: Any) -> Any:
    from jinja2 import nodes

    if isinstance(node, nodes.Concat):
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)
    if isinstance(node, nodes.Compare | nodes.Operand) and not isinstance(node.expr, nodes.Const):
        node.expr = nodes.Filter(node.expr, "_compared", [], [], None, None, lineno=node.lineno)
        return node
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = nodes.Filter(node.node, "_sliced", [], [], None, None, lineno=node.lineno)
        return node
    made = isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load")
    if not made or all(isinstance(each, nodes.Const) for each in node.iter_child_nodes()):
        return node
    return nodes.Filter(node, "_measured", [], [], None, None, lineno=node.lineno)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    try:
        from jinja2 import ChainableUndefined
        from jinja2.exceptions import SecurityError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtra("machines", "a machine") from None

    class PlainEnvironment(ImmutableSandboxedEnvironment):
        """Reaches plain data, and a few methods of it, by name."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def getattr(self, obj: Any, attribute: str) -> Any:
            if isinstance(obj, dict) and attribute in obj:
                return obj[attribute]
            if isinstance(obj, ChainableUndefined):
                return obj
            if type(obj).__name__ == "LoopContext" and attribute in _LOOP:
                return getattr(obj, attribute)
            if attribute in _METHODS.get(type(obj), ()):
                return partial(_metered_call, obj, attribute)
            return self._missing(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if isinstance(obj, ChainableUndefined):
                return obj
            if isinstance(obj, dict) and argument.__hash__ and argument in obj:
                return obj[argument]
            if isinstance(obj, str | list | tuple) and isinstance(argument, int) and -len(obj) <= argument < len(obj):
                return obj[argument]
            return self._missing(obj, argument)

        def _missing(self, obj: Any, name: Any) -> Any:
            if isinstance(name, str) and name.startswith("_") and not isinstance(obj, dict):
                raise SecurityError(f"{name!r} cannot be read.")
            return self.undefined(obj=obj, name=str(name))

        def is_safe_callable(self, obj: Any) -> bool:
            return isinstance(obj, partial) or obj is self.globals["range"]

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = PlainEnvironment(undefined=ChainableUndefined, finalize=_written, optimized=False, cache_size=0)
    # Its own names are all that a template sees.
    own: dict[str, Callable[..., Any]] = {
        "fromjson": _from_json,
        "int": _metered_filter("int", partial(whole_number, environment.filters["int"])),
        "join": partial(_joined_by, environment),
        "replace": _replaced,
        "round": _metered_filter("round", partial(rounded, environment.filters["round"])),
        "sum": partial(_summed, environment),
        "tojson": _to_json,
    }
    kept = {name: _metered_filter(name, environment.filters[name]) for name in FILTERS - {*own}}
    environment.filters.clear()
    environment.filters.update(kept)
    environment.filters.update(
        own, _metered=metered_items, _joined=_joined_texts, _measured=measured, _compared=compared, _sliced=sliced
    )
    environment.tests = {name: _metered_test(test) for name, test in environment.tests.items() if name in TESTS}
    environment.globals.clear()
    environment.globals["range"] = _range
    return environment


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    passes = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        value = args[passes] if len(args) > passes else None
        METER.get().use(1 + _extent(value))
        if isinstance(value, Iterator):  # of map or select: what is left of it is counted as it comes
            value = list(metered_items(value)) if name in _WALKED else metered_items(value)
            args = (*args[:passes], value, *args[passes + 1 :])
        if name in _WALKED:
            compared(value)
        elif isinstance(value, list | dict | tuple) and name in _TEXTS | _ORDERED:
            size = measure(value)
            if name in _TEXTS:
                allow(size)
        if name == "trim":
            _check_stripped(*args[passes + 1 :], *kwargs.values())
        return function(*args, **kwargs)

    return metered


def _metered_test(function: Any) -> Any:
    from functools import wraps

    @wraps(function)
    def metered(*args: Any) -> Any:
        return function(*map(compared, args))

    return metered


def _metered_call(obj: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    METER.get().use(1 + _extent(obj))
    if method in ("count", "index"):
        compared(obj)
        for each in args:
            compared(each)
    if method in ("strip", "lstrip", "rstrip"):
        _check_stripped(*args, *kwargs.values())
    if method == "replace":
        return _replaced(obj, *args, **kwargs)
    found = getattr(obj, method)(*args, **kwargs)
    return list(found) if isinstance(obj, dict) and method != "get" else found


def _check_stripped(*characters: Any) -> None:
    """Each character of the text is looked for among these."""
    if any(isinstance(each, str) and len(each) > _MOST_STRIPPED for each in characters):
        raise TemplateError(f"at most {_MOST_STRIPPED} characters can be taken from the ends of a text.")


def _extent(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // 64
    return len(value) if isinstance(value, list | dict | tuple) else 0


def _joined_texts(parts: Iterable[Any]) -> str:
    return _in_bounds("", (_written(part) for part in parts))


def _joined_by(environment: Any, items: Any, d: Any = "", attribute: Any = None) -> str:
    from jinja2.filters import make_attrgetter

    found = metered_items(items)
    return _in_bounds(_text(d), found if attribute is None else map(make_attrgetter(environment, attribute), found))


def _in_bounds(between: str, parts: Iterable[Any]) -> str:
    """These parts as one text: their lengths are added up before each is kept."""
    texts, size = [], 0
    for part in parts:
        texts.append(_text(part))
        size += len(texts[-1]) + len(between)
        if size > MOST_OUTPUT:
            break
    allow(size)
    return between.join(texts)


def _text(value: Any) -> str:
    if isinstance(value, list | dict | tuple):
        allow(measure(value))
    return str(value)


def _summed(environment: Any, items: Any, attribute: Any = None, *start: Any, **more: Any) -> Any:
    from jinja2.filters import make_attrgetter

    if start or more:
        raise TemplateError("sum adds numbers, and begins with 0.")
    found = metered_items(items)
    return sum(found if attribute is None else map(make_attrgetter(environment, attribute), found))


def _replaced(given: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = _text(given), _text(old), _text(new)
    found = len(text) + 1 if not old else text.count(old)
    allow(len(text) + found * len(new))
    return text.replace(old, new) if count is None else text.replace(old, new, int(count))


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MOST_ITEMS:
        raise TemplateError(f"range({', '.join(map(str, bounds))}) has more than {MOST_ITEMS:,} items.")
    METER.get().use(len(numbers) // 16)
    return list(numbers)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        raise TemplateError("texts are joined by ~, not formatted by %.")
    if operator == "**":
        small = isinstance(right, int | float) and abs(right) <= 64 and isinstance(left, int | float)
        if not small or (isinstance(left, int) and left.bit_length() > 64):
            raise TemplateError("this power is too large.")
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                allow(weight(one) * max(other, 0))
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MOST_BITS:
            raise TemplateError("this product is too large.")
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        allow(len(left) + len(right))
        weight(min(left, right, key=len))  # a list that grows pays for what is added
        METER.get().use(1 + _extent(left) + _extent(right))


def _written(value: Any) -> Any:
    """A value in the middle of a text: as it is if it is a text, else as JSON. What is missing is empty."""
    from jinja2 import Undefined

    if isinstance(value, str | Undefined):
        return value
    return _to_json(value)


def _to_json(value: Any, indent: int | None = None) -> str:
    import json

    spaces = None if indent is None else max(0, min(int(indent), 8))
    return json.dumps(plain(value, spaces or 0), ensure_ascii=False, indent=spaces)


def _from_json(text: Any) -> Any:
    try:
        return codec.decode(_text(text))
    except ValueError as problem:
        raise TemplateError(f"fromjson: {problem}") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
