// Memory objects that lose pages while they are mapped: ftruncate, truncate, O_TRUNC, fallocate with holes. What is gone is gone from
// every mapping when the call returns, also for threads and processes that only compute, and nobody ever sees a page that has
// become somebody else's.
#include "harness.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

enum { PAGE = 4096, PAGES = 16 };

struct board {
    atomic_uint step, seen;
    atomic_ulong value;
};

static struct board *board_of(void) {
    return OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

static int object_of(int pages, int c) {
    int fd = OK(memfd_create("shrink", 0));
    char page[PAGE];
    memset(page, c, sizeof page);
    for (int i = 0; i < pages; i++) EQ(write(fd, page, PAGE), PAGE);
    return fd;
}

static char *mapped(int fd, int pages, int flags) {
    return OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0));
}

static sigjmp_buf back;
static void on_fault(int signo) { siglongjmp(back, signo); }

static void catch_faults(void) {
    struct sigaction a = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    OK(sigaction(SIGSEGV, &a, NULL));
    OK(sigaction(SIGBUS, &a, NULL));
}

// A child that makes no system call: touches the object's page 8, says so, then reads it until the parent's step is 2, and then once more.
static pid_t reader(int fd, struct board *board, int flags) {
    pid_t pid = OK(fork());
    if (pid != 0) return pid;
    catch_faults();
    volatile char *at = mapped(fd, PAGES, flags) + 8 * PAGE;
    board->value = *at;
    board->step = 1;
    // It may be gone as soon as the parent takes it away.
    volatile int signo = sigsetjmp(back, 1);
    while (signo == 0 && board->step != 2) (void)*at;
    while (board->step != 2) {}
    board->value = signo == 0 ? (unsigned long)*at : 1000ul + (unsigned)signo;
    board->seen = 1;
    for (;;) pause();
}

static unsigned long after(struct board *board) {
    board->step = 2;
    WAIT_UNTIL(board->seen == 1);
    return board->value;
}

static void end(pid_t pid) {
    OK(kill(pid, SIGKILL));
    EQ(OK(waitpid(pid, NULL, 0)), pid);
}

CASE(ftruncate_reaches_another_process_that_computes) {
    struct board *board = board_of();
    int fd = object_of(PAGES, 'x');
    pid_t pid = reader(fd, board, MAP_SHARED);
    WAIT_UNTIL(board->step == 1);
    EQ(board->value, 'x');
    OK(ftruncate(fd, 4 * PAGE));
    EQ(after(board), 1000 + SIGBUS);
    end(pid);
}

CASE(a_hole_reaches_another_process_that_computes) {
    struct board *board = board_of();
    int fd = object_of(PAGES, 'x');
    pid_t pid = reader(fd, board, MAP_SHARED);
    WAIT_UNTIL(board->step == 1);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8 * PAGE, PAGE));
    EQ(after(board), 0);
    end(pid);
}

CASE(o_trunc_reaches_another_process_that_computes) {
    struct board *board = board_of();
    int fd = object_of(PAGES, 'x');
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    pid_t pid = reader(fd, board, MAP_SHARED);
    WAIT_UNTIL(board->step == 1);
    OK(close(OK(open(path, O_RDWR | O_TRUNC))));
    EQ(after(board), 1000 + SIGBUS);
    end(pid);
}

CASE(a_private_reader_sees_a_hole) {
    struct board *board = board_of();
    int fd = object_of(PAGES, 'x');
    pid_t pid = reader(fd, board, MAP_PRIVATE);
    WAIT_UNTIL(board->step == 1);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE));
    EQ(after(board), 0);
    end(pid);
}

CASE(a_hole_leaves_private_copies_truncation_does_not) {
    catch_faults();
    int fd = object_of(PAGES, 'x');
    volatile char *p = mapped(fd, PAGES, MAP_PRIVATE);
    p[PAGE] = 'w';
    EQ(p[2 * PAGE], 'x');
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE));
    EQ(p[PAGE], 'w');
    EQ(p[2 * PAGE], 0);
    OK(ftruncate(fd, PAGE));
    EQ(p[0], 0);
    int signo = sigsetjmp(back, 1);
    if (signo == 0) FAIL("%d is there", p[PAGE]);
    EQ(signo, SIGBUS);
}

CASE(a_locked_mapping_loses_its_pages_too) {
    catch_faults();
    int fd = object_of(2, 'x');
    volatile char *p = mapped(fd, 2, MAP_SHARED);
    if (mlock((void *)p, 2 * PAGE) != 0) skip_case("mlock is not allowed");
    OK(ftruncate(fd, PAGE));
    int signo = sigsetjmp(back, 1);
    if (signo == 0) FAIL("%d is there", p[PAGE]);
    EQ(signo, SIGBUS);
}

CASE(zero_range_zeros_for_all) {
    struct board *board = board_of();
    int fd = object_of(PAGES, 'x');
    pid_t pid = reader(fd, board, MAP_SHARED);
    WAIT_UNTIL(board->step == 1);
    if (fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, PAGES * PAGE) != 0) {
        end(pid);
        EQ(errno, EOPNOTSUPP);
        skip_case("this file system has no FALLOC_FL_ZERO_RANGE");
    }
    EQ(after(board), 0);
    end(pid);
}

// ---- races: threads touch while others take away; a process besides fills fresh pages with words of its own ----------

enum { RACERS = 4 };

struct race {
    char *at;
    int fd;
    atomic_bool stop;
    // The only words that a page of ours can hold, and what was seen besides.
    unsigned long own;
    atomic_ulong strange;
};

static void look(struct race *race, volatile unsigned long *word) {
    unsigned long seen = *word;
    if (seen != 0 && seen != race->own) race->strange = seen;
}

static __thread sigjmp_buf thread_back;
static void on_thread_fault(int signo) { siglongjmp(thread_back, 1); }

static void *toucher(void *arg) {
    struct race *race = arg;
    unsigned at = (unsigned)(uintptr_t)&at;
    while (!race->stop) {
        at = at * 1103515245 + 12345;
        volatile unsigned long *word = (void *)(race->at + (at >> 8) % PAGES * PAGE + (at >> 20) % 512 * 8);
        if (sigsetjmp(thread_back, 1) != 0) continue;
        look(race, word);
        if (at & 64) *word = race->own;
    }
    return NULL;
}

static void quiet_faults(void) {
    struct sigaction a = {.sa_handler = on_thread_fault, .sa_flags = SA_NODEFER};
    OK(sigaction(SIGSEGV, &a, NULL));
    OK(sigaction(SIGBUS, &a, NULL));
}

// Another process that takes whatever pages are free and marks them as its own.
static pid_t taker(unsigned long mark) {
    pid_t pid = OK(fork());
    if (pid != 0) return pid;
    for (;;) {
        unsigned long *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) continue;
        for (int i = 0; i < 64 * PAGE / 8; i++) {
            if (p[i] != 0) _exit(1);
            p[i] = mark;
        }
        for (int i = 0; i < 64 * PAGE / 8; i++)
            if (p[i] != mark) _exit(2);
        munmap(p, 64 * PAGE);
    }
}

static void run_race(struct race *race, void (*take_away)(struct race *), int rounds) {
    quiet_faults();
    race->own = 0x6f6f6f6f6f6f6f6f;
    pid_t pid = taker(0x7a7a7a7a7a7a7a7a);
    pthread_t threads[RACERS];
    for (int i = 0; i < RACERS; i++) ZERO(pthread_create(&threads[i], NULL, toucher, race));
    for (int i = 0; i < rounds && race->strange == 0; i++) take_away(race);
    race->stop = true;
    for (int i = 0; i < RACERS; i++) ZERO(pthread_join(threads[i], NULL));
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) FAIL("the other process found its memory changed (status %#x)", status);
    end(pid);
    if (race->strange != 0) FAIL("a page of somebody else's: %#lx", (unsigned long)race->strange);
}

static void by_ftruncate(struct race *race) {
    OK(ftruncate(race->fd, 0));
    OK(ftruncate(race->fd, PAGES * PAGE));
}

static void by_hole(struct race *race) {
    OK(fallocate(race->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE));
}

static void by_open(struct race *race) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", race->fd);
    OK(close(OK(open(path, O_RDWR | O_TRUNC))));
    OK(ftruncate(race->fd, PAGES * PAGE));
}

static void by_mprotect_and_munmap(struct race *race) {
    OK(mprotect(race->at, PAGES * PAGE, PROT_READ));
    OK(mprotect(race->at + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE));
    EQ((uintptr_t)OK(mmap(race->at, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)),
       (uintptr_t)race->at);
}

static void by_mremap(struct race *race) {
    char *other = OK(mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EQ((uintptr_t)OK(mremap(race->at, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other)), (uintptr_t)other);
    OK(munmap(other, PAGES * PAGE));
    EQ((uintptr_t)OK(mmap(race->at, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)),
       (uintptr_t)race->at);
}

static void by_madvise(struct race *race) { OK(madvise(race->at, PAGES * PAGE, MADV_DONTNEED)); }

static void shared_race(void (*take_away)(struct race *)) {
    struct race race = {.fd = object_of(PAGES, 0)};
    race.at = mapped(race.fd, PAGES, MAP_SHARED);
    run_race(&race, take_away, 300);
}

static void private_race(void (*take_away)(struct race *)) {
    struct race race = {.fd = -1};
    race.at = OK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    run_race(&race, take_away, 300);
}

CASE(race_ftruncate) { shared_race(by_ftruncate); }
CASE(race_punch) { shared_race(by_hole); }
CASE(race_o_trunc) { shared_race(by_open); }
CASE(race_mprotect_and_mmap) { private_race(by_mprotect_and_munmap); }
CASE(race_mremap) { private_race(by_mremap); }
CASE(race_madvise) { private_race(by_madvise); }

// Two take away at once, by different ways.
static void *second(void *arg) {
    struct race *race = arg;
    while (!race->stop) by_mprotect_and_munmap(race);
    return NULL;
}

CASE(race_of_two_that_take_away) {
    struct race race = {.fd = -1};
    race.at = OK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    pthread_t other;
    quiet_faults();
    race.own = 0x6f6f6f6f6f6f6f6f;
    ZERO(pthread_create(&other, NULL, second, &race));
    run_race(&race, by_madvise, 300);
    ZERO(pthread_join(other, NULL));
}
