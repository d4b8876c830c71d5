"""Chat templates that behave as those of families people run: what they write of tools, calls, results and thoughts.

The words are ours; marks, places and the quirks that matter are the families'.
"""

from __future__ import annotations

__all__ = ["FAMILIES"]

_LLAMA = """{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{% endif %}
{{- system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- set first = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
    {{- 'Call by {"name": its name, "parameters": its arguments}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) + "\\n\\n" }}{% endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content']|trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call only") }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' + '"parameters": ' }}{{ call.arguments | tojson }}{{ "}" + "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content | tojson + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

_QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else 'You are helpful.') }}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" + tool | tojson }}{% endfor %}
    {{- '\\n</tools>\\n\\nCall so:\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}' }}
    {{- '\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""

_QWEN_CALLS = """
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- SEPARATOR + '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}"""

_QWEN_RESULTS = """
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"""

_QWEN25 = (
    _QWEN_TOOLS
    + """{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + ('\\n' + message.content if message.content else '') }}"""
    + _QWEN_CALLS.replace("SEPARATOR", "'\\n'")
    + _QWEN_RESULTS
    + "{% endif %}\n"
)

_QWEN3 = (
    _QWEN_TOOLS
    + """{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{% set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = message.reasoning_content or '' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}"""
    + _QWEN_CALLS.replace("SEPARATOR", "('\\n' if message.content or not loop.first else '')")
    + _QWEN_RESULTS
    + "{% if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    + "{% endif %}\n"
)

_HERMES = (
    """{{- bos_token + '<|im_start|>system\\nYou call functions.' }}
{%- if tools %}
    {{- ' <tools> ' }}{% for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}{{- ' </tools>' }}
    {{- '\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-dict>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role in ("user", "system") or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant' }}"""
    + _QWEN_CALLS.replace("SEPARATOR", "'\\n'")
    + """
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>tool\\n' }}{% endif %}
        {{- '<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response>' if loop.last else '\\n</tool_response>\\n' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
)

_SMOLLM2 = """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{% endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_SMOLLM3 = """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{{- "<|im_start|>system\\n## Metadata\\n\\n" -}}
{%- if messages[0].role == "system" -%}{{- messages[0].content + "\\n\\n" -}}{%- endif -%}
{%- if xml_tools or tools -%}
  {%- if tools -%}{%- set xml_tools = tools -%}{%- endif -%}
  {{- "### Tools\\n\\n<tools>\\n" -}}
  {%- for tool in xml_tools -%}{{- (tool | tojson) ~ "\\n" -}}{%- endfor -%}
  {{- '</tools>\\n\\nCall so:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args>}\\n</tool_call>\\n' -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {{- "<|im_start|>assistant\\n" + ("" if enable_thinking else "<think>\\n\\n</think>\\n") -}}
    {{- content.lstrip("\\n") + "<|im_end|>\\n" -}}
    {% endgeneration %}
  {%- elif message.role == "tool" -%}
    {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\\n" + ("" if enable_thinking else "<think>\\n\\n</think>\\n") }}
{%- endif -%}
"""

_GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- set said = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}{%- set said = messages -%}
{%- endif -%}
{%- for message in said -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("must alternate") }}{%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
    {{- (prefix if loop.first else "") + message['content'] | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

FAMILIES = {
    "Llama 3.1": _LLAMA,
    "Qwen 2.5": _QWEN25,
    "Qwen 3": _QWEN3,
    "Hermes 3": _HERMES,
    "SmolLM2": _SMOLLM2,
    "SmolLM3": _SMOLLM3,
    "Gemma 3": _GEMMA3,
}
"""Chat templates by family."""
