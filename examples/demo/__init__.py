"""The main job on a real cluster, step by step under load: `python -m examples.demo`."""
