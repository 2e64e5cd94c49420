// System-call micro-benchmarks. Prints one JSON object: nanoseconds for one operation, the median of several rounds.
//   micro [ROUND_MS]    (how long one round of one job should take, default 40)
//   micro --true        exits at once; the program that the fork + exec job executes
#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7, TOUCHED_PAGES = 1000 };

static char self_path[4096];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void job_getppid(long n) {
    for (long i = 0; i < n; i++) syscall(SYS_getppid);
}

static void job_read(long n) {
    int fd = open("/dev/zero", O_RDONLY);
    if (fd < 0) die("/dev/zero");
    char c;
    for (long i = 0; i < n; i++)
        if (read(fd, &c, 1) != 1) die("read");
    close(fd);
}

static void open_close(const char *path, long n) {
    for (long i = 0; i < n; i++) {
        int fd = open(path, O_RDONLY);
        if (fd < 0) die(path);
        close(fd);
    }
}

static void job_open_close(long n) { open_close("/etc/passwd", n); }
static void job_open_close_tmp(long n) { open_close("/tmp/.quark-micro", n); }

static void job_mmap_touch(long n) {
    for (long i = 0; i < n; i++) {
        size_t length = TOUCHED_PAGES * 4096UL;
        char *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) die("mmap");
        for (size_t at = 0; at < length; at += 4096) p[at] = 1;
        munmap(p, length);
    }
}

static void job_huge_touch(long n) {
    for (long i = 0; i < n; i++) {
        size_t length = 32UL << 20, huge = 2UL << 20;
        char *p = mmap(NULL, length + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) die("mmap");
        char *aligned = (char *)(((uintptr_t)p + huge - 1) & ~(huge - 1));
        if (madvise(aligned, length, MADV_HUGEPAGE)) die("madvise");
        for (size_t at = 0; at < length; at += 4096) aligned[at] = 1;
        munmap(p, length + huge);
    }
}

static void job_pipe_round_trip(long n) {
    int there[2], back[2];
    if (pipe(there) || pipe(back)) die("pipe");
    pid_t pid = fork();
    if (pid < 0) die("fork");
    char c = 'x';
    if (pid == 0) {
        close(there[1]);
        while (read(there[0], &c, 1) == 1)
            if (write(back[1], &c, 1) != 1) break;
        _exit(0);
    }
    for (long i = 0; i < n; i++)
        if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1) die("round trip");
    close(there[0]), close(there[1]), close(back[0]), close(back[1]);
    waitpid(pid, NULL, 0);
}

static void job_fork_exec_wait(long n) {
    for (long i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) {
            execl(self_path, self_path, "--true", (char *)NULL);
            _exit(127);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) die("exec");
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(void (*job)(long), int64_t round_ns) {
    // How many operations fill a round.
    long n = 1;
    for (;;) {
        int64_t began = now_ns();
        job(n);
        int64_t took = now_ns() - began;
        if (took >= round_ns / 4 || n > 100000000) {
            n = (long)((double)n * (double)round_ns / (double)(took ? took : 1));
            break;
        }
        n *= 4;
    }
    if (n < 1) n = 1;
    double ns[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int64_t began = now_ns();
        job(n);
        ns[i] = (double)(now_ns() - began) / (double)n;
    }
    qsort(ns, ROUNDS, sizeof ns[0], compare);
    return ns[ROUNDS / 2];
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--true") == 0) return 0;
    int64_t round_ns = (argc > 1 ? atol(argv[1]) : 40) * 1000000LL;
    if (readlink("/proc/self/exe", self_path, sizeof self_path - 1) <= 0) strcpy(self_path, argv[0]);
    int fd = open("/tmp/.quark-micro", O_CREAT | O_WRONLY, 0600);
    if (fd < 0) die("/tmp/.quark-micro");
    close(fd);
    static const struct { const char *name; void (*run)(long); } jobs[] = {
        {"getppid", job_getppid},         {"read_zero", job_read},          {"open_close", job_open_close},
        {"mmap_touch", job_mmap_touch},   {"pipe_round_trip", job_pipe_round_trip}, {"fork_exec_wait", job_fork_exec_wait},
        {"open_close_tmp", job_open_close_tmp}, {"huge_touch", job_huge_touch},
    };
    printf("{");
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        printf("%s\"%s\": %.1f", i ? ", " : "", jobs[i].name, measure(jobs[i].run, round_ns));
        fflush(stdout);
    }
    printf("}\n");
    unlink("/tmp/.quark-micro");
    return 0;
}
