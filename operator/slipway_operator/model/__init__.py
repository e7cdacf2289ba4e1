"""The nouns that cross rooms: Spec, Status, Observed, Plan. Pure data."""
