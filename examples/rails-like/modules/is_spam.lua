-- One comment: its text is in the data, the record is what the job is about.
return function(job)
  local text = windlass.decode(job.data).text
  if text:find("???", 1, true) then windlass.fail("cannot tell whether comment " .. job.subject_id .. " is spam") end
  if text:lower():find("buy now", 1, true) then windlass.emit("hide", {id = job.subject_id}) end
end
