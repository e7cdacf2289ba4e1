-- Runs the former revision in place of the one that the spec describes, until spec.model is changed. A second one ends that.
local status = obj.status
if status ~= nil and status.currentRevision ~= nil then
  local before = status.previousRevision
  if status.rollout ~= nil and status.rollout.revision ~= status.stableRevision then
    before = status.stableRevision
  end
  if before ~= nil then
    obj.spec.rollout = obj.spec.rollout or {}
    obj.spec.rollout.rollbackTo = status.currentRevision .. "/" .. before
  end
end
return obj
