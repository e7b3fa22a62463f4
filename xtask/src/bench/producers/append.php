<?php
// Appends COUNT records of 100 bytes to PATH, each under its lock, and prints the seconds it took.
// `bare` writes the same bytes again and again; `push` writes jobs: queue, tab, data, line feed.
[, $what, $path, $count] = $argv;
$line = str_repeat('x', 99) . "\n";
$file = fopen($path, 'a') or exit(74);
$begun = hrtime(true);
for ($n = 0; $n < $count; $n++) {
    if ($what === 'push') {
        // The name may lead to another file by now; a late append is late, not lost.
        if ($n % 1000 === 999) {
            fclose($file);
            $file = fopen($path, 'a') or exit(74);
        }
        $line = str_pad("push\t$n ", 99, 'x') . "\n";
    }
    if (!flock($file, LOCK_EX) || fwrite($file, $line) !== 100 || !flock($file, LOCK_UN)) {
        exit(74);
    }
}
printf("%.9f\n", (hrtime(true) - $begun) / 1e9);
