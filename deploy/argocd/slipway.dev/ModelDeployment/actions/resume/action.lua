-- Lets the rollout go on.
obj.spec.paused = false
return obj
