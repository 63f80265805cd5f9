<?php
header('X-Method: ' . $_SERVER['REQUEST_METHOD']);
foreach ($_FILES as $name => $file) {
    echo $name, ' ', $file['name'], ' ', $file['size'], ' ', md5_file($file['tmp_name']), "\n";
}
foreach ($_POST as $name => $value) {
    echo $name, '=', $value, "\n";
}
