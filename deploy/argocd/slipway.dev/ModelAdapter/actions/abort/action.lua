-- Rejects the attempt in flight: its weight returns to stable.
if obj.status ~= nil and obj.status.rollout ~= nil then
  local rollout = obj.status.rollout
  obj.spec.rollout = obj.spec.rollout or {}
  obj.spec.rollout.abort = rollout.revision .. "/" .. rollout.attempt
end
return obj
