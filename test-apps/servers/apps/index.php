<?php
$number = $_GET['row'] ?? null;
echo $number === null ? "hello from php\n" : 'row ' . (int) $number;
