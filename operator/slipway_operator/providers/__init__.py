"""Asks the providers of an analysis: Prometheus, a URL, a Job. Decides nothing; what an answer is worth is planned."""
