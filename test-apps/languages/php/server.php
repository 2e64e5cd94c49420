<?php
// Rows by PHP's own server, whose processes each have a share of the connections.
if (!preg_match('#^/row/(\d+)$#', $_SERVER['REQUEST_URI'], $found)) {
    http_response_code(404);
    return;
}
$rows = [];
for ($n = 0; $n < 20000; $n++) {
    $rows[] = "row $n";
}
echo $rows[(int) $found[1]];
