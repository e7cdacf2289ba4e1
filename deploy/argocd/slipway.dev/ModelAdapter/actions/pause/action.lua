-- Holds the rollout where it is.
obj.spec.paused = true
return obj
