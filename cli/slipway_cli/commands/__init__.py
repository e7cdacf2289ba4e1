"""The commands of `slipway`: arguments in, one call of the layers below, output and exit code.

`root` is the group with all commands; `look` shows, `steer` changes a rollout, `tool` is about the program itself.
A new command belongs here, its decision in `rollouts`, its output in `views`.
"""
