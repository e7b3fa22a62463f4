-- What every tenant's queue has in common. Hidden files serve nothing themselves; links to this one do.
return function(job)
  return job.queue .. " " .. job.data
end
