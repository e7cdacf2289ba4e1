-- Health of a ModelAdapter, which rolls out as a ModelDeployment does.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not read the last change of the spec yet" }
end

local held = {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" then
    held[condition.type] = condition
  end
end

local message = status.message or ""
if held.Stalled ~= nil then
  return { status = "Degraded", message = held.Stalled.reason .. ": " .. held.Stalled.message }
end
if held.Reconciling ~= nil then
  return { status = status.phase == "Paused" and "Suspended" or "Progressing", message = message }
end
if status.phase == "Degraded" then
  return { status = "Degraded", message = message }
end
return { status = "Healthy", message = message }
