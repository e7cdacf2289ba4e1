"""Model folders: what is in them, and how they become torch modules."""
