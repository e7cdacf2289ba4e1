"""Bodies of requests to classic models and of their answers: small ones here, large ones in a process of its own.

`reader` decides where a body is read and an answer written. `questions` and `answers` are what is done there, without
I/O: `infer_request`, `infer_message` and `infer_answer` have the Open Inference Protocol, `rows` features by name.
`limits` bounds the work before it starts; `child` is the program of the process, and `messages` cross to it.
"""
