"""Chat templates in the styles of published ones, written for these tests: their language, not their words."""

CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}{% if message.name %} name={{ message.name }}{% endif %}

{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

# As Llama 3: special tokens by variable, a date, tools as JSON, calls with a single function, strict about roles.
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}
{%- if tools is not none %}
Functions:
{%- for t in tools %}
{{ t | tojson(indent=4) }}
{%- endfor %}
{%- endif %}
{{ system_message }}<|eot_id|>
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>tool<|end_header_id|>' + message.tool_call_id + '|' + message.content + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time.") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments|tojson + '}<|eot_id|>' }}
    {%- elif message.role in ['user', 'assistant'] %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content|trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("Role " + message.role + " has no place here.") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

# As SmolLM3: generation tags, macros, namespaces, loop controls, a switch for thinking.
GENERATION = """\
{%- set ns = namespace(system="", seen=0) -%}
{%- set thinking = enable_thinking if enable_thinking is defined else true -%}
{%- macro turn(role, text) -%}
<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- for message in messages -%}
    {%- if message.role == "system" -%}
        {%- set ns.system = ns.system ~ message.content -%}
        {%- continue -%}
    {%- endif -%}
    {%- if ns.seen == 0 and ns.system -%}{{ turn("system", ns.system) }}{%- endif -%}
    {%- set ns.seen = ns.seen + 1 -%}
    {%- if message.role == "assistant" -%}
        {% generation %}{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
        {{ turn("assistant", message.content.lstrip("\\n")) }}{% endgeneration %}
    {%- else -%}
        {{ turn(message.role, message.content) }}
    {%- endif -%}
    {%- if loop.index > 40 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
{%- if documents -%}
    {%- for document in documents %}[{{ loop.index0 }}] {{ document.title }}: {{ document.text }}
    {% endfor -%}
{%- endif -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if not thinking %}<think></think>{% elif reasoning_effort is defined %}({{ reasoning_effort }}){% endif %}
{%- endif -%}
"""

# As Gemma: roles must alternate, an assistant is called model, no system role of its own.
ALTERNATING = """\
{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("Roles must alternate.") }}{% endif %}
<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ message['content'] | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

ALL = {"chatml": CHATML, "headers": HEADERS, "generation": GENERATION, "alternating": ALTERNATING}

# As Llama-Guard-3: the text of the first part alone.
FIRST_PART = """\
{% for message in messages %}<{{ message['role'] }}>{{ message['content'][0]['text'] | trim }}
{% endfor %}{% if add_generation_prompt %}<verdict>{% endif %}"""

# As those of models that see: a loop over parts, images by a token.
PART_LOOP = """\
{{- bos_token }}{% for message in messages %}<|{{ message.role }}|>
{%- for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

# As Gemma 3 and Llama 3.2: texts, and parts where there are some.
EITHER = """\
{% for message in messages %}[{{ message.role }}]
{%- if message.content is string %}{{ message.content | trim }}
{%- elif message.content is iterable %}{% for part in message.content %}{{ part['text'] | trim }}{% endfor %}{% endif %}
{%- for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}
{% endfor %}"""

# Whole calls as JSON: the order of their fields is seen.
WHOLE_CALLS = """\
{% for message in messages %}{{ message.role }}:{{ message.content }}
{%- if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}

{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"""

# As Qwen: arguments as they are where they are texts.
TEXT_OR_JSON = """\
{% for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}{% set call = call.function %}
<tool_call>{"name": "{{ call.name }}", "arguments":
{%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}}</tool_call>
{%- endfor %}
{% endfor %}"""

# As DeepSeek-V3: arguments are joined to a text, and must be one.
JOINED = """\
{% for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}{% set call = call.function %}
{{- '<call>' + call['name'] + '\\n' + call['arguments'] + '</call>' }}
{%- endfor %}
{% endfor %}"""

# As Qwen3-Coder and GLM: each argument has a tag.
TAGGED = """\
{% for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}<function={{ call.function.name }}>
{%- for name, value in call.function.arguments.items() %}<parameter={{ name }}>{{ value }}</parameter>{% endfor %}
{%- endfor %}
{% endfor %}"""

# Parts, and calls as JSON.
PARTS_AND_CALLS = """\
{% for message in messages %}<{{ message.role }}>{% for part in message['content'] %}{{ part['text'] }}|{% endfor %}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% endfor %}{% if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}"""

READ_PARTS = {"first part": FIRST_PART, "part loop": PART_LOOP, "parts and calls": PARTS_AND_CALLS}
READ_TEXTS = {
    **ALL,
    "either": EITHER,
    "whole calls": WHOLE_CALLS,
    "text or json": TEXT_OR_JSON,
    "joined": JOINED,
    "tagged": TAGGED,
}

# Ways out of a sandbox that have worked somewhere.
ESCAPES = (
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].system('id') }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__class__ }}",
    "{{ dict.__call__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{0.__class__}'.format_map({'0': messages}) }}",
    "{{ ('{0.__class__.__mro__}' ~ '').format('') }}",
    "{{ messages|map(attribute='__class__')|list|first|string|length // 0 }}",
    "{% set ns = namespace(__init__=1) %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ messages.append({'role': 'system'}) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages.clear() }}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ request.application }}{{ config.items() }}",
    "{{ messages[0].content.encode().__reduce__() }}",
    "{{ (messages|first).items.__self__.__class__.__name__ }}",
    "{{ caller.__code__ }}",
    "{{ turn.__func__ }}{% macro turn() %}{% endmacro %}{{ turn._func.__globals__ }}",
)
