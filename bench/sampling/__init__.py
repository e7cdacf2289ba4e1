"""What sampling and grammars cost: the engine with them and without them, in turns of a few steps in one process."""
