"""What stands on the wire, as values: envelopes, errors, headers, events (pure)."""
