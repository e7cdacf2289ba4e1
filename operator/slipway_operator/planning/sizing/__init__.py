"""How many pods each revision gets, and which weights they can carry.

Capacity modes, pods of a step, baseline pods, restarts, the hooks that hold pods or weight, and the route table.
Arithmetic only: no state changes here.
"""
