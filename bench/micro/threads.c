// Work of many threads, and of few that share much. Prints one JSON object: milliseconds of wall time for each job; for those
// that end in _beside how much longer an operation takes where another thread makes the same (1: it is not noticed; 2: as if
// they took turns).
//   threads [JOB...]    (default: all)
//   threads --true      exits at once; the program that the fork + exec job executes
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 300, PAGE = 4096, SMALL = 64 << 10, LARGE = 256 << 10, SCALE_MS = 250, STACK = 64 << 10 };

// Runs `work` in `count` threads at once: seconds until the last one has ended.
static double in_threads(int count, void *(*work)(void *)) {
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    double began = now();
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attr, work, (void *)(intptr_t)i)) die("pthread_create");
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    double took = now() - began;
    free(threads);
    return took;
}

static char *map(size_t length) {
    char *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("mmap");
    return p;
}

static void touch(volatile char *p, size_t length) {
    for (size_t at = 0; at < length; at += PAGE) p[at] = 1;
}

static void *map_touch_unmap(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        char *p = map(SMALL);
        touch(p, SMALL);
        munmap(p, SMALL);
    }
    return NULL;
}

static void *touch_dontneed(void *unused) {
    (void)unused;
    char *p = map(LARGE);
    for (int i = 0; i < ROUNDS; i++) {
        touch(p, LARGE);
        if (madvise(p, LARGE, MADV_DONTNEED)) die("madvise");
        if (p[LARGE / 2]) die("MADV_DONTNEED left something");
    }
    munmap(p, LARGE);
    return NULL;
}

static double mmap_1(void) { return in_threads(1, map_touch_unmap); }
static double mmap_64(void) { return in_threads(64, map_touch_unmap); }
static double dontneed_1(void) { return in_threads(1, touch_dontneed); }
static double dontneed_8(void) { return in_threads(8, touch_dontneed); }
static double dontneed_64(void) { return in_threads(64, touch_dontneed); }

// Threads made while all live.
static pthread_barrier_t all_are_there;

static void *wait_for_all(void *unused) {
    (void)unused;
    pthread_barrier_wait(&all_are_there);
    return NULL;
}

static double threads_2000(void) {
    pthread_barrier_init(&all_are_there, NULL, 2000);
    return in_threads(2000, wait_for_all);
}

// Mappings that cannot be joined.
static double mappings_10000(void) {
    enum { COUNT = 10000 };
    double began = now();
    char **all = calloc(COUNT, sizeof *all);
    for (int i = 0; i < COUNT; i++) {
        all[i] = mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all[i] == MAP_FAILED) die("mmap");
    }
    for (int i = 0; i < COUNT; i++) munmap(all[i], PAGE);
    free(all);
    return now() - began;
}

// A byte at a time from one process to another that reads what is there.
static double pipe_writes(void) {
    int fds[2];
    if (pipe(fds)) die("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        char buffer[65536];
        close(fds[1]);
        while (read(fds[0], buffer, sizeof buffer) > 0) {}
        _exit(0);
    }
    close(fds[0]);
    double began = now();
    for (int i = 0; i < 100000; i++)
        if (write(fds[1], "x", 1) != 1) die("write");
    close(fds[1]);
    waitpid(pid, NULL, 0);
    return now() - began;
}

static double tcp_round_trips(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1) || getsockname(listener, (void *)&at, &length)) die("listen");
    pid_t pid = fork();
    char c = 'x';
    if (pid == 0) {
        int s = accept(listener, NULL, NULL);
        setsockopt(s, IPPROTO_TCP, 1, &one, sizeof one);
        while (read(s, &c, 1) == 1)
            if (write(s, &c, 1) != 1) break;
        _exit(0);
    }
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (void *)&at, sizeof at)) die("connect");
    setsockopt(s, IPPROTO_TCP, 1, &one, sizeof one);
    double began = now();
    for (int i = 0; i < 5000; i++)
        if (write(s, &c, 1) != 1 || read(s, &c, 1) != 1) die("round trip");
    double took = now() - began;
    close(s);
    close(listener);
    waitpid(pid, NULL, 0);
    return took;
}

static double fork_exec_100(void) {
    double began = now();
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", "threads", "--true", (char *)NULL);
            _exit(127);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status) die("exec");
    }
    return now() - began;
}

// Two threads against one: operations of each until the time is over.
static void (*operation)(int fds[2]);
static atomic_int go_on;
static atomic_long operations;

static void *repeat(void *unused) {
    (void)unused;
    int fds[2] = {-1, -1};
    long done = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) die("socketpair");
    while (atomic_load_explicit(&go_on, memory_order_relaxed)) {
        for (int i = 0; i < 16; i++) operation(fds);
        done += 16;
    }
    atomic_fetch_add(&operations, done);
    close(fds[0]), close(fds[1]);
    return NULL;
}

static void *clock_of(void *unused) {
    (void)unused;
    struct timespec t = {0, SCALE_MS * 1000000L};
    nanosleep(&t, NULL);
    atomic_store(&go_on, 0);
    return NULL;
}

static double rate(int count) {
    pthread_t threads[2], clock;
    atomic_store(&go_on, 1);
    atomic_store(&operations, 0);
    double began = now();
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, repeat, NULL);
    pthread_create(&clock, NULL, clock_of, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    double took = now() - began;
    pthread_join(clock, NULL);
    return (double)atomic_load(&operations) / took;
}

static void do_getppid(int fds[2]) { (void)fds; syscall(SYS_getppid); }
static void do_read(int fds[2]) {
    static int zero = -1;
    (void)fds;
    char c;
    if (zero < 0) zero = open("/dev/zero", O_RDONLY);
    if (read(zero, &c, 1) != 1) die("read");
}
static void do_open(int fds[2]) {
    (void)fds;
    int fd = open("/etc/passwd", O_RDONLY);
    if (fd < 0) die("open");
    close(fd);
}
static void do_socketpair(int fds[2]) {
    char c = 'x';
    if (write(fds[0], &c, 1) != 1 || read(fds[1], &c, 1) != 1) die("socketpair");
}
static void do_futex(int fds[2]) {
    int word;
    (void)fds;
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static double beside(void (*what)(int[2])) {
    // In turns, as the machine's speed changes.
    double one = 0, two = 0;
    operation = what;
    for (int i = 0; i < 3; i++) one += rate(1), two += rate(2);
    return 2 * one / two;
}
static double getppid_beside(void) { return beside(do_getppid); }
static double read_beside(void) { return beside(do_read); }
static double open_beside(void) { return beside(do_open); }
static double socketpair_beside(void) { return beside(do_socketpair); }
static double futex_beside(void) { return beside(do_futex); }

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--true") == 0) return 0;
    static const struct { const char *name; double (*run)(void); } jobs[] = {
        {"mmap_1", mmap_1}, {"mmap_64", mmap_64}, {"dontneed_1", dontneed_1}, {"dontneed_8", dontneed_8},
        {"dontneed_64", dontneed_64}, {"threads_2000", threads_2000}, {"mappings_10000", mappings_10000},
        {"pipe_writes", pipe_writes}, {"tcp_round_trips", tcp_round_trips}, {"fork_exec_100", fork_exec_100},
        {"getppid_beside", getppid_beside}, {"read_beside", read_beside}, {"open_beside", open_beside},
        {"socketpair_beside", socketpair_beside}, {"futex_beside", futex_beside},
    };
    int printed = 0;
    printf("{");
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        int wanted = argc == 1;
        for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], jobs[i].name) == 0;
        if (!wanted) continue;
        double value = jobs[i].run();
        int is_ratio = strstr(jobs[i].name, "_beside") != NULL;
        printf("%s\"%s\": %.3f", printed++ ? ", " : "", jobs[i].name, is_ratio ? value : value * 1e3);
        fflush(stdout);
    }
    printf("}\n");
    return 0;
}
