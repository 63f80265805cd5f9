<?php
// The front controller: what it was told, as JSON.
header('Content-Type: application/json');
$told = array_filter($_SERVER, fn ($name) => !in_array($name, ['argv', 'argc', 'PATH', 'HOME', 'USER']), ARRAY_FILTER_USE_KEY);
echo json_encode($told + ['body' => md5(file_get_contents('php://input'))], JSON_UNESCAPED_SLASHES);
