"""`/generate`, `/generate_stream` and `/`, the API of Hugging Face's text-generation-inference, for any engine.

`schema.py` has a request. `completion_request.py` makes a completion's request of it, and `generation.py` a generation
of the response, whole or in events (all pure). `endpoint.py` runs the request through the same code as any completion.
"""
