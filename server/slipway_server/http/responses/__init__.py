"""What a client gets: JSON bodies, server-sent events, and streams that it can resume.

`shapes` and `logprobs` are OpenAI's formats, `sse` writes streams, `resume` and `replay` continue them.
"""
