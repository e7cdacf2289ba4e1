"""Mirrors slipway_fetcher."""
