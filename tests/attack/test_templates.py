"""Laws of chat templates, which are programs by strangers: none takes long, or much, or more than its own prompt."""

from __future__ import annotations

import resource
import time

import pytest
from family_templates import FAMILIES

from edge_spec.errors import PromptError
from edge_spec.generation import template_sandbox
from edge_spec.generation.prompts import render_chat

pytestmark = pytest.mark.long

MESSAGES = [{"role": "user", "content": "hi " * 20}] * 3
LONG = "{% set s = 'a' * 1000000 %}"
GROWS = "{% set ns = namespace(s='a', n=3, l=[1]) %}{% for i in range(99999) %}"

TWICE = "{%% set n = namespace(x=%s, y=%s) %%}{%% for i in range(60) %%}"
TWICE += "{%% set n.x = %s %%}{%% set n.y = %s %%}{%% endfor %%}"
LISTS = TWICE % ("[1]", "[1]", "[n.x, n.x]", "[n.y, n.y]")
TUPLES = TWICE % ("(1,)", "(1,)", "(n.x, n.x)", "(n.y, n.y)")
DICTS = TWICE % ("{}", "{}", "{'a': n.x, 'b': n.x}", "{'a': n.y, 'b': n.y}")
SPACES = TWICE % ("1", "1", "namespace(a=n.x, b=n.x)", "n.y")
SAME_HASHES = "range(0, 2305843009213693951 * 99999, 2305843009213693951)"

HOSTILE = [
    LISTS + "{{ n.x == n.y }}",
    LISTS + "{{ n.x < n.y }}",
    LISTS + "{{ n.x in [n.y] }}",
    LISTS + "{{ n.x is eq n.y }}",
    LISTS + "{{ [n.x]|select('eq', n.y)|list }}",
    LISTS + "{{ [n.x].index(n.y) }}",
    LISTS + "{{ [n.x].count(n.y) }}",
    LISTS + "{{ [n.x, n.y]|max }}",
    LISTS + "{{ [n.x, n.y]|sort }}",
    LISTS + "{{ [{'a': n.x}, {'a': n.y}]|groupby('a') }}",
    LISTS + "{{ [n.x]|map('string')|list }}",
    LISTS + "{{ [n.x].copy() == [n.y] }}",
    TUPLES + "{{ {n.x: 1}|length }}",
    TUPLES + "{{ dict([(n.x, 1)]) }}",
    TUPLES + "{{ {}.get(n.x) }}",
    TUPLES + "{{ {}[n.x] }}",
    TUPLES + "{{ [n.x]|unique|list|length }}",
    DICTS + "{{ n.x == n.y }}",
    DICTS + "{{ n.x.values() == n.y.values() }}",
    "{% macro f() %}{{ varargs == varargs }}{% endmacro %}{% set s = 'a' * 9000000 %}{{ f(s, s, s, s) }}",
    "{% set n = namespace(x=(1,)) %}{% for i in range(99999) %}{% set n.x = (n.x,) %}{% endfor %}{{ {n.x: 1}|length }}",
    "{{ range(99999)|map(attribute='x', default='a' * 9000000)|batch(99999)|sort }}",
    "{{ dict.fromkeys(" + SAME_HASHES + ") }}",
    "{{ " + SAME_HASHES + "|unique|list|length }}",
    "{{ ('a' * 2000000).rfind('ab' ~ 'a' * 1000000) }}",
    "{{ ('ab' * 1000000).strip('b' * 1000000 ~ 'a')|length }}",
    "{{ ('ab' * 1000000)|trim('b' * 1000000 ~ 'a')|length }}",
    "{{ (('<!---->' * 900000)|safe).striptags()|length }}",
    "{{ ('\u00fc' * 900000).encode('punycode')|length }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ 15|round(-100000000) }}",
    "{{ dict.update(messages[0], {'content': 'x'}) }}",
    "{{ f(" + ", ".join(f"a{n}=1" for n in range(20_000)) + ") }}",
    "{{ x }}{% if x %}" + "".join(f"{{% elif a{n} %}}" for n in range(9000)) + "{% endif %}",
    "{{ 9**(9**9) }}",
    "{{ (10**60)**60 }}",
    "{{ 'a' * (10**9) }}",
    "{{ 'x'|center(10**9) }}",
    "{{ 'x'.center(10**9) }}",
    "{{ 'x'.encode().center(10**9) }}",
    "{{ (5).to_bytes(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**9) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
    "{{ 'a\n'|indent(10**9) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ [[1]]|tojson(indent='a' * 100000) }}",
    "{% set ns = namespace(l=range(99999)|list) %}{% for i in range(99) %}{% set ns.l = [ns.l] %}{% endfor %}"
    "{{ ns.l|tojson(indent=64) }}",
    "{{ [1]|batch(10**9, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ range(10**9)|list }}",
    "{{ (range(99999)|map('string')|join(',' * 10000))|length }}",
    "{{ 'a b '|wordwrap(1) }}",
    "{{ lipsum(n=10**6) }}",
    LONG + "{{ [s] * 10000 }}",
    LONG + "{{ ([s] * 10000)|join }}",
    LONG + "{{ ([s] * 10000)|tojson }}",
    LONG + "{{ ''.join([s] * 10000) }}",
    LONG + "{{ '%s' % ([s] * 10000,) }}",
    LONG + "{{ ('{0}' * 90000).format(s) }}",
    LONG + "{{ ('%(a)s' * 90000) % {'a': s} }}",
    LONG + "{% for i in range(99999) %}{{ s }}{% endfor %}",
    LONG + "{% set t %}{% for i in range(99999) %}{{ s }}{% endfor %}{% endset %}",
    GROWS + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    GROWS + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    GROWS + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    GROWS + "{% set ns.l = ns.l + ['abc' * 1000 ~ i] %}{% endfor %}",
    GROWS + "{% set ns.l = ns.l + [('abc' * 9000)[1:]] %}{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "{{" + "(" * 50000,
    "{{ a" + " + a" * 50000 + " }}",
    "{{ x }}" * 60000,
]


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_no_template_takes_long_or_much(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "_SECONDS", 0.5)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(PromptError, match="chat template") as refused:
        render_chat(template, MESSAGES, bos="", eos="")
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10


USUAL = {
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m.role ~ ': ' ~ m.content[:2] }}|"
    "{% endfor %}": "1/3Falseuser: hi|2/3Falseuser: hi|3/3Trueuser: hi|",
    "{{ messages[1:]|length }} {{ messages[::-1][0].content|trim|length }}": "2 59",
    "{{ '%s is %5.1f and %d' % ('a', 2.25, 1700000000) }}": "a is   2.2 and 1700000000",
    "{{ '{} {:>4} {x}'.format('**a**', 7, x=1700000000) }}": "**a**    7 1700000000",
    "{{ 'On 2024-01-02: %s' % 'x' }} {{ 2**10 }} {{ 1700000000|tojson }}": "On 2024-01-02: x 1024 1700000000",
    "{{ messages|map(attribute='role')|join(', ') }}": "user, user, user",
    "{{ {'a': [1, 'é']}|tojson(indent=1) }}": '{\n "a": [\n  1,\n  "é"\n ]\n}',
    "{{ {'b': [1, 'é'], 'a': 2}|tojson(true, separators=(',', ':'), sort_keys=true) }}": '{"a":2,"b":[1,"\\u00e9"]}',
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}": "3",
    "{% macro f(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ f(2, b='y') }}": "<1x><2y>",
    "{% generation %}{{ messages[0]['content'].split(' ')[0].replace('h', 'H') }}{% endgeneration %}": "Hi",
    "{{ messages[0] == messages[1] }}{{ 'user' in messages|map(attribute='role') }}": "TrueTrue",
    "{% for k, v in {'b': 1, 'a': [2]}|dictsort %}{{ k }}{{ v }}{% endfor %}{{ {(1, 'a'): 2}[(1, 'a')] }}": "a[2]b12",
    "{{ 2.25|round(1) }}{{ 1 < 2 < 3 }}{% set a, b = 4, 5 %}{{ a }}{{ 'é'.encode('utf-8')|length }}": "2.2True42",
    "{% macro f() %}{{ varargs|length }}{{ kwargs.a }}{% endmacro %}{{ f(1, 2, a=3) }}": "23",
    "{% set n = namespace(x=1) %}{{ namespace(y=n)|string }}": "<Namespace>",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ range(3)|sum }}{{ [3, 1]|sort }}": "33[1, 3]",
}


@pytest.mark.parametrize("template", USUAL, ids=range(len(USUAL)))
def test_what_templates_do_is_done(template: str) -> None:
    assert render_chat(template, MESSAGES, bos="", eos="") == USUAL[template]


@pytest.mark.parametrize("name", FAMILIES)
def test_templates_of_families_write_long_conversations(name: str) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 20_000} for n in range(21)]
    written = render_chat(FAMILIES[name], messages, bos="<s>", eos="</s>")
    assert all(f"{message['content'].strip()}" in written for message in messages)


def test_what_many_messages_share_is_measured_once() -> None:
    messages = [{"role": "user", "content": "word"}] * 20_000
    template = "{% for m in messages %}{{ loop.index0 == messages|length - 1 }}{{ m in [messages[0]] }}{% endfor %}"
    assert render_chat(template, messages, bos="", eos="").endswith("FalseTrueTrueTrue")


def test_templates_leave_tools_as_they_are() -> None:
    tools = [{"name": "f"}]
    with pytest.raises(PromptError, match="forbidden"):
        render_chat("{{ dict.update(tools[0], {'name': 'g'}) }}", MESSAGES, bos="", eos="", options={"tools": tools})
    assert tools == [{"name": "f"}]
