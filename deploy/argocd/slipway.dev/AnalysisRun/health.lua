-- Health of an AnalysisRun, which the operator makes. It has no verdict of its own end: its ModelDeployment has.
local verdict = obj.status ~= nil and obj.status.verdict or nil
if verdict == nil then
  return { status = "Progressing", message = "nothing is counted yet" }
end
local words = { Pass = "Healthy", Fail = "Degraded" }
return { status = words[verdict.outcome] or "Progressing", message = verdict.message or "" }
