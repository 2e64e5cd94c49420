// A very small test harness. Each program is a family of independent cases; each case runs in a child process of its own,
// in a scratch directory of its own, with a time limit that only a hang can reach. Output, one line a case:
//   ok NAME | skip NAME: why | FAIL NAME: why
// Usage: PROGRAM [--list | --direct CASE | CASE…]; --direct runs one case without a child, for debugging.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
};

void register_case(struct test_case *entry);
_Noreturn void fail_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void skip_case(const char *why);

#define CASE(name_)                                                                              \
    static void case_##name_(void);                                                              \
    static struct test_case entry_##name_ = {#name_, case_##name_, NULL};                        \
    __attribute__((constructor)) static void register_##name_(void) { register_case(&entry_##name_); } \
    static void case_##name_(void)

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
// The condition holds.
#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) FAIL("%s (errno %s)", #condition, strerrorname_np(errno)); \
    } while (0)
// The call does not return -1; its value.
#define OK(call)                                                                \
    ({                                                                          \
        __auto_type ok_ = (call);                                               \
        if ((long)ok_ == -1) FAIL("%s: %s", #call, strerrorname_np(errno));     \
        ok_;                                                                    \
    })
// The call returns -1 with this errno.
#define ERR(call, errno_)                                                                                     \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        long err_ = (long)(call);                                                                             \
        if (err_ != -1) FAIL("%s gave %ld, expected %s", #call, err_, #errno_);                               \
        if (errno != (errno_)) FAIL("%s: %s, expected %s", #call, strerrorname_np(errno), #errno_);           \
    } while (0)
// Two integers are equal.
#define EQ(a, b)                                                                             \
    do {                                                                                     \
        long long a_ = (long long)(a), b_ = (long long)(b);                                  \
        if (a_ != b_) FAIL("%s is %lld (%#llx), expected %s = %lld", #a, a_, a_, #b, b_);    \
    } while (0)
// The call returns 0 (pthread style: else the error number).
#define ZERO(call)                                                                     \
    do {                                                                               \
        int zero_ = (call);                                                            \
        if (zero_ != 0) FAIL("%s gave %d (%s)", #call, zero_, strerrorname_np(zero_)); \
    } while (0)
// The two strings are equal.
#define STR_EQ(a, b)                                                                    \
    do {                                                                                \
        const char *sa_ = (a), *sb_ = (b);                                              \
        if (strcmp(sa_, sb_) != 0) FAIL("%s is \"%s\", expected \"%s\"", #a, sa_, sb_); \
    } while (0)
// Waits (bounded by the case's time limit only) until the condition holds.
#define WAIT_UNTIL(condition)  \
    do {                       \
        while (!(condition)) sleep_ms(1); \
    } while (0)

void sleep_ms(long ms);
int64_t now_ns(clockid_t clock);
// Waits for the child and fails unless it exited with this code, or was killed by this signal.
void expect_exit(pid_t pid, int code);
void expect_killed(pid_t pid, int signo);
// Blocks a signal for this thread.
void block_signal(int signo);
// The next signal `signo`, which is blocked, within `ms`; false if none came.
bool signal_within(int signo, siginfo_t *info, int ms);
// None comes for a while.
void expect_no_signal(int signo);
// Has a child without rights do something.
#define AS_NOBODY(...)                 \
    do {                               \
        pid_t pid_ = OK(fork());       \
        if (pid_ == 0) {               \
            OK(setgid(1000));          \
            OK(setuid(1000));          \
            __VA_ARGS__;               \
            _exit(0);                  \
        }                              \
        expect_exit(pid_, 0);          \
    } while (0)
// Mounts of this case stay its own, where there is more than one mount namespace to be had.
void own_mounts(void);
// Opens a file for reading and writing that is empty, and new if need be.
int create(const char *path);
// Creates a file with these contents, fails on error.
void write_file(const char *path, const char *contents);
// Reads at most size - 1 bytes of a file and ends them with NUL; the count.
size_t read_file(const char *path, char *buffer, size_t size);
// The state letter of a process in /proc/PID/stat, 0 when there is none.
char process_state(pid_t pid);
// The program's own path, for re-executing it with a sub-command.
extern char self_path[PATH_MAX];
// A program may define this: called before anything else; a value >= 0 ends the program with it.
int helper_main(int argc, char **argv) __attribute__((weak));
