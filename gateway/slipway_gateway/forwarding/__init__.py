"""Forwards a request: attempts until the first byte, then the response, then the rest of a broken stream.

`proxy` runs one request. `relay` sends the response to the client. `bodies`, `held_request`, `resume_memory`, `crashes`
and `poison` each own one part of that.
"""
