"""Which pod gets a prompt: our rule beside others, on simulated pods and on real ones.

`python -m bench.routing`. `trace` makes agents and what they say, `policies` are the rules, `pods` simulates engines
with a cache of prompts, `real` measures servers of ours behind gateways, `cost` the choice alone, `report` makes bars.
"""
