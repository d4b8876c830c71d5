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

_QWEN35 = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" + tool | tojson }}{% endfor %}
    {{- '\\n</tools>\\n\\nCall so:\\n<tool_call>\\n<function=a_name>\\n' }}
    {{- '<parameter=an_argument>\\na value\\n</parameter>\\n</function>\\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}{{- '\\n\\n' + messages[0].content | trim }}{% endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + message.content | trim + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + (message.reasoning_content or '') | trim + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content | trim }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function %}
            {{- ('' if loop.first else '\\n') + '<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- for name, value in call.arguments | items %}
                {{- '<parameter=' + name + '>\\n' }}
                {%- if value is mapping or (value is sequence and value is not string) %}{{- value | tojson }}
                {%- else %}{{- value | string }}{% endif %}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

_LFM2 = """{{- bos_token -}}
{%- set ns = namespace(system="") -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system = messages[0]["content"] -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system = ns.system + ("\\n" if ns.system else "") + "List of tools: <|tool_list_start|>[" -%}
    {%- for tool in tools -%}
        {%- set ns.system = ns.system + (tool | tojson) + ("" if loop.last else ", ") -%}
    {%- endfor -%}
    {%- set ns.system = ns.system + "]<|tool_list_end|>" -%}
{%- endif -%}
{%- if ns.system -%}{{- "<|im_start|>system\\n" + ns.system + "<|im_end|>\\n" -}}{%- endif -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" -}}
    {%- if message["role"] == "tool" -%}
        {{- "<|tool_response_start|>" + message["content"] + "<|tool_response_end|>" -}}
    {%- else -%}{{- message["content"] -}}{%- endif -%}
    {{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""

_LFM25 = """{{- bos_token -}}
{%- macro value_of(value) -%}
    {%- if value is string -%}{{- "'" + value + "'" -}}
    {%- elif value is mapping -%}{{- value | tojson -}}
    {%- else -%}{{- value | string -}}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(system="", last=-1) -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system = messages[0]["content"] -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system = ns.system + ("\\n" if ns.system else "") + "List of tools: [" -%}
    {%- for tool in tools -%}
        {%- set ns.system = ns.system + (tool | tojson) + ("" if loop.last else ", ") -%}
    {%- endfor -%}
    {%- set ns.system = ns.system + "]" -%}
{%- endif -%}
{%- if ns.system -%}{{- "<|im_start|>system\\n" + ns.system + "<|im_end|>\\n" -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message["role"] == "user" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message.role + "\\n" -}}
    {%- if message.role == "assistant" and message.thinking is defined and loop.index0 > ns.last -%}
        {{- "<think>" + message.thinking + "</think>" -}}
    {%- endif -%}
    {{- message.content -}}
    {%- if message.role == "assistant" and message.tool_calls is defined -%}
        {{- "<|tool_call_start|>[" -}}
        {%- for call in message.tool_calls -%}
            {{- call["function"]["name"] + "(" -}}
            {%- for name, value in call["function"]["arguments"].items() -%}
                {{- name + "=" + value_of(value) + ("" if loop.last else ", ") -}}
            {%- endfor -%}
            {{- ")" + ("" if loop.last else ", ") -}}
        {%- endfor -%}
        {{- "]<|tool_call_end|>" -}}
    {%- endif -%}
    {{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""

_GEMMA4 = """{%- macro value_of(value) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}{%- for name, each in value | dictsort -%}{{- name -}}:{{- value_of(each) -}}
        {{- '' if loop.last else ',' -}}{%- endfor -%}{{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for each in value -%}{{- value_of(each) -}}{{- '' if loop.last else ',' -}}{%- endfor -%}
        {{- ']' -}}
    {%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last="") -%}
{{- bos_token -}}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] == 'system' -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
    {%- if messages[0]['role'] == 'system' -%}
        {{- messages[0]['content'] | trim -}}{%- set messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<|tool>declaration:' + tool['function']['name'] + '{description:' -}}
        {{- value_of(tool['function']['description']) + ',parameters:' + value_of(tool['function']['parameters']) -}}
        {{- '}<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}
        {{- '<|tool_response>response:' + message['name'] + '{value:' + value_of(message['content']) -}}
        {{- '}<tool_response|>' -}}
    {%- else -%}
        {%- if not (message['role'] == 'assistant' and ns.last == 'tool') -%}
            {{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
        {%- endif -%}
        {%- if message.get('reasoning_content') and message.get('tool_calls') -%}
            {{- '<|channel>thought\\n' + message['reasoning_content'] + '\\n<channel|>' -}}
        {%- endif -%}
        {%- for call in message['tool_calls'] or [] -%}
            {{- '<|tool_call>call:' + call['function']['name'] -}}{{- value_of(call['function']['arguments']) -}}
            {{- '<tool_call|>' -}}
        {%- endfor -%}
        {{- message['content'] | trim -}}
        {%- if not message['tool_calls'] -%}{{- '<turn|>\\n' -}}
        {%- elif loop.last or loop.nextitem['role'] != 'tool' -%}{{- '<|tool_response>' -}}{%- endif -%}
    {%- endif -%}
    {%- set ns.last = 'tool' if message['tool_calls'] else message['role'] -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.last != 'tool' -%}
    {{- '<|turn>model\\n' + ('' if enable_thinking | default(false) else '<|channel>thought\\n<channel|>') -}}
{%- endif -%}
"""

_HARMONY = """{{- "<|start|>system<|message|>Today is " + strftime_now("%Y-%m-%d") + "." }}
{{- "\\n# Valid channels: analysis, commentary, final.<|end|>" }}
{%- set instructions = "" %}
{%- if messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}{% set messages = messages[1:] %}
{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" + instructions }}
    {%- if tools %}
        {{- "\\n\\n# Tools\\n\\nnamespace functions {\\n" }}
        {%- for tool in tools %}
            {{- "// " + tool.function.description + "\\ntype " + tool.function.name + " = (_: {" }}
            {%- for name in tool.function.parameters.properties %}{{- name + ": any, " }}{% endfor %}
            {{- "}) => any;\\n" }}
        {%- endfor %}
        {{- "}" }}
    {%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set ns = namespace(name="") %}
{%- for message in messages %}
    {%- if message.role == "assistant" and "tool_calls" in message %}
        {%- set call = message.tool_calls[0].function %}
        {%- if message.content and message.thinking %}{{- raise_exception("one of them only") }}{% endif %}
        {%- if message.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments | tojson + "<|call|>" }}
        {%- set ns.name = call.name %}
    {%- elif message.role == "assistant" %}
        {%- if "<|channel|>" in message.content %}{{- raise_exception("no channels here") }}{% endif %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start|>functions." + ns.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content | tojson + "<|end|>" }}
    {%- else %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{% endif %}"""

_MINISTRAL3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- '[SYSTEM_PROMPT]' + messages[0]['content'] + '[/SYSTEM_PROMPT]' }}{% set messages = messages[1:] %}
{%- else %}{{- '[SYSTEM_PROMPT]Think so: [THINK]thoughts[/THINK]answer[/SYSTEM_PROMPT]' }}
{%- endif %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '[TOOL_CALLS]' + call['function']['name'] + '[ARGS]' + (call['function']['arguments'] | tojson) }}
        {%- endfor %}
        {{- '</s>' }}
    {%- else %}{{- '[TOOL_RESULTS]' + message['content'] + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

_GRANITE4 = """{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {%- set ns = namespace(text=system + '\\n\\nYou have tools:\\n<tools>') %}
    {%- for tool in tools %}{% set ns.text = ns.text + '\\n' + (tool | tojson) %}{% endfor %}
    {%- set system = ns.text + '\\n</tools>\\n<tool_call>\\n{\\"name\\": <name>,' %}
    {%- set system = system + ' \\"arguments\\": <object>}\\n</tool_call>' %}
{%- endif %}
{%- if system %}{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|start_of_role|>user<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '' if loop.first and not message.content else '\\n' }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end_of_text|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|start_of_role|>user<|end_of_role|>' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|end_of_text|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"""

_OLMO2 = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {{- '<|assistant|>\\n' + message['content'] + eos_token + ('' if loop.last else '\\n') }}
    {%- else %}{{- '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""

FAMILIES = {
    "Llama 3.1": _LLAMA,
    "Qwen 2.5": _QWEN25,
    "Qwen 3": _QWEN3,
    "Hermes 3": _HERMES,
    "SmolLM2": _SMOLLM2,
    "SmolLM3": _SMOLLM3,
    "Gemma 3": _GEMMA3,
    "Qwen 3.5": _QWEN35,
    "LFM2": _LFM2,
    "LFM2.5": _LFM25,
    "Gemma 4": _GEMMA4,
    "gpt-oss": _HARMONY,
    "Ministral 3": _MINISTRAL3,
    "Granite 4": _GRANITE4,
    "OLMo 2": _OLMO2,
}
"""Chat templates by family."""
