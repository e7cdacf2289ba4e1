"""The largest bodies that a generating server takes, each made to cost as much as it can."""

import json

from tests.support.largest import MODEL, PROSE, LargeBody, field_of, filled, head_of, items_of, numbered

LIMIT_BYTES = (8 << 20) - 300  # of --max-body-bytes, with room for what is around the filling

USER = [{"role": "user", "content": "hi"}]
CALL = '{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\\"a\\":[1,1,1,1]}"}}]}'
TOOL = '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":['
ITEM = '{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}'
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
RESUME = "1-1-" + 32 * "0" + ".1.00000000"


def _resumed(size_bytes: int) -> bytes:
    body = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
    return body + b"7," * ((size_bytes - len(body)) // 2)


TEXTS = {
    "letters": "a",
    "brackets": "[",
    "prose": PROSE,
    "blanks": " ",
    "accents": "é",
    "emoji": "🚢",
    "escapes": "\\u00e9",
    "words": "ab ",
    "digits": "7",
    "commas": ",",
}

OF_TEXTS = [LargeBody(f"prompt of {name}", COMPLETIONS, field_of("prompt", piece)) for name, piece in TEXTS.items()]
OF_LISTS = [
    LargeBody("many prompts", COMPLETIONS, items_of("prompt", '"a"')),
    LargeBody("2048 prompts", COMPLETIONS, items_of("prompt", f'"{4090 * "a"}"')),
    LargeBody("prompt of ids", COMPLETIONS, items_of("prompt", "7")),
    LargeBody("prompts of ids", COMPLETIONS, items_of("prompt", "[7]")),
    LargeBody("lists in a prompt", COMPLETIONS, items_of("prompt", "[]")),
    LargeBody("brackets in strings", COMPLETIONS, items_of("prompt", '"["')),
    LargeBody("stop strings", COMPLETIONS, items_of("stop", '"a"', prompt="a")),
    LargeBody("a stop string", COMPLETIONS, field_of("stop", "a", prompt="a")),
    LargeBody("bad words", COMPLETIONS, items_of("bad_words", '"a"', prompt="a")),
    LargeBody("allowed tokens", COMPLETIONS, items_of("allowed_token_ids", "7", prompt="a")),
    LargeBody("biases", COMPLETIONS, numbered("logit_bias", '"{}":1', prompt="a")),
    LargeBody("unknown fields", COMPLETIONS, numbered("", '"x{}":1', prompt="a")),
    LargeBody("an unknown list", COMPLETIONS, items_of("unknown", "[]", prompt="a")),
    LargeBody("a regular expression", COMPLETIONS, field_of("guided_regex", "a", prompt="a")),
    LargeBody("choices", COMPLETIONS, items_of("guided_choice", '"a"', prompt="a")),
    LargeBody("a schema of numbers", COMPLETIONS, filled(f'{head_of({})}"guided_json":{{"enum":[', "7", "]}}", ",")),
    LargeBody("a schema of lists", COMPLETIONS, filled(f'{head_of({})}"guided_json":{{"enum":[', "[]", "]}}", ",")),
    LargeBody("no JSON", COMPLETIONS, filled("", "[", "")),
    LargeBody("tokens to go on from", COMPLETIONS, _resumed, {"X-Slipway-Resume": RESUME}),
]
MESSAGE = f'{head_of({})}"messages":[{{"role":"user","content":'
OF_CHATS = [
    LargeBody("a message of letters", CHAT, filled(f'{MESSAGE}"', "a", '"}]}')),
    LargeBody("a message of prose", CHAT, filled(f'{MESSAGE}"', PROSE, '"}]}')),
    LargeBody("messages", CHAT, items_of("messages", '{"role":"user","content":"hi"}')),
    LargeBody("60,000 messages", CHAT, items_of("messages", f'{{"role":"user","content":"{100 * "a"}"}}')),
    LargeBody("messages with calls", CHAT, items_of("messages", CALL)),
    LargeBody(
        "a message of parts",
        CHAT,
        filled(f'{head_of({})}"messages":[{{"role":"user","content":[', '{"type":"text","text":"hi"}', "]}]}", ","),
    ),
    LargeBody(
        "arguments of a call",
        CHAT,
        filled(
            f'{head_of({})}"messages":[{{"role":"assistant","tool_calls":[{{"id":"c","function":'
            '{"name":"f","arguments":"[',
            "[],",
            '1]"}}]}]}',
        ),
    ),
    LargeBody("a tool", CHAT, filled(f'{head_of({"messages": USER})}"tools":[{TOOL}', "7", "]}}}}]}", ",")),
    LargeBody("documents", CHAT, items_of("documents", '{"title":"t","text":"x"}', messages=USER)),
    LargeBody("variables of the template", CHAT, numbered("chat_template_kwargs", '"x{}":1', messages=USER)),
    LargeBody("items", RESPONSES, items_of("input", ITEM)),
    LargeBody("an input of letters", RESPONSES, field_of("input", "a")),
    LargeBody("instructions", RESPONSES, field_of("instructions", PROSE, input="a")),
    LargeBody("calls in items", RESPONSES, items_of("input", '{"type":"function_call","call_id":"c","name":"f"}')),
]
OF_TOKENS = [
    *(LargeBody(f"text of {name}", "/tokenize", field_of("prompt", piece)) for name, piece in TEXTS.items()),
    LargeBody("messages to tokenize", "/tokenize", items_of("messages", '{"role":"user","content":"hi"}')),
    LargeBody("short ids", "/detokenize", items_of("tokens", "7")),
    LargeBody("long ids", "/detokenize", items_of("tokens", "1234")),
]
OF_OTHERS = [
    LargeBody("text to embed", "/v1/embeddings", field_of("input", "a")),
    LargeBody("texts to embed", "/api/v1/embed", items_of("inputs", f'"{4090 * "a"}"')),
    LargeBody("text to generate from", "/v1/generate", field_of("prompt", PROSE)),
    LargeBody("text for the older API", "/api/v1/generate", field_of("prompt", PROSE)),
    LargeBody("text for the model by its name", f"/api/v1/models/{MODEL}/generate", filled('{"prompt":"', "a", '"}')),
]
LARGEST = [*OF_TEXTS, *OF_LISTS, *OF_CHATS, *OF_TOKENS, *OF_OTHERS]
