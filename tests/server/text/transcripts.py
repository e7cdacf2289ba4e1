"""Answers as models write them, and the messages that they are. Each is read whole, and cut at every place."""

from typing import Any, NamedTuple

TOOLS = frozenset({"weather", "time", "files.search"})


class Transcript(NamedTuple):
    """`calls`: name and arguments of each. `thinking`: the prompt ends with the opening tag."""

    name: str
    form: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    thinking: bool = False

    @property
    def message(self) -> dict[str, Any]:
        return {"content": self.content, "calls": list(self.calls), "reasoning": self.reasoning}


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


OSLO = '{"city": "Oslo"}'
LIMA = '{"city": "Lima"}'
BRACES = '{"city": "a}b{c]\\"}</tool_call>\\\\", "n": [{"x": {}}]}'
UNICODE = '{"city": "Tromsø 漢字 🚢", "say": "\\u00e9"}'


def call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


OSLO_CALL, LIMA_CALL = call("weather", OSLO), call("weather", LIMA)
OSLO_LLAMA, LIMA_LLAMA = call("weather", OSLO, "parameters"), call("weather", LIMA, "parameters")
BOTH = (("weather", OSLO), ("weather", LIMA))
UNKNOWN = call("launch", "{}")

HERMES = (
    Transcript("one", "hermes", hermes(OSLO_CALL), "", BOTH[:1]),
    Transcript("parallel", "hermes", f"{hermes(OSLO_CALL)}\n{hermes(LIMA_CALL)}", "", BOTH),
    Transcript("text around", "hermes", f"Let me see.\n{hermes(OSLO_CALL)}\nDone. ", "Let me see.\nDone. ", BOTH[:1]),
    Transcript("text between", "hermes", f"a {hermes(OSLO_CALL)} b {hermes(LIMA_CALL)}", "a b", BOTH),
    Transcript("unicode", "hermes", hermes(call("time", UNICODE)), "", (("time", UNICODE),)),
    Transcript("braces in strings", "hermes", hermes(call("time", BRACES)), "", (("time", BRACES),)),
    Transcript("a name with a dot", "hermes", hermes(call("files.search", "{}")), "", (("files.search", "{}"),)),
    Transcript("arguments first", "hermes", hermes(f'{{"arguments":{OSLO}, "name":"weather"}}'), "", BOTH[:1]),
    Transcript(
        "arguments as text", "hermes", hermes(r'{"name":"time","arguments":"{\"a\": 1}"}'), "", (("time", '{"a": 1}'),)
    ),
    Transcript("no arguments", "hermes", hermes('{"name": "time"}'), "", (("time", "{}"),)),
    Transcript(
        "cut in arguments", "hermes", '<tool_call>\n{"name": "time", "arguments": {"a": "b', "", (("time", '{"a": "b'),)
    ),
    Transcript("cut in the name", "hermes", '<tool_call>\n{"name": "ti', '<tool_call>\n{"name": "ti'),
    Transcript("cut in the tag", "hermes", "Well <tool_c", "Well <tool_c"),
    Transcript("broken before arguments", "hermes", hermes('{"name": weather}'), hermes('{"name": weather}')),
    Transcript("no JSON", "hermes", hermes("<function=time>"), hermes("<function=time>")),
    Transcript(
        "a bracket is missing",
        "hermes",
        f'<tool_call>{{"name":"weather","arguments":{OSLO}</tool_call> ok',
        " ok",
        BOTH[:1],
    ),
    Transcript(
        "a list is not closed", "hermes", hermes(call("time", '{"a": [1}')), "}}\n</tool_call>", (("time", '{"a": [1'),)
    ),
    Transcript("no closing tag", "hermes", f"<tool_call>{OSLO_CALL} and so on", " and so on", BOTH[:1]),
    Transcript("an unknown tool", "hermes", hermes(UNKNOWN), hermes(UNKNOWN)),
    Transcript(
        "a tag within a tag", "hermes", f"<tool_call><tool_call>{OSLO_CALL}</tool_call>", "<tool_call>", BOTH[:1]
    ),
    Transcript("arguments are no object", "hermes", hermes(call("time", "[1]")), hermes(call("time", "[1]"))),
    Transcript("half of a pair", "hermes", hermes(call("time", '"{\\ud800}"')), hermes(call("time", '"{\\ud800}"'))),
    Transcript("only text", "hermes", "2 < 3 and <b>bold</b>\n\n", "2 < 3 and <b>bold</b>\n\n"),
)
LLAMA3 = (
    Transcript("one", "llama3", OSLO_LLAMA, "", BOTH[:1]),
    Transcript("after the tag", "llama3", f"<|python_tag|>{OSLO_LLAMA}", "", BOTH[:1]),
    Transcript("parallel", "llama3", f"<|python_tag|>{OSLO_LLAMA}; {LIMA_LLAMA}", "", BOTH),
    Transcript("lines", "llama3", f"{OSLO_LLAMA}\n{LIMA_LLAMA}\n", "", BOTH),
    Transcript("text around", "llama3", f"I look:\n {OSLO_LLAMA}\nDone", "I look:\nDone", BOTH[:1]),
    Transcript("within a line", "llama3", f"Write {OSLO_LLAMA}", f"Write {OSLO_LLAMA}"),
    Transcript("unicode", "llama3", call("time", UNICODE, "parameters"), "", (("time", UNICODE),)),
    Transcript("braces in strings", "llama3", call("time", BRACES, "parameters"), "", (("time", BRACES),)),
    Transcript("an answer in JSON", "llama3", '{"city": "Oslo", "name": "time"}', '{"city": "Oslo", "name": "time"}'),
    Transcript("code", "llama3", '<|python_tag|>search.call(query="x")', '<|python_tag|>search.call(query="x")'),
    Transcript("cut", "llama3", '{"name": "time", "parameters": {"a": ', "", (("time", '{"a": '),)),
    Transcript("broken", "llama3", '{"name": "time", parameters', '{"name": "time", parameters'),
    Transcript("a separator at the end", "llama3", f"{OSLO_LLAMA};", ";", BOTH[:1]),
    Transcript("a tag that is none", "llama3", f"<|py<|python_tag|>{OSLO_LLAMA}", "<|py", BOTH[:1]),
)
MISTRAL = (
    Transcript("one", "mistral", f"[TOOL_CALLS] [{OSLO_CALL}]", "", BOTH[:1]),
    Transcript("parallel", "mistral", f"[TOOL_CALLS][{OSLO_CALL}, {LIMA_CALL}]", "", BOTH),
    Transcript("by name", "mistral", f"[TOOL_CALLS]weather[ARGS]{OSLO}", "", BOTH[:1]),
    Transcript(
        "parallel by name", "mistral", f"[TOOL_CALLS]weather[ARGS]{OSLO}[TOOL_CALLS]weather[ARGS] {LIMA}", "", BOTH
    ),
    Transcript("with an id", "mistral", f"[TOOL_CALLS]weather[CALL_ID]abc123[ARGS]{OSLO}", "", BOTH[:1]),
    Transcript("without a mark of arguments", "mistral", f"[TOOL_CALLS]weather{OSLO}", "", BOTH[:1]),
    Transcript("text around", "mistral", f"So [1]:\n[TOOL_CALLS]weather[ARGS]{OSLO}\nbye", "So [1]:\nbye", BOTH[:1]),
    Transcript("unicode", "mistral", f"[TOOL_CALLS]time[ARGS]{UNICODE}", "", (("time", UNICODE),)),
    Transcript("braces in strings", "mistral", f"[TOOL_CALLS] [{call('time', BRACES)}]", "", (("time", BRACES),)),
    Transcript("an unknown tool", "mistral", "[TOOL_CALLS]launch[ARGS]{}", "[TOOL_CALLS]launch[ARGS]{}"),
    Transcript("broken", "mistral", "[TOOL_CALLS]time[ARGZ]{}", "[TOOL_CALLS]time[ARGZ]{}"),
    Transcript("a broken second call", "mistral", f"[TOOL_CALLS][{OSLO_CALL}, 5]", ", 5]", BOTH[:1]),
    Transcript("an empty list", "mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]"),
    Transcript("cut", "mistral", '[TOOL_CALLS]time[ARGS]{"a": [', "", (("time", '{"a": ['),)),
    Transcript("cut in a marker", "mistral", "[TOOL_CALLS]time[AR", "[TOOL_CALLS]time[AR"),
)
JSON = (
    Transcript("one", "json", OSLO_CALL, "", BOTH[:1]),
    Transcript("parallel", "json", f" [{OSLO_CALL},\n{LIMA_LLAMA}]\n", "", BOTH),
    Transcript("text before", "json", f"Sure: {OSLO_CALL}", f"Sure: {OSLO_CALL}"),
    Transcript("text after", "json", f"{OSLO_CALL} there", " there", BOTH[:1]),
    Transcript("unicode", "json", call("time", UNICODE), "", (("time", UNICODE),)),
    Transcript("braces in strings", "json", f"[{call('time', BRACES)}]", "", (("time", BRACES),)),
    Transcript("null", "json", call("time", "null"), "", (("time", "{}"),)),
    Transcript("another list", "json", "[1, 2]", "[1, 2]"),
    Transcript("another object", "json", ' {"a": {"b": 1}}', ' {"a": {"b": 1}}'),
    Transcript("broken", "json", '[{"name": "time" "arguments": {}}]', '[{"name": "time" "arguments": {}}]'),
    Transcript("cut", "json", f"[{OSLO_CALL}, {OSLO_CALL[:-5]}", "", (*BOTH[:1], ("weather", '{"city": "Os'))),
)
THOUGHT = "Oslo is <b>cold</b>. </thin\n\nYes"
REASONING = (
    Transcript("its own tags", "", f"<think>\n{THOUGHT}\n</think>\n\nCold.\n", "Cold.\n", (), THOUGHT),
    Transcript("tag in the prompt", "", f"\n{THOUGHT}\n</think>\n\nCold.", "Cold.", (), THOUGHT, thinking=True),
    Transcript("both tags", "", f"<think>{THOUGHT}</think>Cold.", "Cold.", (), THOUGHT, thinking=True),
    Transcript("cut", "", f"<think>{THOUGHT} ", "", (), THOUGHT),
    Transcript("cut in the tag", "", f"<think>{THOUGHT}</thi", "", (), f"{THOUGHT}</thi"),
    Transcript("nothing thought", "", "<think>\n\n</think>\n\nCold.", "Cold."),
    Transcript("no tag", "", "\nCold. <think>no</think>", "\nCold. <think>no</think>"),
    Transcript("half of a tag", "", " <thi", " <thi"),
    Transcript("with a call", "hermes", f"<think>{THOUGHT}</think>\n\n{hermes(OSLO_CALL)}", "", BOTH[:1], THOUGHT),
    Transcript("a call in thoughts", "hermes", f"<think>{hermes(OSLO_CALL)}</think>x", "x", (), hermes(OSLO_CALL)),
)
ALL = (*HERMES, *LLAMA3, *MISTRAL, *JSON, *REASONING)
