"""The API types, described once: CRDs, their reference and the parser are made of them."""
