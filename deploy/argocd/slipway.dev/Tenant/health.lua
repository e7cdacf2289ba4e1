-- Health of a Tenant: gateways take its requests. One that spec.disabled switches off is suspended.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not read the last change of the spec yet" }
end

local ready = nil
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    ready = condition
  end
end

if ready == nil or ready.status == "Unknown" then
  return { status = "Progressing", message = ready ~= nil and ready.message or "" }
end
if ready.status == "True" then
  return { status = "Healthy", message = ready.message }
end
if ready.reason == "Disabled" then
  return { status = "Suspended", message = ready.message }
end
return { status = "Degraded", message = ready.reason .. ": " .. ready.message }
