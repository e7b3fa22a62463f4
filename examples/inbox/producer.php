<?php
// Pushes COUNT jobs into a Windlass inbox, one append under flock each: no server, no library.
// usage: php producer.php INBOX QUEUE COUNT
[, $inbox, $queue, $count] = $argv;
// PHP's core cannot ask for the user id without an extension: a file of our own has it as its owner.
$uid = function_exists('posix_geteuid') ? posix_geteuid() : fileowner('/proc/self');
$file = fopen("$inbox/$uid", 'ab') ?: exit(1);
stream_set_write_buffer($file, 0);
for ($n = 1; $n <= $count; $n++) {
    // CAN LF in front ends whatever a torn write of somebody else left behind.
    $record = "\x18\n$queue\tphp $n\n";
    flock($file, LOCK_EX);
    $written = fwrite($file, $record);
    flock($file, LOCK_UN);
    if ($written !== strlen($record)) {
        fwrite(STDERR, "the disk is full: job $n was not accepted\n");
        exit(1);
    }
}
