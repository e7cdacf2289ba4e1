"""Conversations for any engine: `/v1/responses` with `store`, `previous_response_id` and `conversation`.

`turn_request.py` makes the request of a server, with all earlier items and nothing stored, and `turn_response.py` the
response of the client (both pure). `turns.py` reads and writes turns at the jobs process. `endpoint.py` joins them.
"""
