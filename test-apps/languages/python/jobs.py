"""What Python programs do with processes, threads and memory; prints only what is the same each time."""
import asyncio
import concurrent.futures
import hashlib
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading


def square(n):
    return n * n


def processes():
    with multiprocessing.Pool(4) as pool:
        return sum(pool.map(square, range(2000)))


def fill(name, n):
    block = multiprocessing.shared_memory.SharedMemory(name)
    block.buf[n * 4096:(n + 1) * 4096] = bytes([n]) * 4096
    block.close()


def shared_memory():
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=64 * 4096)
    try:
        with concurrent.futures.ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(fill, [block.name] * 64, range(64)))
        return hashlib.sha256(block.buf).hexdigest()
    finally:
        block.close()
        block.unlink()


def threads():
    counted, lock, turn = [0], threading.Lock(), threading.Barrier(16)

    def work():
        turn.wait()
        for _ in range(5000):
            with lock:
                counted[0] += 1

    started = [threading.Thread(target=work) for _ in range(16)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    return counted[0]


async def echo(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()


async def ask(path, n):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"{n}\n".encode())
    answer = int(await reader.readline())
    writer.close()
    return answer


async def loops(directory):
    path = os.path.join(directory, "socket")
    server = await asyncio.start_unix_server(echo, path)
    async with server:
        answers = await asyncio.gather(*(ask(path, n) for n in range(100)))
    child = await asyncio.create_subprocess_exec("sort", "-n", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = await child.communicate("\n".join(str(n) for n in reversed(range(1000))).encode())
    return sum(answers), hashlib.sha256(out).hexdigest()


def database(directory):
    path = os.path.join(directory, "data.db")
    with sqlite3.connect(path) as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table t(n integer primary key, text)")
        db.executemany("insert into t values(?, ?)", ((n, f"row {n}") for n in range(5000)))
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('select sum(n), count(text) from t').fetchone())"
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout.strip()


def mapping(directory):
    path = os.path.join(directory, "mapped")
    with open(path, "wb+") as f:
        f.truncate(1 << 20)
        with mmap.mmap(f.fileno(), 0) as m:
            for n in range(0, 1 << 20, 4096):
                m[n:n + 8] = n.to_bytes(8, "little")
            m.flush()
        f.seek(0)
        return hashlib.sha256(f.read()).hexdigest()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print("processes", processes())
        print("shared memory", shared_memory())
        print("threads", threads())
        print("asyncio", *asyncio.run(loops(scratch)))
        print("sqlite", database(scratch))
        print("mmap", mapping(scratch))
