"""How fast a model is downloaded, beside what its source gives and what the machine could do with it at most.

`source` is the server, `client` the plain client that stands for source and machine, `__main__` compares them.
"""
