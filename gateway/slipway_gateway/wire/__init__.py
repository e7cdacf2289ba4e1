"""What is on the wire, as values: request bodies, errors, headers, events, text of responses.

Shapes are those of OpenAI, HTTP and server-sent events. `resume` holds the headers and event ids of a stream that
continues at another server. Nothing here does I/O.
"""
