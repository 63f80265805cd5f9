<?php
if (isset($_GET['location'])) {
    header('Location: ' . $_GET['location']);
    exit;
}
http_response_code((int) $_GET['status']);
header('ETag: "x"');
echo 'content';
