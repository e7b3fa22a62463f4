#!/usr/bin/env ruby
# Pushes COUNT jobs into a Windlass inbox, one append under flock each: no server, no library.
# usage: producer.rb INBOX QUEUE COUNT
inbox, queue, count = ARGV
flags = File::WRONLY | File::APPEND | File::CREAT | File::NOFOLLOW
File.open(File.join(inbox, Process.euid.to_s), flags, 0o600) do |file|
  1.upto(count.to_i) do |n|
    # CAN LF in front ends whatever a torn write of somebody else left behind.
    record = "\x18\n#{queue}\trb #{n}\n"
    file.flock(File::LOCK_EX)
    written = file.syswrite(record)
    file.flock(File::LOCK_UN)
    abort "the disk is full: job #{n} was not accepted" if written != record.bytesize
  end
end
