<?php
// Says something, and the rest once a file is there.
if (!isset($_GET['silent'])) {
    echo "begun\n";
    flush();
}
for ($i = 0; $i < 2000 && !file_exists($_GET['for']); $i++) {
    clearstatcache();
    usleep(10000);
}
echo "done\n";
