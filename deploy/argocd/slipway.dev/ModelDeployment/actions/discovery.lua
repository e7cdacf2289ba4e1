-- Actions that fit the rollout, as the command line offers them. Their tokens are in the status, so a late click does nothing.
local status = obj.status or {}
local rollout = status.rollout
local state = rollout ~= nil and rollout.state or nil
local current = status.observedGeneration == obj.metadata.generation
local rejected = state == "Aborting" or state == "Aborted"
local first = state == "Initializing"
local paused = obj.spec.paused == true
local stepping = current and state ~= nil and not rejected and not first and state ~= "Promoting"

-- What served before: stable while another revision is in flight or rejected, else the one before stable.
local before = status.previousRevision
if rollout ~= nil and rollout.revision ~= status.stableRevision then
  before = status.stableRevision
end
local described = status.currentRevision
local back = before ~= nil and described ~= nil
if back and before == described then
  -- A rollback runs: to undo it goes to what the spec describes.
  back = status.stableRevision ~= described or (state ~= nil and not rejected)
elseif back and obj.spec.rollout ~= nil then
  back = obj.spec.rollout.rollbackTo ~= described .. "/" .. before
end

local actions = {}
local function offer(name, label, icon, fits)
  actions[name] = { displayName = label, iconClass = "fa fa-fw " .. icon, disabled = not fits }
end
offer("promote", "Promote: end this step", "fa-step-forward", stepping and not paused and (state == "Paused" or state == "Analyzing"))
offer("promote-full", "Promote: skip all steps", "fa-fast-forward", stepping)
offer("abort", "Abort", "fa-times", current and state ~= nil and not rejected and not first)
offer("retry", "Retry", "fa-redo", current and rejected and rollout.revision == status.currentRevision)
offer("undo", "Undo: run the former revision", "fa-undo", current and back)
offer("pause", "Pause", "fa-pause", not paused)
offer("resume", "Resume", "fa-play", paused)
return actions
