"""The engine on a GPU against the device's own limits and other engines."""
