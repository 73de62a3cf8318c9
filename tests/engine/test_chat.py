"""Chat templates: what they may do, and that hostile ones end soon with one diagnostic."""

import os
import time
from pathlib import Path

import pytest

from amk.engine.tokenizers.chat import Limits, render_chat
from amk.report.diagnostic import AmkError, Exit

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve </s> {{ 1 + 1 }} 😀"}]
QUICK = Limits(seconds=1, memory_bytes=256 << 20)


def test_the_usual_features_of_templates() -> None:
    template = """{%- for message in messages %}
        {%- if message.role == 'system' %}{% continue %}{% endif %}
        {{- bos_token + message['role'] | upper }}: {{ message.content | trim }}
    {%- endfor %}
    {%- if add_generation_prompt %} A:{% endif %} {{ {'ü': [1]} | tojson }}"""
    text = render_chat(template, MESSAGES, {"bos_token": "<s>"})
    assert text == '<s>USER: naïve </s> {{ 1 + 1 }} 😀 A: {"ü": [1]}'


def test_a_template_may_ask_for_the_date() -> None:
    year = render_chat("{{ strftime_now('%Y') }}", MESSAGES)
    assert abs(int(year) - time.localtime().tm_year) <= 1


HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "one long power": "{{ 9 ** (9 ** 9) }}",
    "huge string": "{{ 'a' * 10 ** 11 }}",
    "doubling string": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "endless output": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "deep nesting": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__['sys'] }}",
    "file": "{% include '/etc/passwd' %}",
    "mutation": "{{ messages.append(1) }}",
    "syntax": "{% if %}",
    "too long": " " * 200_000,
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("template", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_template_ends_soon_with_one_diagnostic(template: str) -> None:
    start = time.monotonic()
    with pytest.raises(AmkError) as caught:
        render_chat(template, MESSAGES, limits=QUICK)
    assert time.monotonic() - start < 60
    assert caught.value.exit_code is Exit.INPUT
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "AMK012"
    assert len(diagnostic.message) < 1200


def test_the_templates_own_refusal_is_passed_on() -> None:
    with pytest.raises(AmkError, match="roles must alternate"):
        render_chat("{{ raise_exception('roles must alternate') }}", MESSAGES)


def test_the_environment_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert os.environ["PYTHONPATH"] == str(tmp_path)
    assert render_chat("{{ messages | length }}", MESSAGES) == "2"
