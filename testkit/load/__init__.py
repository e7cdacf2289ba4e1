"""Requests under way while something else happens, and how each of them ended.

`background` runs a load in a thread; `pace` sends on the clock; `closed` keeps requests in flight through the openai
client; `flow` sends at a fixed rate, whatever becomes of the requests; `client` is what both send and read.
"""
