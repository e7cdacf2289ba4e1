-- Tries the rejected revision again.
if obj.status ~= nil and obj.status.rollout ~= nil then
  local rollout = obj.status.rollout
  obj.spec.rollout = obj.spec.rollout or {}
  obj.spec.rollout.retry = rollout.revision .. "/" .. (rollout.attempt + 1)
end
return obj
