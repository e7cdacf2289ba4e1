"""Between text and token ids: tokenizer, chat template, incremental detokenizer, stop strings.

`pool` has threads for native work on small texts, `token_bytes` the bound of a text before it is tokenized.
`rendering`, `chat_template` and `template_language` (the part of Jinja that templates may use) run only in the process
of `http/reading`.
"""
