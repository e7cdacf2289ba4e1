"""The compiled part of the gateway beside its Python: both sides get the same inputs and must answer the same.

The Rust side may leave an input to Python, by NotSure; it may never answer differently. Of ordinary requests it leaves
none. Where the extension is not built the tests are skipped, with the reason in the report.
"""
