"""Templates keep types, and can neither leave their data nor run away."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.machines.meter import TemplateError
from holdfast.machines.templates import FILTERS, BadTemplate, compile_template
from tests.support.commands import python

ROOT = Path(__file__).parents[2]
NAMES: dict[str, Any] = {
    "context": {"n": 3, "list": [1, 2], "none": None, "items": 7, "flag": False, "map": {"a": 1}, "text": "x<y"},
    "input": {},
    "output": {"queue_depth": 10, "active_workers": 0},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ context.n }}", 3),
        ("  {{ context.n }}\n", 3),
        ("{{ context.list }}", [1, 2]),
        ("{{ context.flag }}", False),
        ("{{ context.none }}", None),
        ("{{ context.missing }}", None),
        ("{{ context.missing.deeper }}", None),
        ("{{ input.max_workers | default(10) }}", 10),
        ("{{ context.missing.deeper | default('d') }}", "d"),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ context.list | map('string') | join('-') }}", "1-2"),
        ("{{ [output.queue_depth - output.active_workers, context.n, 0] | max }}", 10),
        ("{{ output }}", {"queue_depth": 10, "active_workers": 0}),
        ("{{ context.items }}", 7),
        ("{{ context.map.items() | list }}", [["a", 1]]),
        ("{{ context.map['a'] }}", 1),
        ("{{ '{\"a\": [1]}' | fromjson }}", {"a": [1]}),
        ("{{ {'a': context.n} }}", {"a": 3}),
        ("n={{ context.n }}", "n=3"),
        ("{{ context.n }}{{ context.n }}", "33"),
        (
            "{{ context.list }}, {{ context.none }}, {{ context.flag }}, {{ context.missing }}.",
            "[1, 2], null, false, .",
        ),
        ("{{ context.text }}!", "x<y!"),
        ("{% if context.n > 2 %}many{% else %}few{% endif %}", "many"),
        ("{% for each in context.list %}{{ loop.index }}:{{ each }} {% endfor %}", "1:1 2:2 "),
        ("{{ 'a' ~ context.n ~ context.list }}", "a3[1, 2]"),
        ("{{ 'a' ~ (context.n ~ [context.n]) }}", "a3[3]"),
        ("{{ 2.56 | round(1) }}", 2.6),
        ("{{ 1234 | round(-2) | int }}", 1200),
        ("{{ '1f' | int(0, 16) }}", 31),
        ("{{ [context.list] + [(context.n, 1)] * 2 }}", [[1, 2], [3, 1], [3, 1]]),
    ],
)
def test_a_template_gives(text: str, value: object) -> None:
    given = compile_template(text).render(NAMES)
    assert given == value
    assert type(given) is type(value)


def test_from_dialect_one_on_braces_give_texts() -> None:
    assert compile_template("{{ context.n }}", native=False).render(NAMES) == "3"


_DOUBLED = "{% set a = [1] %}{% set b = [1] %}" + "{% set a = [a, a] %}{% set b = [b, b] %}" * 40
_PAIRED = "{% set a = (1, 1) %}" + "{% set a = (a, a) %}" * 40
_ADDED = "{% set a = [1] * 900 %}{% set b = [1] * 900 %}{% set a = [a] %}{% set b = [b] %}" + (
    "{% set a = a + a %}{% set b = b + b %}" * 19
)
_LONG = "{% set a = [1] * 100000 %}"
_ALIKE = "{% set a = ['x' * 999999 ~ 'y'] * 1000 %}{% set b = 'x' * 999999 ~ 'z' %}"

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''['__cl' ~ 'ass__']['__mro__'] }}",
    "{{ context.list['__cl' ~ 'ass__'] }}",
    "{{ (1)['__cla' + 'ss__'] }}",
    "{{ context | attr('__class__') }}",
    "{{ context.list | map(attribute='__class__') | list | first | attr('x') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ joiner() }}",
    "{{ namespace(a=1) }}",
    "{{ config }}{{ request.application }}" + "{{ ''.__doc__ }}",
    "{{ range.__self__ }}",
    "{{ context.list.append(1) }}",
    "{{ context.map.update({'a': 2}) }}",
    "{{ context.map.pop('a') }}",
    "{{ '%s' % context }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{0.__class__}' | format(1) }}",
    "{{ 'x'.join }}{{ ''.format_map }}{{ (1).__add__(2) }}",
    "{% set context = 1 %}{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{% extends 'x' %}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% call range(3) %}{% endcall %}",
    "{% filter upper %}x{% endfilter %}",
    "{{ loop.__class__ }}",
    "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ [0] * 10 ** 9 }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "{{ range(10 ** 9) }}",
    "{{ range(10 ** 9) | length }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "{% for a in range(99999) %}{{ 99999 in range(99999) }}{% endfor %}",
    "{% for a in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a'.zfill(10 ** 9) }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "{{ 'x' | indent(10 ** 9) }}",
    "{{ 'x' | pprint }}{{ 'x' | xmlattr }}",
    "{{ ['a' * 1000000] * 500 | string }}",
    "{{ [[0] * 1000] * 20000 }}",
    "{{ ([[0] * 100000] * 200) | sum(start=[]) | length }}",
    "{{ [[[0] * 100000] * 200] | map('sum', start=[]) | map('length') | list }}",
    "{{ (['x' * 1000000] * 400) | join | length }}",
    "{{ (['x' * 1000000] * 300) | tojson | length }}",
    "{{ (['x' * 1000000] * 300) | string | length }}",
    "{{ (['x' * 1000000] * 300) | sort | length }}",
    "{{ [" + "'x' * 1000000, " * 300 + "] | length }}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{{ " + "not " * 3000 + "1 }}",
    "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "{{ 1" + " + 1" * 5000 + " }}",
    "x" * 30_000 + "{{ 1 }}",
    "{{ debug }}{% debug %}",
    "{{ range(*[1, 2]) }}",
    "{{ context.n.bit_length() }}",
    "{{ 1 if ''.__class__ else 2 }}",
    "{{ 5 | round(-10 ** 9) }}",
    "{{ 5 | round(10 ** 9, 'ceil') }}",
    "{{ [5] | map('round', -999999999) | list }}",
    "{{ ('f' * 1000000) | int(0, 16) // ('f' * 500000) | int(0, 16) }}",
    _DOUBLED + "{{ a == b }}",
    _DOUBLED + "{{ a in [b] }}",
    _DOUBLED + "{{ [b].count(a) }}",
    _DOUBLED + "{{ [a, b] | max | length }}",
    _PAIRED + "{{ {a: 1} }}",
    _ADDED + "{{ a == b }}",
    "{% set a = [[1] * 900] %}{{ a * 1000000 == [[1] * 900] * 1000000 }}",
    _LONG + "{% set b = [1] * 100000 %}" + "{{ a == b }}" * 150,
    _LONG + "{{ 0 in a }}" * 150,
    _LONG + "{{ 0 is in a }}" * 150,
    _LONG + "{{ a[1:][0] }}" * 400,
    _LONG + "{{ a.count(0) }}" * 150,
    "{% set a = 'x' * 1000000 %}" + "{{ a[1:][0] }}" * 150 + "{{ a | list | length }}",
    _ALIKE + "{{ b in a }}" * 150,
    _ALIKE + "{{ b is in a }}" * 150,
    _ALIKE + "{{ a.count(b) }}" * 150,
    _ALIKE + "{% set c = (a + [b]) * 50 %}" + "{{ (c | max)[0] }}" * 150,
    "{% set a = [1] * 300000 %}{{ ([none] * 99999) | map('d', a, true) | list | length }}",
]

_AGAIN, _END = "{% for i in range(99999) %}", "{% endfor %}"
_WIDE, _HALF = "{% set a = 'x' * 1000000 %}", "{% set a = 'x' * 500000 %}"
_SEARCHED = "{% set a = 'a' * 1000000 %}{% set b = 'a' * 5000 ~ 'b' %}"
_TWICE = _WIDE + "{% set b = 'x' * 999999 ~ 'x' %}"
_MANY = "{% set l = range(99999) | list %}"

BOMBS = [
    *(
        _TWICE + _AGAIN + body + _END
        for body in (
            "{% if a == b %}{% endif %}",
            "{% if a != b %}{% endif %}",
            "{% if a <= b %}{% endif %}",
            "{% if a.startswith(b) %}{% endif %}",
            "{% if a.endswith(b) %}{% endif %}",
            "{% if a is eq(b) %}{% endif %}",
            "{% if a in [b] %}{% endif %}",
            "{% if a in b %}{% endif %}",
        )
    ),
    *(
        _SEARCHED + _AGAIN + body + _END
        for body in (
            "{{ b in a }}",
            "{{ b is in(a) }}",
            "{{ a.find(b) }}",
            "{{ a.count(b) }}",
            "{{ a | replace(b, '') | length }}",
            "{{ a.replace(b, '') | length }}",
            "{{ a.split(b) | length }}",
        )
    ),
    *(
        _WIDE + _AGAIN + body + _END
        for body in (
            "{% set b = a[1:] %}",
            "{% set b = a[::-1] %}",
            "{% set b = a.upper() %}",
            "{% set b = a | upper %}",
            "{% set b = a | title %}",
            "{% set b = a | tojson %}",
            "{% set b = a | capitalize %}",
            "{% set b = a | truncate(10) %}",
            "{% set b = a | list %}",
            "{% set b = a | reverse %}",
            "{% set b = a.split('y') %}",
            "{% set b = a.isdigit() %}",
            "{% set b = a is lower %}",
            "{{ a }}",
            "{% set b = a ~ a %}",
            "{% set b = a.strip('y') %}",
            "{% set b = a.splitlines() %}",
            "{% set b = a * 1 %}",
        )
    ),
    *(
        _HALF + _AGAIN + body + _END
        for body in (
            "{% set b = a + a %}",
            "{% set b = a ~ a %}",
            "{% set b = a * 2 %}",
            "{% set b = a | replace('', '') %}",
            "{% set b = [a, a] | join %}",
            "{% set b = 'xy' * 500000 %}",
        )
    ),
    *(
        _MANY + _AGAIN + body + _END
        for body in (
            "{% if l == l[:] %}{% endif %}",
            "{{ -1 in l }}",
            "{{ l.count(-1) }}",
            "{{ l | sum }}",
            "{{ l | last }}",
            "{% set b = l[1:] %}",
            "{% set b = l + [1] %}",
            "{% set b = l | sort %}",
            "{% set b = l | tojson %}",
            "{{ l | unique | list | length }}",
            "{{ l | min }}",
            "{% set b = l | map('string') | list %}",
        )
    ),
    "{{ ('b' * 900000).strip('a' * 100000 ~ 'b') }}",
    "{{ ('\u4e00' * 300000).strip('\u4e01' * 500000 ~ '\u4e00') }}",
    "{{ ('\u4e00' * 300000) | trim('\u4e01' * 500000 ~ '\u4e00') }}",
    "{{ ('\u4e00' * 300000).rstrip('\u4e01' * 500000 ~ '\u4e00') }}",
    "{{ ('[' * 900000) | fromjson }}",
    "{{ ('[' ~ '1,' * 400000 ~ '1]') | fromjson }}",
    "{{ ('1' * 900000) | fromjson }}",
    "{{ ([['x' * 10000] * 99999]) | map('upper') | list }}",
    "{{ (['x' * 1000000] * 9999) | select('eq', 'x' * 999999 ~ 'y') | list | length }}",
    "{{ (['a' * 250000 ~ 'b'] * 99999) | select('in', 'a' * 500000) | list | length }}",
    "{{ ('x' * 1000000).__class__ }}{{ ''.__init__ }}",
    "{{ ({}).__class__ }}{{ {}['__class__']['__mro__'] | list }}{{ [].__len__() }}",
    "{{ context.map.get.__self__ }}{{ context.map.get.__func__() }}",
    "{{ (context.map.get).func }}{{ (context.text.upper).args() }}",
    "{% for x in [1] %}{{ loop.changed(1) }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set x.y = 1 %}",
    "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}",
    "{{ dict(a=1) }}",
    "{{ undefined.__class__() }}",
    "{{ ''|map(attribute='__class__')|list|first|string|format }}",
    "{% autoescape true %}{% endautoescape %}",
    "{% with a = 1 %}{{ a }}{% endwith %}",
    "{% raw %}{{ x }}{% endraw %}{% block a %}{% endblock %}",
    "{% do context.list.append(1) %}",
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ context.text.encode('idna') }}",
    "{{ context.text.translate({}) }}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ 'a'.expandtabs(10 ** 9) }}",
    "{{ 'x' | wordwrap(1) }}{{ 'x' | urlize }}",
    "{{ 'x' | random }}{{ [1] | batch(10 ** 9) | list }}",
    "{{ [1] | slice(10 ** 9) | list }}",
    "{{ 'x' | filesizeformat }}{{ 'x' | forceescape }}{{ 'x' | safe }}",
]
PAYLOADS = [*ESCAPES, *BOMBS]


@pytest.mark.sample(20)
@pytest.mark.parametrize("text", PAYLOADS, ids=range(len(PAYLOADS)))
def test_an_escape_is_refused_within_bounds(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    with pytest.raises((BadTemplate, TemplateError)):
        compile_template(text).render(NAMES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    assert time.process_time() - begun < 5
    assert NAMES["context"]["map"] == {"a": 1}


@pytest.mark.long
def test_no_escape_gets_200_mb_even_in_a_process_that_has_no_more() -> None:
    """The kernel refuses memory above the limit, so what a template takes for a moment counts too."""
    room = 200 << 20
    program = (
        "import resource, sys\n"
        "from holdfast.machines.meter import TemplateError\n"
        "from holdfast.machines.templates import BadTemplate, compile_template\n"
        "from tests.machines.test_templates import NAMES, PAYLOADS\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        f"limit = pages * resource.getpagesize() + {room}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "for text in PAYLOADS:\n"
        "    try:\n"
        "        compile_template(text).render(NAMES)\n"
        "    except (BadTemplate, TemplateError):\n"
        "        continue\n"
        "    sys.exit(text)\n"
    )
    assert python("-c", program, cwd=ROOT) == (0, "", "")


def test_a_misspelt_filter_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadTemplate, match="Did you mean 'length'"):
        compile_template("{{ context.list | lenght }}")


@given(
    st.text(
        alphabet="{}%|.()[]'\"~+-*context input output range for if in endfor endif set 0123 length map _", max_size=80
    )
)
def test_any_text_is_a_template_or_is_refused(text: str) -> None:
    with contextlib.suppress(BadTemplate, TemplateError):
        compile_template(text).render(NAMES)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    )
)
def test_a_single_expression_keeps_any_value(value: Any) -> None:
    given = compile_template("{{ context.value }}").render({"context": {"value": value}})
    assert given == value
    assert type(given) is type(value)


def test_every_filter_of_the_list_is_there() -> None:
    for name in sorted(FILTERS - {"map", "select", "reject", "selectattr", "rejectattr", "groupby"}):
        given = "replace('a', 'b')" if name == "replace" else name
        with contextlib.suppress(TemplateError):  # not every filter takes a text
            compile_template(f"{{{{ context.value | {given} }}}}").render({"context": {"value": "1"}})
