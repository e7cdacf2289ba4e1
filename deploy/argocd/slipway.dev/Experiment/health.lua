-- Health of an Experiment: gateways follow its spec. A paused one is suspended, and one that has ended is healthy.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not read the last change of the spec yet" }
end

for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" and condition.type == "Stalled" then
    return { status = "Degraded", message = condition.reason .. ": " .. condition.message }
  end
  if condition.status == "True" and condition.type == "Reconciling" then
    return { status = "Progressing", message = condition.message }
  end
end
if status.phase == "Paused" then
  return { status = "Suspended", message = "no unit gets an arm for now" }
end
return { status = "Healthy", message = status.verdict or "" }
