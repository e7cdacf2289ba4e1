"""The log of generations: what is in it, what becomes of it, and its programs for administrators."""
