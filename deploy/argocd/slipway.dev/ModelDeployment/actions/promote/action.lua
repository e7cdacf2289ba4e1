-- Ends the pause or the analysis that the rollout is in.
if obj.status ~= nil and obj.status.rollout ~= nil then
  obj.spec.rollout = obj.spec.rollout or {}
  obj.spec.rollout.promote = obj.status.rollout.token
end
return obj
