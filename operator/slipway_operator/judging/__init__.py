"""The judge: is the canary worse than stable? Pure mathematics on counts, for one canary or ten thousand at once."""
