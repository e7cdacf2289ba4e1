"""`/v1/messages`, Anthropic's API, for the chats of any engine.

`schema.py` has a request. `chat_request.py` makes a chat completion's request of it, and `message.py` a message of the
response, whole or in events (all pure). `endpoint.py` runs the request through the same code as any chat.
"""
