# A kept worker: a line in, a line out.
$stdout.sync = true
while (line = $stdin.gets)
  line = line.chomp
  puts(line.start_with?("fail ", "retry ") ? line : "ok #{line.upcase}")
end
