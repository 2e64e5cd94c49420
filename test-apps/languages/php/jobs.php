<?php
// What PHP programs do with processes, sockets, files and a database; prints only what is the same each time.
function mandelbrot(int $size): int
{
    $inside = 0;
    for ($y = 0; $y < $size; $y++) {
        for ($x = 0; $x < $size; $x++) {
            $cr = 2.0 * $x / $size - 1.5;
            $ci = 2.0 * $y / $size - 1.0;
            $zr = $zi = 0.0;
            $i = 0;
            while ($i++ < 50 && $zr * $zr + $zi * $zi < 4.0) {
                [$zr, $zi] = [$zr * $zr - $zi * $zi + $cr, 2.0 * $zr * $zi + $ci];
            }
            $inside += $i > 50 ? 1 : 0;
        }
    }
    return $inside;
}

echo 'compiled ', mandelbrot(200), "\n";
if (function_exists('opcache_get_status')) {
    echo 'jit ', json_encode(opcache_get_status(false)['jit']['on']), "\n";
}

[$here, $there] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
$children = [];
for ($n = 0; $n < 8; $n++) {
    $pid = pcntl_fork();
    if ($pid === 0) {
        fwrite($there, pack('N', $n * $n));
        exit($n);
    }
    $children[] = $pid;
}
fclose($there);
$statuses = array_map(function ($pid) {
    pcntl_waitpid($pid, $status);
    return pcntl_wexitstatus($status);
}, $children);
echo 'fork ', array_sum($statuses), ' ', array_sum(unpack('N*', stream_get_contents($here))), "\n";

$scratch = sys_get_temp_dir() . '/jobs-' . getmypid();
mkdir($scratch);
$db = new PDO("sqlite:$scratch/data.db");
$db->exec('create table t(n integer primary key, text)');
$db->beginTransaction();
$insert = $db->prepare('insert into t values(?, ?)');
for ($n = 0; $n < 5000; $n++) {
    $insert->execute([$n, "row $n"]);
}
$db->commit();
echo 'sqlite ', implode(' ', $db->query('select sum(n), count(text) from t')->fetch(PDO::FETCH_NUM)), "\n";
unset($insert, $db);

$process = proc_open(['sort', '-n'], [['pipe', 'r'], ['pipe', 'w']], $pipes);
fwrite($pipes[0], implode("\n", range(500, 1)));
fclose($pipes[0]);
echo 'process ', md5(stream_get_contents($pipes[1])), ' ', proc_close($process), "\n";

for ($n = 0; $n < 100; $n++) {
    file_put_contents("$scratch/file$n", "contents $n", LOCK_EX);
}
echo 'files ', md5(implode('', array_map('file_get_contents', glob("$scratch/file*")))), "\n";

pcntl_async_signals(true);
pcntl_signal(SIGALRM, function () {
    echo "alarm\n";
});
pcntl_alarm(1);
sleep(10);
array_map('unlink', glob("$scratch/*"));
rmdir($scratch);
