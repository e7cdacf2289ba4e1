"""Sends the load of `slipway bench` to a gateway: requests, their times, and the steps of concurrency.

What a step means, and which one is next, is decided in `sizing/`.
"""
