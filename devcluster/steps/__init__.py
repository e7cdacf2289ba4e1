"""Steps of a long work: which may start, how long they take, what is shown meanwhile.

`schedule.py` decides (pure), `weights.py` holds measured seconds, `progress.py` runs the steps and shows the progress.
"""
