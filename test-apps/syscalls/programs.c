// Real programs of the distribution, unchanged: shells, text tools, archives, Python.
#include "harness.h"

// Runs a shell script; it must exit with 0 and print exactly this.
static void script(const char *text, const char *expected) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dup2(pipes[1], 1));
        close(pipes[0]);
        close(pipes[1]);
        execl("/bin/sh", "sh", "-eu", "-c", text, NULL);
        FAIL("exec of /bin/sh: %s", strerrorname_np(errno));
    }
    OK(close(pipes[1]));
    static char b[65536];
    size_t used = 0;
    for (ssize_t n; (n = OK(read(pipes[0], b + used, sizeof b - 1 - used))) > 0;) used += (size_t)n;
    b[used] = 0;
    expect_exit(pid, 0);
    STR_EQ(b, expected);
}

static void python(const char *text, const char *expected) {
    if (access("/usr/bin/python3", X_OK) == -1) skip_case("no /usr/bin/python3");
    write_file("program.py", text);
    script("exec /usr/bin/python3 program.py", expected);
}

CASE(shell_pipeline) { script("seq 1 1000 | grep 7 | sort -rn | head -3 | tr '\\n' ' '", "997 987 979 "); }
CASE(shell_loops_and_substitution) {
    script("t=0; for i in $(seq 1 50); do t=$((t + $(echo $i))); done; echo $t", "1275\n");
}
CASE(shell_redirection_and_here_document) {
    script("cat > f <<X\none\ntwo\nX\nwc -l < f; cat f >> f2; cat f f2 | md5sum | cut -c1-8", "2\n2b92065d\n");
}
CASE(shell_background_jobs) {
    script("sleep 0.05 & p=$!; (exit 3) & q=$!; wait $p; echo $?; r=0; wait $q || r=$?; echo $r", "0\n3\n");
}
CASE(shell_traps) { script("trap 'echo caught' USR1; kill -USR1 $$; echo after; trap 'echo bye' EXIT", "caught\nafter\nbye\n"); }
CASE(shell_many_processes) { script("i=0; while [ $i -lt 60 ]; do /bin/true; i=$((i+1)); done; echo $i", "60\n"); }

CASE(files_and_find) {
    script("mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3; chmod 600 a/1; find a -type f | sort; find a -perm 600 -name 1; cp -r a z; rm -r a; ls -R z | wc -l",
           "a/1\na/b/2\na/b/c/3\na/1\n10\n");
}
CASE(tar_and_gzip) {
    script("mkdir d; for i in 1 2 3; do seq 1 $((i * 1000)) > d/$i; done; ln -s 1 d/link; tar -czf d.tgz d; mv d old; tar -xzf d.tgz; "
           "diff -r d old && readlink d/link; gzip -t d.tgz && echo good",
           "1\ngood\n");
}
CASE(sed_awk_sort) {
    script("seq 1 200 | sed -n 's/^\\(.*\\)5$/\\1 five/p' | awk '{ n += $1 } END { print NR, n }'; printf 'b\\na\\nc\\n' | sort | tr -d '\\n'",
           "20 190\nabc");
}
CASE(dd_and_checksum) {
    script("dd if=/dev/zero of=z bs=64k count=32 2>/dev/null; sha256sum z | cut -c1-16; stat -c %s z", "5647f05ec1895894\n2097152\n");
}
CASE(environment_and_id) { script("env -i A=1 /usr/bin/env; id -u > /dev/null; uname -s", "A=1\nLinux\n"); }

CASE(python_basics) { python("import sys, os, json\nprint(json.dumps({'n': sum(range(10**5)), 'pid': os.getpid() > 0}))\n", "{\"n\": 4999950000, \"pid\": true}\n"); }
CASE(python_threads) {
    python("import threading, queue\nq = queue.Queue()\n"
           "def work(n):\n    for i in range(200): q.put(i * n)\n"
           "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
           "[t.start() for t in ts]; [t.join() for t in ts]\nprint(q.qsize(), sum(q.queue))\n",
           "1600 557200\n");
}
CASE(python_subprocess) {
    python("import subprocess\nr = subprocess.run(['tr', 'a-z', 'A-Z'], input='hello', capture_output=True, text=True)\nprint(r.stdout, r.returncode)\n"
           "p = subprocess.Popen(['sleep', '1000']); p.terminate(); print(p.wait())\n"
           "try: subprocess.run(['sleep', '1000'], timeout=0.05)\nexcept subprocess.TimeoutExpired: print('timeout')\n",
           "HELLO 0\n-15\ntimeout\n");
}
CASE(python_multiprocessing) {
    python("import multiprocessing as m\ndef f(x): return x * x\n"
           "if __name__ == '__main__':\n    with m.get_context('fork').Pool(3) as p: print(sum(p.map(f, range(100))))\n",
           "328350\n");
}
CASE(python_asyncio_server) {
    python("import asyncio\n"
           "async def serve(r, w):\n    w.write((await r.readline()).upper()); await w.drain(); w.close()\n"
           "async def ask(port, i):\n    r, w = await asyncio.open_connection('127.0.0.1', port)\n"
           "    w.write(b'line %d\\n' % i); d = await r.read(); w.close(); return d\n"
           "async def main():\n    s = await asyncio.start_server(serve, '127.0.0.1', 0)\n    port = s.sockets[0].getsockname()[1]\n"
           "    got = await asyncio.gather(*(ask(port, i) for i in range(50)))\n    print(len(got), got[7])\n"
           "asyncio.run(main())\n",
           "50 b'LINE 7\\n'\n");
}
CASE(python_http_server) {
    python("import http.server, threading, urllib.request\n"
           "class H(http.server.BaseHTTPRequestHandler):\n    wbufsize = -1\n    def do_GET(self):\n"
           "        b = self.path.encode(); self.send_response(200); self.send_header('Content-Length', str(len(b))); self.end_headers(); self.wfile.write(b)\n"
           "    def log_message(self, *a): pass\n"
           "s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H); threading.Thread(target=s.serve_forever, daemon=True).start()\n"
           "u = 'http://127.0.0.1:%d/' % s.server_address[1]\n"
           "print([urllib.request.build_opener(urllib.request.ProxyHandler({})).open(u + str(i)).read() for i in range(3)]); s.shutdown()\n",
           "[b'/0', b'/1', b'/2']\n");
}
CASE(python_mmap_and_files) {
    python("import mmap, tempfile, os\nf = tempfile.TemporaryFile(dir='.')\nf.truncate(10000)\nm = mmap.mmap(f.fileno(), 10000)\nm[5000:5005] = b'abcde'\n"
           "f.seek(5000); print(f.read(5)); print(len(os.listdir('/proc/self/fd')) > 3)\n",
           "b'abcde'\nTrue\n");
}
CASE(python_signals_and_timers) {
    python("import signal, time\nn = 0\ndef h(*a):\n    global n; n += 1\nsignal.signal(signal.SIGALRM, h)\nsignal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
           "while n < 5: time.sleep(0.001)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nprint('five')\n",
           "five\n");
}
CASE(python_sqlite) {
    python("import sqlite3\nc = sqlite3.connect('t.db')\nc.execute('create table t(a, b)')\nc.executemany('insert into t values(?, ?)', ((i, i * i) for i in range(500)))\n"
           "c.commit()\nprint(c.execute('select sum(b) from t where a % 3 = 0').fetchone()[0])\n",
           "13847139\n");
}
CASE(python_large_dictionary) {
    python("d = {i: ('%08d' % i) * 16 for i in range(100000)}\nimport gc; gc.collect()\nprint(len(d), sum(len(v) for v in d.values()))\n", "100000 12800000\n");
}
CASE(python_pty) {
    python("import pty, os\npid, fd = pty.fork()\nif pid == 0: os.execvp('sh', ['sh', '-c', 'tty > /dev/null && echo yes'])\n"
           "b = b''\ntry:\n    while True:\n        d = os.read(fd, 100)\n        if not d: break\n        b += d\nexcept OSError: pass\nprint(b, os.waitpid(pid, 0)[1])\n",
           "b'yes\\r\\n' 0\n");
}
