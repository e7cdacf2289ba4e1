"""What types of custom resources are made of: scalars, metadata for schemas, and how they are read and written.

`types` has the base of a spec and what makes a dataclass readable, `markers` what a schema says beyond types.
`reading` and `writing` are JSON to objects and back: one rule in place of a mapping for each type.
"""
