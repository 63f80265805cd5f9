<?php
// So many bytes, a mebibyte at a time, which are those of md5.php.
$left = (int) $_GET['bytes'];
if (isset($_GET['length'])) {
    header("Content-Length: $left");
}
$block = str_repeat(implode('', array_map('chr', range(0, 255))), 4096);
while ($left > 0 && !connection_aborted()) {
    echo substr($block, 0, $left);
    flush();
    $left -= strlen($block);
}
