"""`slipway plan`: pods and GPUs for models with their demand, from a file.

`request.py` is the file, `bins.py` packs pods into GPUs of one type, `plan.py` chooses the types and adds up prices.
Pure: no cluster, no file, no terminal.
"""
