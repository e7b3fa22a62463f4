<?php
// A kept worker: a line in, a line out.
while (($line = fgets(STDIN)) !== false) {
    $line = rtrim($line, "\n");
    if (preg_match('/^(fail|retry) /', $line)) {
        echo $line, "\n";
    } else {
        echo "ok ", strtoupper($line), "\n";
    }
    flush();
}
