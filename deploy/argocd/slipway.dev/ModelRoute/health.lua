-- Health of a ModelRoute: gateways follow it, and all its targets are there.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not read the last change of the spec yet" }
end

local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

if found.Stalled ~= nil and found.Stalled.status == "True" then
  return { status = "Degraded", message = found.Stalled.reason .. ": " .. found.Stalled.message }
end
if found.Reconciling ~= nil and found.Reconciling.status == "True" then
  return { status = "Progressing", message = found.Reconciling.message }
end
return { status = "Healthy", message = found.Accepted ~= nil and found.Accepted.message or "" }
