# A kept worker: a line in, a line out. Bytes, since data need not be text.
$stdin.binmode
$stdout.binmode
$stdout.sync = true
while (line = $stdin.gets)
  line = line.delete_suffix("\n")
  puts(line.start_with?("fail ", "retry ") ? line : "ok " + line.upcase(:ascii))
end
