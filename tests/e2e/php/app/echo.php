<?php
// Its content, as it comes.
header('Content-Type: application/octet-stream');
$content = fopen('php://input', 'rb');
while (!feof($content)) {
    echo fread($content, 8192);
    flush();
}
