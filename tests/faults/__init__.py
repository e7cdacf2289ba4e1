"""The faults' own judgement: what is sent, how answers are read, how a table is put together, what the models are."""
