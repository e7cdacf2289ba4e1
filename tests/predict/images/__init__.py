"""Images as inputs: preprocessing beside transformers' own, hostile files, and a server that takes them."""
