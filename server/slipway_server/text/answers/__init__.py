"""What a model writes to what a client gets: content, reasoning and calls of tools.

Each parser is a state machine over the text of one answer: what it has returned depends on the text so far and on
nothing else, neither on where the text was cut into pieces nor on which server it came from.
"""
