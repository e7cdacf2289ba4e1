"""Between text and token ids: tokenizer, chat template, incremental detokenizer, stop strings.

`pool` runs slow text work in threads beside the event loop, and `template_language` is the part of Jinja that chat
templates may use.
"""
