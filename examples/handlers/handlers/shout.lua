-- A module returns the function that does a job. What it returns is the job's message, or further jobs.
return function(job)
  return {queue = "record", data = job.queue .. " " .. job.data:upper()}
end
