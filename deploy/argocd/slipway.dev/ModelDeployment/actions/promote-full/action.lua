-- Skips the steps that are left. The pods of the revision still have to be ready.
if obj.status ~= nil and obj.status.rollout ~= nil then
  local rollout = obj.status.rollout
  obj.spec.rollout = obj.spec.rollout or {}
  obj.spec.rollout.promoteFull = rollout.revision .. "/" .. rollout.attempt
end
return obj
