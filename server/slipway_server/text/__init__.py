"""Between text and token ids: tokenizer, chat template, incremental detokenizer, stop strings.

`pool` runs what takes long beside the event loop, and `template_language` is the part of Jinja that chat templates
may use.
"""
