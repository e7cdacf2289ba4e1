"""Parses the text that a model writes into content, reasoning and tool calls for the client.

Each parser is a state machine over the text of one answer. Its results depend only on the text so far: not on how the
text was cut into pieces, nor on which server generated it.
"""
