"""The main job on a real cluster, told step by step under load: `python -m examples.demo`."""
