// Calls that take long by a number of the caller's choice: nobody else in the sandbox may have to wait for their end. While each of them
// runs, another thread makes short calls and notes the longest one.
//
//   long [MIB [MOST_MS]]     every call, with MIB (64) MiB; one PASS or FAIL line each; exit code = those that kept others waiting for
//                            more than MOST_MS (50)
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static _Atomic uint64_t longest_us, calls;
static _Atomic bool looking;
static void *looks(void *arg) {
    for (;;) {
        uint64_t before = now_us();
        syscall(SYS_getppid);
        uint64_t took = now_us() - before;
        if (looking && took > longest_us) longest_us = took;
        calls++;
        while (now_us() < before + took + 200) {} // not asleep: whoever wakes it would be waited for too
    }
    return arg;
}

static size_t bytes;
static char *area;   // `bytes` that are there
static int object;   // a memfd of so many
static char name[] = "/tmp/long-XXXXXX";
static int file = -1;

static long all(ssize_t (*call)(size_t), size_t length) { // short counts are fine
    for (size_t done = 0; done < length;) {
        ssize_t n = call(length - done);
        if (n <= 0) return -1;
        done += n;
    }
    return 0;
}
static ssize_t random_bytes(size_t n) { return getrandom(area, n, 0); }
static ssize_t writes(size_t n) { return write(object, area, n); }
static ssize_t reads(size_t n) { return read(object, area, n); }
static ssize_t zeros(size_t n) {
    static int fd = -1;
    if (fd < 0) fd = open("/dev/zero", O_RDONLY);
    return read(fd, area, n);
}
static ssize_t file_writes(size_t n) { return write(file, area, n); }
static ssize_t file_reads(size_t n) { return read(file, area, n); }
static ssize_t remote_reads(size_t n) {
    struct iovec to = { area, n / 2 }, from = { area + n / 2, n / 2 };
    return n < 4096 ? (ssize_t)n : 2 * process_vm_readv(getpid(), &to, 1, &from, 1, 0);
}
static ssize_t sends(size_t n) { off_t zero = 0; return sendfile(file, object, &zero, n); }

static long do_random(void) { return all(random_bytes, bytes); }
static long do_write(void) { return ftruncate(object, 0) + lseek(object, 0, SEEK_SET) + all(writes, bytes); }
static long do_read(void) { return lseek(object, 0, SEEK_SET) + all(reads, bytes); }
static long do_zero(void) { return all(zeros, bytes); }
static long do_file_write(void) { return lseek(file, 0, SEEK_SET) + all(file_writes, bytes); }
static long do_file_read(void) { return lseek(file, 0, SEEK_SET) + all(file_reads, bytes); }
static long do_remote(void) { return all(remote_reads, bytes); }
static long do_send(void) { lseek(file, 0, SEEK_SET); return all(sends, bytes); }
static long do_shorten(void) { return ftruncate(object, 0); }
static long do_fallocate(void) { return fallocate(object, 0, 0, bytes); }
static long do_punch(void) { return fallocate(object, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes); }
static long do_mincore(void) { // what it says of terabytes goes to the same memory again and again
    enum { TIMES = 8 };
    size_t pages = TIMES * bytes, length = pages * 4096;
    char *huge = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *says = mmap(NULL, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (huge == MAP_FAILED || says == MAP_FAILED) return -1;
    for (int i = 0; i < TIMES; i++)
        if (mmap(says + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, object, 0) == MAP_FAILED) return -1;
    return mincore(huge, length, says) + munmap(huge, length) + munmap(says, pages);
}
static long do_poll(void) {
    struct rlimit limit = { 1 << 20, 1 << 20 };
    int ends[2];
    setrlimit(RLIMIT_NOFILE, &limit); // who may not keeps what there is
    if (getrlimit(RLIMIT_NOFILE, &limit) || pipe(ends)) return -1;
    nfds_t count = limit.rlim_cur < bytes / sizeof(struct pollfd) ? limit.rlim_cur : bytes / sizeof(struct pollfd);
    if (count > 1 << 20) count = 1 << 20;
    struct pollfd *fds = (void *)area;
    for (nfds_t i = 0; i < count; i++) fds[i] = (struct pollfd){ i % 16 ? ends[0] : -1, POLLIN, 0 };
    long n = poll(fds, count, 1);
    memset(area, 1, count * sizeof *fds);
    return n + close(ends[0]) + close(ends[1]);
}
static char *more;
static long do_populate(void) {
    more = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return more == MAP_FAILED ? -1 : 0;
}
static long do_fork(void) {
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}
static long do_protect(void) { return mprotect(more, bytes, PROT_READ) + mprotect(more, bytes, PROT_READ | PROT_WRITE); }
static long do_stripes(void) {
    for (size_t at = 0; at < bytes && at < 16 << 20; at += 8192) if (madvise(more + at, 4096, MADV_DONTNEED)) return -1;
    return 0;
}
static long do_lock(void) { return mlock(more, bytes) && errno != ENOMEM && errno != EPERM ? -1 : 0; }
static long do_move(void) {
    munlock(more, bytes);
    char *moved = mremap(more, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x100000000000);
    if (moved == MAP_FAILED) return -1;
    more = moved;
    return 0;
}
static long do_discard(void) { return madvise(more, bytes, MADV_DONTNEED); }
static long do_unmap(void) { return munmap(more, bytes); }
static long do_exit(void) {
    pid_t pid = fork();
    if (pid == 0) {
        do_populate();
        _exit(0);
    }
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}
static long do_directory(void) {
    char dir[] = "/dev/shm/long-XXXXXX", path[64];
    if (!mkdtemp(dir)) return -1;
    int made = 0;
    for (; made < 20000; made++) {
        snprintf(path, sizeof path, "%s/%d", dir, made);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        if (fd < 0) break;
        close(fd);
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    while (syscall(SYS_getdents64, fd, area, bytes) > 0) {}
    close(fd);
    for (int i = 0; i < made; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        unlink(path);
    }
    return rmdir(dir);
}
static long do_stream(void) { // as much as a socket takes at once
    int pair[2], size = 1 << 30;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return -1;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    long n = write(pair[0], area, bytes);
    close(pair[0]), close(pair[1]);
    return n > 0 ? 0 : -1;
}

static const struct { const char *name; long (*run)(void); } attacks[] = {
    { "getrandom", do_random }, { "write", do_write }, { "read", do_read }, { "dev_zero", do_zero }, { "file_write", do_file_write },
    { "file_read", do_file_read }, { "process_vm_readv", do_remote }, { "sendfile", do_send },
    { "ftruncate", do_shorten }, { "fallocate", do_fallocate }, { "mincore", do_mincore }, { "poll", do_poll },
    { "punch", do_punch },
    { "populate", do_populate }, { "fork", do_fork }, { "mprotect", do_protect }, { "stripes", do_stripes }, { "mlock", do_lock }, { "mremap", do_move }, { "madvise", do_discard },
    { "munmap", do_unmap }, { "exit", do_exit }, { "directory", do_directory }, { "stream", do_stream },
};

int main(int argc, char **argv) {
    uint64_t most_us = (argc > 2 ? atoi(argv[2]) : 50) * 1000ull;
    int failures = 0;
    bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
    setvbuf(stdout, NULL, _IOLBF, 0);
    area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(area, 1, bytes);
    object = memfd_create("long", 0);
    file = mkstemp(name);
    if (area == MAP_FAILED || object < 0 || file < 0) return 3;
    unlink(name);
    pthread_t thread;
    pthread_create(&thread, NULL, looks, NULL);
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        longest_us = 0;
        looking = true;
        usleep(20000);
        errno = 0;
        uint64_t before = now_us();
        long result = attacks[i].run();
        uint64_t took = now_us() - before;
        int error = errno;
        // The one that it waits in now counts too.
        for (uint64_t seen = calls; calls < seen + 2;) {}
        looking = false;
        bool fails = longest_us > most_us || result < 0;
        failures += fails;
        printf("%s %s: %.1f ms, and others waited for %.1f ms", fails ? "FAIL" : "PASS", attacks[i].name, took / 1e3, longest_us / 1e3);
        if (result < 0) printf(" (%s)", strerror(error));
        printf("\n");
    }
    return failures;
}
