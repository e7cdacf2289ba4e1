"""OpenAI's Responses API over the same path as chat completions.

`schema` has the fields of a request and the chat that they mean, `items` its input, `builder` makes the response and
the events of its stream from the tokens of the answer, `api` serves it. Nothing is stored.
"""
