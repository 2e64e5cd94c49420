// Pipes, eventfd, timerfd, signalfd, inotify, and the calls that wait for many descriptors.
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static int nonblocking_pipe(int pipes[2]) { return OK(pipe2(pipes, O_NONBLOCK | O_CLOEXEC)); }

static short poll_now(int fd, short events) {
    struct pollfd p = {fd, events, 0};
    OK(poll(&p, 1, 0));
    return p.revents;
}

CASE(pipe_basics) {
    int p[2];
    OK(pipe(p));
    EQ(write(p[1], "abc", 3), 3);
    char b[8] = {0};
    EQ(read(p[0], b, 2), 2);
    EQ(read(p[0], b + 2, 8 - 2), 1);
    STR_EQ(b, "abc");
    OK(close(p[1]));
    EQ(read(p[0], b, 8), 0);
    ERR(pipe2(p, 0x40000000), EINVAL);
    ERR(pipe((int *)8), EFAULT);
}

CASE(pipe_nonblocking) {
    int p[2];
    nonblocking_pipe(p);
    char b[4096] = {0};
    ERR(read(p[0], b, 1), EAGAIN);
    size_t total = 0;
    for (ssize_t n; (n = write(p[1], b, sizeof b)) > 0;) total += n;
    EQ(errno, EAGAIN);
    EQ(total, 65536);
    ERR(write(p[1], b, 1), EAGAIN);
    EQ(read(p[0], b, 4096), 4096);
    EQ(write(p[1], b, 4096), 4096);
}

CASE(pipe_capacity) {
    int p[2];
    nonblocking_pipe(p);
    EQ(fcntl(p[0], F_GETPIPE_SZ), 65536);
    CHECK(OK(fcntl(p[1], F_SETPIPE_SZ, 8192)) >= 8192);
    char b[65536] = {0};
    ssize_t n = OK(write(p[1], b, sizeof b));
    EQ(n, fcntl(p[0], F_GETPIPE_SZ));
    ERR(fcntl(p[1], F_SETPIPE_SZ, 4096), EBUSY);
}

// However short, each takes the place of a page.
CASE(pipe_room_is_counted_in_pages) {
    enum { PAGE = 4096 };
    int pipes[2];
    char buffer[65536] = "";
    nonblocking_pipe(pipes);
    for (int i = 0; i < 16; i++) EQ(write(pipes[1], buffer, PAGE / 2 + 1), PAGE / 2 + 1);
    EQ(poll_now(pipes[1], POLLOUT), 0);
    ERR(write(pipes[1], buffer, PAGE / 2), EAGAIN);
    EQ(write(pipes[1], buffer, PAGE / 2 - 1), PAGE / 2 - 1);
    ERR(write(pipes[1], buffer, 1), EAGAIN);
    EQ(read(pipes[0], buffer, PAGE / 2), PAGE / 2);
    EQ(poll_now(pipes[1], POLLOUT), 0);
    EQ(read(pipes[0], buffer, 1), 1);
    EQ(poll_now(pipes[1], POLLOUT), POLLOUT);
    EQ(write(pipes[1], buffer, sizeof buffer), PAGE);
}

CASE(pipe_of_packets) {
    int p[2];
    OK(pipe2(p, O_DIRECT | O_NONBLOCK));
    struct pollfd f = { .fd = p[1], .events = POLLOUT };
    char b[8];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 16; i++) EQ(write(p[1], "x", 1), 1);
        ERR(write(p[1], "x", 1), EAGAIN);
        EQ(poll(&f, 1, 0), 0);
        for (int i = 0; i < 16; i++) EQ(read(p[0], b, sizeof b), 1);
        EQ(poll(&f, 1, 0), 1);
    }
}

CASE(pipe_fionread) {
    int p[2], n = -1;
    OK(pipe(p));
    EQ(write(p[1], "12345", 5), 5);
    OK(ioctl(p[0], FIONREAD, &n));
    EQ(n, 5);
}

CASE(pipe_large_transfer_keeps_order) {
    int p[2];
    OK(pipe(p));
    enum { TOTAL = 1 << 20 };
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(close(p[0]));
        static unsigned char b[7000];
        for (size_t at = 0; at < TOTAL;) {
            size_t n = TOTAL - at < sizeof b ? TOTAL - at : sizeof b;
            for (size_t i = 0; i < n; i++) b[i] = (unsigned char)((at + i) * 31 >> 3);
            EQ(write(p[1], b, n), n);
            at += n;
        }
        _exit(0);
    }
    OK(close(p[1]));
    static unsigned char b[5000];
    size_t at = 0;
    for (ssize_t n; (n = OK(read(p[0], b, sizeof b))) > 0; at += n)
        for (ssize_t i = 0; i < n; i++) EQ(b[i], (unsigned char)((at + i) * 31 >> 3));
    EQ(at, TOTAL);
    expect_exit(pid, 0);
}

CASE(pipe_small_writes_are_atomic) {
    int p[2];
    OK(pipe(p));
    for (int w = 0; w < 4; w++)
        if (OK(fork()) == 0) {
            char b[512];
            memset(b, 'a' + w, sizeof b);
            for (int i = 0; i < 100; i++) EQ(write(p[1], b, sizeof b), sizeof b);
            _exit(0);
        }
    OK(close(p[1]));
    char b[512];
    int blocks = 0;
    for (;;) {
        size_t have = 0;
        while (have < sizeof b) {
            ssize_t n = OK(read(p[0], b + have, sizeof b - have));
            if (n == 0) break;
            have += n;
        }
        if (have == 0) break;
        EQ(have, sizeof b);
        for (size_t i = 1; i < sizeof b; i++) EQ(b[i], b[0]);
        blocks++;
    }
    EQ(blocks, 400);
    for (int w = 0; w < 4; w++) OK(wait(NULL));
}

CASE(pipe_poll_states) {
    int p[2];
    nonblocking_pipe(p);
    EQ(poll_now(p[0], POLLIN), 0);
    EQ(poll_now(p[1], POLLOUT), POLLOUT);
    EQ(write(p[1], "x", 1), 1);
    EQ(poll_now(p[0], POLLIN), POLLIN);
    OK(close(p[1]));
    EQ(poll_now(p[0], POLLIN), POLLIN | POLLHUP);
    char c;
    EQ(read(p[0], &c, 1), 1);
    EQ(poll_now(p[0], POLLIN), POLLHUP);
    nonblocking_pipe(p);
    OK(close(p[0]));
    EQ(poll_now(p[1], POLLOUT), POLLOUT | POLLERR);
}

CASE(splice_and_tee) {
    int a[2], b[2];
    OK(pipe(a)), OK(pipe(b));
    EQ(write(a[1], "splice me", 9), 9);
    EQ(tee(a[0], b[1], 6, 0), 6);
    char t[32] = {0};
    EQ(read(b[0], t, sizeof t), 6);
    STR_EQ(t, "splice");
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    EQ(splice(a[0], NULL, fd, NULL, 100, 0), 9);
    memset(t, 0, sizeof t);
    EQ(pread(fd, t, sizeof t, 0), 9);
    STR_EQ(t, "splice me");
    loff_t offset = 3;
    EQ(splice(fd, &offset, a[1], NULL, 4, 0), 4);
    EQ(offset, 7);
    ERR(splice(fd, NULL, fd, NULL, 1, 0), EINVAL);
}

CASE(eventfd_counts) {
    int fd = OK(eventfd(3, EFD_NONBLOCK | EFD_CLOEXEC));
    uint64_t v = 4;
    EQ(write(fd, &v, 8), 8);
    EQ(read(fd, &v, 8), 8);
    EQ(v, 7);
    ERR(read(fd, &v, 8), EAGAIN);
    ERR(read(fd, &v, 4), EINVAL);
    v = UINT64_MAX;
    ERR(write(fd, &v, 8), EINVAL);
    v = UINT64_MAX - 1;
    EQ(write(fd, &v, 8), 8);
    v = 1;
    ERR(write(fd, &v, 8), EAGAIN);
    EQ(poll_now(fd, POLLIN | POLLOUT), POLLIN);
}

CASE(eventfd_semaphore) {
    int fd = OK(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
    uint64_t v;
    for (int i = 0; i < 2; i++) {
        EQ(read(fd, &v, 8), 8);
        EQ(v, 1);
    }
    ERR(read(fd, &v, 8), EAGAIN);
}

CASE(eventfd_wakes_a_reader) {
    int fd = OK(eventfd(0, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        uint64_t v;
        EQ(read(fd, &v, 8), 8);
        _exit((int)v);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    uint64_t v = 9;
    EQ(write(fd, &v, 8), 8);
    expect_exit(pid, 9);
}

// A call that comes after a timer was due sees that, however busy the machine is; but for a clock
// interrupt now and then that is late itself.
CASE(timerfd_is_due_when_the_clock_says_so) {
    enum { TIMES = 200, SELDOM = TIMES / 10 };
    int fd = OK(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)), late = 0;
    for (int i = 0; i < TIMES; i++) {
        int64_t due = now_ns(CLOCK_MONOTONIC) + 50000;
        struct itimerspec t = {.it_value = {due / 1000000000, due % 1000000000}};
        uint64_t times = 0;
        OK(timerfd_settime(fd, TFD_TIMER_ABSTIME, &t, NULL));
        while (now_ns(CLOCK_MONOTONIC) < due + 100000) {}
        if (read(fd, &times, sizeof times) != 8) {
            late++;
            WAIT_UNTIL(read(fd, &times, sizeof times) == 8);
        }
        EQ(times, 1);
    }
    CHECK(late <= SELDOM);
}

CASE(timerfd_expires) {
    int fd = OK(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    struct itimerspec t = {{0, 0}, {0, 3000000}}, now;
    int64_t began = now_ns(CLOCK_MONOTONIC);
    OK(timerfd_settime(fd, 0, &t, NULL));
    uint64_t n;
    EQ(read(fd, &n, 8), 8);
    EQ(n, 1);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 3000000);
    OK(timerfd_gettime(fd, &now));
    EQ(now.it_value.tv_sec + now.it_value.tv_nsec, 0);
}

// Such a timer is due all the time. What it did is counted, and others have their turn.
CASE(timers_of_a_nanosecond) {
    struct itimerspec spec = {.it_value = {.tv_nsec = 1}, .it_interval = {.tv_nsec = 1}}, now;
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = OK(timerfd_create(i % 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME, TFD_NONBLOCK));
        ZERO(timerfd_settime(fds[i], 0, &spec, NULL));
    }
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    timer_t timer;
    ZERO(timer_create(CLOCK_MONOTONIC, &none, &timer));
    ZERO(timer_settime(timer, 0, &spec, NULL));
    sleep_ms(50);
    for (int i = 0; i < 20; i++) {
        uint64_t count = 0;
        EQ(read(fds[i], &count, sizeof count), sizeof count);
        if (count < 1000000) FAIL("timer %d has gone off %llu times", i, (unsigned long long)count);
        ZERO(timerfd_gettime(fds[i], &now));
        EQ(now.it_interval.tv_nsec, 1);
        OK(close(fds[i]));
    }
    ZERO(timer_delete(timer));
}

CASE(timerfd_interval_counts) {
    int fd = OK(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    struct itimerspec t = {{0, 1000000}, {0, 1000000}}, old;
    uint64_t n;
    ERR(read(fd, &n, 8), EAGAIN);
    OK(timerfd_settime(fd, 0, &t, NULL));
    sleep_ms(6);
    EQ(read(fd, &n, 8), 8);
    CHECK(n >= 5);
    memset(&t, 0, sizeof t);
    OK(timerfd_settime(fd, 0, &t, &old));
    EQ(old.it_interval.tv_nsec, 1000000);
    ERR(read(fd, &n, 8), EAGAIN);
}

CASE(timerfd_absolute) {
    int fd = OK(timerfd_create(CLOCK_REALTIME, 0));
    struct itimerspec t = {.it_value = {1, 0}};
    OK(timerfd_settime(fd, TFD_TIMER_ABSTIME, &t, NULL));
    uint64_t n;
    EQ(read(fd, &n, 8), 8);
    EQ(n, 1);
    ERR(timerfd_create(9999, 0), EINVAL);
    t.it_value.tv_nsec = 2000000000;
    ERR(timerfd_settime(fd, 0, &t, NULL), EINVAL);
}

CASE(signalfd_reads) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR1);
    sigaddset(&s, SIGRTMIN);
    OK(sigprocmask(SIG_BLOCK, &s, NULL));
    int fd = OK(signalfd(-1, &s, SFD_NONBLOCK | SFD_CLOEXEC));
    struct signalfd_siginfo info[4];
    ERR(read(fd, info, sizeof info), EAGAIN);
    EQ(poll_now(fd, POLLIN), 0);
    OK(kill(getpid(), SIGUSR1));
    OK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 5}));
    EQ(poll_now(fd, POLLIN), POLLIN);
    EQ(read(fd, info, sizeof info), 2 * sizeof info[0]);
    EQ(info[0].ssi_signo, SIGUSR1);
    EQ(info[0].ssi_pid, getpid());
    EQ(info[1].ssi_signo, SIGRTMIN);
    EQ(info[1].ssi_int, 5);
    ERR(read(fd, info, 10), EINVAL);
}

CASE(inotify_tells) {
    int fd = OK(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    OK(mkdir("d", 0755));
    int wd = OK(inotify_add_watch(fd, "d", IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO));
    char b[4096] __attribute__((aligned(8)));
    ERR(read(fd, b, sizeof b), EAGAIN);
    write_file("d/x", "1");
    WAIT_UNTIL(poll_now(fd, POLLIN) == POLLIN);
    ssize_t n = OK(read(fd, b, sizeof b));
    CHECK(n >= (ssize_t)sizeof(struct inotify_event));
    struct inotify_event *e = (struct inotify_event *)b;
    EQ(e->wd, wd);
    EQ(e->mask, IN_CREATE);
    STR_EQ(e->name, "x");
    OK(unlink("d/x"));
    WAIT_UNTIL(poll_now(fd, POLLIN) == POLLIN);
    OK(inotify_rm_watch(fd, wd));
    ERR(inotify_rm_watch(fd, 999), EINVAL);
    ERR(inotify_add_watch(fd, "missing", IN_CREATE), ENOENT);
}

CASE(poll_timeouts) {
    int p[2];
    OK(pipe(p));
    struct pollfd f = {p[0], POLLIN, 0};
    int64_t began = now_ns(CLOCK_MONOTONIC);
    EQ(poll(&f, 1, 5), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 5000000);
    EQ(poll(&f, 1, 0), 0);
    struct timespec t = {0, 2000000};
    EQ(ppoll(&f, 1, &t, NULL), 0);
    t.tv_nsec = -1;
    ERR(ppoll(&f, 1, &t, NULL), EINVAL);
    EQ(poll(NULL, 0, 1), 0);
}

CASE(poll_special_descriptors) {
    int file = OK(open("f", O_CREAT | O_RDWR, 0600));
    EQ(poll_now(file, POLLIN | POLLOUT), POLLIN | POLLOUT);
    EQ(poll_now(999, POLLIN), POLLNVAL);
    struct pollfd negative = {-1, POLLIN, 77};
    EQ(poll(&negative, 1, 0), 0);
    EQ(negative.revents, 0);
}

CASE(poll_wakes_on_write) {
    int p[2];
    OK(pipe(p));
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct pollfd f[2] = {{p[0], POLLIN, 0}, {-1, 0, 0}};
        EQ(poll(f, 2, -1), 1);
        EQ(f[0].revents, POLLIN);
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    EQ(write(p[1], "x", 1), 1);
    expect_exit(pid, 0);
}

CASE(select_sets) {
    int a[2], b[2];
    OK(pipe(a)), OK(pipe(b));
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(a[0], &r);
    FD_SET(b[0], &r);
    FD_SET(a[1], &w);
    EQ(write(b[1], "x", 1), 1);
    struct timeval t = {5, 0};
    EQ(select(b[1] + 1, &r, &w, NULL, &t), 2);
    CHECK(!FD_ISSET(a[0], &r) && FD_ISSET(b[0], &r) && FD_ISSET(a[1], &w));
    FD_ZERO(&r);
    FD_SET(a[0], &r);
    t = (struct timeval){0, 2000};
    EQ(select(a[0] + 1, &r, NULL, NULL, &t), 0);
    CHECK(!FD_ISSET(a[0], &r));
    EQ(t.tv_usec, 0);
    FD_ZERO(&r);
    FD_SET(800, &r);
    ERR(select(801, &r, NULL, NULL, NULL), EBADF);
    ERR(select(-1, NULL, NULL, NULL, NULL), EINVAL);
}

static void nothing(int signo) {}

CASE(pselect_and_ppoll_swap_the_mask) {
    struct sigaction a = {.sa_handler = nothing};
    OK(sigaction(SIGUSR1, &a, NULL));
    sigset_t s, none;
    sigemptyset(&s), sigemptyset(&none);
    sigaddset(&s, SIGUSR1);
    OK(sigprocmask(SIG_BLOCK, &s, NULL));
    OK(raise(SIGUSR1));
    ERR(pselect(0, NULL, NULL, NULL, NULL, &none), EINTR);
    OK(raise(SIGUSR1));
    ERR(ppoll(NULL, 0, NULL, &none), EINTR);
    OK(raise(SIGUSR1));
    int e = OK(epoll_create1(0));
    struct epoll_event event;
    ERR(epoll_pwait(e, &event, 1, -1, &none), EINTR);
    sigset_t now;
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    EQ(sigismember(&now, SIGUSR1), 1);
}

static void add(int e, int fd, uint32_t events) {
    struct epoll_event event = {events, {.fd = fd}};
    OK(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
}

static int wait_now(int e, struct epoll_event *events, int count) { return OK(epoll_wait(e, events, count, 0)); }

CASE(epoll_level) {
    int e = OK(epoll_create1(EPOLL_CLOEXEC)), p[2];
    OK(pipe(p));
    add(e, p[0], EPOLLIN);
    struct epoll_event event;
    EQ(wait_now(e, &event, 1), 0);
    EQ(write(p[1], "xy", 2), 2);
    for (int i = 0; i < 2; i++) {
        EQ(wait_now(e, &event, 1), 1);
        EQ(event.events, EPOLLIN);
        EQ(event.data.fd, p[0]);
        char c;
        EQ(read(p[0], &c, 1), 1);
    }
    EQ(wait_now(e, &event, 1), 0);
}

CASE(epoll_edge) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(e, p[0], EPOLLIN | EPOLLET);
    struct epoll_event event;
    EQ(write(p[1], "x", 1), 1);
    EQ(wait_now(e, &event, 1), 1);
    EQ(wait_now(e, &event, 1), 0);
    EQ(write(p[1], "y", 1), 1);
    EQ(wait_now(e, &event, 1), 1);
    EQ(wait_now(e, &event, 1), 0);
}

CASE(epoll_oneshot) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(e, p[0], EPOLLIN | EPOLLONESHOT);
    struct epoll_event event;
    EQ(write(p[1], "x", 1), 1);
    EQ(wait_now(e, &event, 1), 1);
    EQ(wait_now(e, &event, 1), 0);
    event.events = EPOLLIN | EPOLLONESHOT;
    OK(epoll_ctl(e, EPOLL_CTL_MOD, p[0], &event));
    EQ(wait_now(e, &event, 1), 1);
}

CASE(epoll_nested) {
    int inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(inner, p[0], EPOLLIN);
    add(outer, inner, EPOLLIN);
    struct epoll_event event;
    EQ(wait_now(outer, &event, 1), 0);
    EQ(write(p[1], "x", 1), 1);
    EQ(wait_now(outer, &event, 1), 1);
    EQ(event.data.fd, inner);
    EQ(poll_now(outer, POLLIN), POLLIN);
    event.events = EPOLLIN;
    ERR(epoll_ctl(inner, EPOLL_CTL_ADD, outer, &event), ELOOP);
}

CASE(epoll_nested_tells_of_each_event) {
    int pipes[2], inner = OK(epoll_create1(0)), outer = OK(epoll_create1(0));
    struct epoll_event got[4];
    nonblocking_pipe(pipes);
    add(inner, pipes[0], EPOLLIN);
    add(outer, inner, EPOLLIN | EPOLLET);
    for (int i = 0; i < 3; i++) {
        // What came before has been told of, and is still there.
        EQ(write(pipes[1], "x", 1), 1);
        EQ(wait_now(outer, got, 4), 1);
        EQ(wait_now(outer, got, 4), 0);
    }
    EQ(wait_now(inner, got, 4), 1);
}

CASE(epoll_ways_through_many_instances) {
    // Each instance of a level watches all of the level below: ways by the million, which Linux refuses to make.
    enum { LEVELS = 4, WIDTH = 40 };
    int instances[LEVELS][WIDTH], fd = OK(eventfd(0, EFD_NONBLOCK));
    struct rlimit files = {1024, 1024};
    OK(setrlimit(RLIMIT_NOFILE, &files));
    for (int level = 0; level < LEVELS; level++)
        for (int i = 0; i < WIDTH; i++) {
            struct epoll_event event = {EPOLLIN | EPOLLET, {.u32 = 0}};
            instances[level][i] = OK(epoll_create1(0));
            for (int j = 0; j < (level ? WIDTH : 1); j++) {
                int below = level ? instances[level - 1][j] : fd;
                if (epoll_ctl(instances[level][i], EPOLL_CTL_ADD, below, &event) && errno != EINVAL) FAIL("%s", strerrorname_np(errno));
            }
        }
    uint64_t one = 1;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 10; i++) EQ(write(fd, &one, sizeof one), (ssize_t)sizeof one);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(end.tv_sec - begin.tv_sec < 5);
}

CASE(epoll_exclusive_is_not_for_mod) {
    int e = OK(epoll_create1(0)), fd = OK(eventfd(0, 0));
    struct epoll_event event = {EPOLLIN | EPOLLEXCLUSIVE, {.fd = fd}};
    ERR(epoll_ctl(e, EPOLL_CTL_MOD, fd, &event), EINVAL);
    ZERO(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
    ERR(epoll_ctl(e, EPOLL_CTL_MOD, fd, &event), EINVAL);
    event.events = EPOLLIN;
    ERR(epoll_ctl(e, EPOLL_CTL_MOD, fd, &event), EINVAL);
    // What cannot be polled is seen first.
    int file = OK(open("/proc/self/exe", O_RDONLY));
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    ERR(epoll_ctl(e, EPOLL_CTL_MOD, file, &event), EPERM);
    ERR(epoll_ctl(e, EPOLL_CTL_DEL, file, &event), EPERM);
}

CASE(epoll_exclusive_is_for_few_events) {
    int e = OK(epoll_create1(0)), fd = OK(eventfd(0, 0));
    static const unsigned refused[] = {EPOLLPRI, EPOLLRDHUP, EPOLLONESHOT, EPOLLRDNORM};
    struct epoll_event event = {0, {.fd = fd}};
    for (int i = 0; i < 4; i++) {
        event.events = EPOLLIN | EPOLLEXCLUSIVE | refused[i];
        ERR(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event), EINVAL);
    }
    event.events = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLEXCLUSIVE;
    ZERO(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
    // The flags are looked at before whether it is there.
    event.events |= EPOLLONESHOT;
    ERR(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event), EINVAL);
}

static atomic_int woken;

static void *exclusive_waiter(void *pipe_end) {
    int e = OK(epoll_create1(0)), fd = (int)(long)pipe_end;
    struct epoll_event got, event = {EPOLLIN | EPOLLEXCLUSIVE, {.fd = fd}};
    ZERO(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
    EQ(epoll_wait(e, &got, 1, 5000), 1);
    woken++;
    // It sees to it only when all could have been woken.
    sleep_ms(300);
    char c;
    EQ(read(fd, &c, 1), 1);
    ZERO(close(e));
    return NULL;
}

CASE(epoll_exclusive_wakes_one) {
    enum { WAITERS = 5 };
    int pipes[2];
    pthread_t threads[WAITERS];
    OK(pipe(pipes));
    for (int i = 0; i < WAITERS; i++) ZERO(pthread_create(&threads[i], NULL, exclusive_waiter, (void *)(long)pipes[0]));
    // All of them wait.
    sleep_ms(200);
    EQ(write(pipes[1], "x", 1), 1);
    sleep_ms(150);
    CHECK(woken >= 1 && woken < WAITERS);
    for (int i = 1; i < WAITERS; i++) EQ(write(pipes[1], "x", 1), 1);
    for (int i = 0; i < WAITERS; i++) ZERO(pthread_join(threads[i], NULL));
}

CASE(epoll_errors) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    struct epoll_event event = {EPOLLIN, {.fd = 0}};
    add(e, p[0], EPOLLIN);
    ERR(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event), EEXIST);
    ERR(epoll_ctl(e, EPOLL_CTL_MOD, p[1], &event), ENOENT);
    ERR(epoll_ctl(e, EPOLL_CTL_DEL, p[1], &event), ENOENT);
    ERR(epoll_ctl(e, EPOLL_CTL_ADD, 999, &event), EBADF);
    ERR(epoll_ctl(e, EPOLL_CTL_ADD, e, &event), EINVAL);
    ERR(epoll_ctl(p[0], EPOLL_CTL_ADD, p[1], &event), EINVAL);
    int file = OK(open("f", O_CREAT | O_RDWR, 0600));
    ERR(epoll_ctl(e, EPOLL_CTL_ADD, file, &event), EPERM);
    ERR(epoll_wait(e, &event, 0, 0), EINVAL);
    ERR(epoll_create(0), EINVAL);
    OK(epoll_ctl(e, EPOLL_CTL_DEL, p[0], NULL));
}

CASE(epoll_close_removes) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(e, p[0], EPOLLIN);
    EQ(write(p[1], "x", 1), 1);
    OK(close(p[0]));
    struct epoll_event event;
    EQ(wait_now(e, &event, 1), 0);
}

CASE(epoll_duplicate_keeps) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    int d = OK(dup(p[0]));
    add(e, p[0], EPOLLIN);
    EQ(write(p[1], "x", 1), 1);
    OK(close(p[0]));
    struct epoll_event event;
    EQ(wait_now(e, &event, 1), 1);  // the open description lives on in d
    char c;
    EQ(read(d, &c, 1), 1);
}

CASE(epoll_many) {
    int e = OK(epoll_create1(0)), fds[100];
    for (int i = 0; i < 100; i++) add(e, fds[i] = OK(eventfd(i % 3 == 0, EFD_NONBLOCK)), EPOLLIN);
    struct epoll_event events[200];
    EQ(wait_now(e, events, 200), 34);
    EQ(wait_now(e, events, 10), 10);
}

CASE(epoll_fairness_rotates) {
    // With fewer slots than ready descriptors, repeated waits reach every one.
    int e = OK(epoll_create1(0));
    bool seen[1000] = {false};
    int fds[8];
    for (int i = 0; i < 8; i++) add(e, fds[i] = OK(eventfd(1, EFD_NONBLOCK)), EPOLLIN);
    struct epoll_event events[2];
    for (int round = 0; round < 8; round++)
        for (int i = wait_now(e, events, 2); i-- > 0;) seen[events[i].data.fd] = true;
    for (int i = 0; i < 8; i++) CHECK(seen[fds[i]]);
}

CASE(epoll_hup_unasked) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(e, p[0], 0);
    OK(close(p[1]));
    struct epoll_event event;
    EQ(wait_now(e, &event, 1), 1);
    EQ(event.events, EPOLLHUP);
}

CASE(epoll_wakes_a_sleeper) {
    int e = OK(epoll_create1(0)), p[2];
    OK(pipe(p));
    add(e, p[0], EPOLLIN);
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct epoll_event event;
        EQ(epoll_wait(e, &event, 1, -1), 1);
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    EQ(write(p[1], "x", 1), 1);
    expect_exit(pid, 0);
}

CASE(epoll_times_out) {
    int e = OK(epoll_create1(0));
    struct epoll_event event;
    int64_t began = now_ns(CLOCK_MONOTONIC);
    EQ(epoll_wait(e, &event, 1, 4), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 4000000);
    struct timespec t = {0, 1000000};
    int n = (int)syscall(SYS_epoll_pwait2, e, &event, 1, &t, NULL, 8);
    EQ(n, 0);
}

CASE(epoll_add_while_waiting) {
    static int e, p[2];
    e = OK(epoll_create1(0));
    OK(pipe(p));
    void *adder(void *argument) {
        sleep_ms(2);
        EQ(write(p[1], "x", 1), 1);
        add(e, p[0], EPOLLIN);
        return NULL;
    }
    pthread_t t;
    ZERO(pthread_create(&t, NULL, adder, NULL));
    struct epoll_event event;
    EQ(epoll_wait(e, &event, 1, -1), 1);
    ZERO(pthread_join(t, NULL));
}

CASE(poll_of_many_places) {
    enum { MANY = 10000 };
    static struct pollfd fds[MANY];
    static int quiet[2];
    struct rlimit limit = {MANY, MANY};
    if (setrlimit(RLIMIT_NOFILE, &limit)) skip_case("may not have so many descriptors");
    int full[2];
    OK(pipe(quiet));
    OK(pipe(full));
    EQ(write(full[1], "x", 1), 1);
    int places[] = {quiet[0], -1, full[0], 9999, full[1]};
    for (int i = 0; i < MANY; i++) fds[i] = (struct pollfd){places[i % 5], POLLIN | POLLOUT, 0x5555};
    EQ(poll(fds, MANY, -1), MANY / 5 * 3);
    short expected[] = {0, 0, POLLIN, POLLNVAL, POLLOUT};
    for (int i = 0; i < MANY; i++) EQ(fds[i].revents, expected[i % 5]);
    // Nothing, for a while, and then the last of them.
    for (int i = 0; i < MANY; i++) fds[i].fd = i % 2 ? -1 : quiet[0];
    EQ(poll(fds, MANY, 0), 0);
    int64_t began = now_ns(CLOCK_MONOTONIC);
    EQ(poll(fds, MANY, 4), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 4000000);
    void *writer(void *argument) {
        sleep_ms(2);
        EQ(write(quiet[1], "x", 1), 1);
        return argument;
    }
    pthread_t t;
    ZERO(pthread_create(&t, NULL, writer, NULL));
    // All of them, or those that a slow machine had not looked at when it was written.
    int ready = poll(fds, MANY, -1);
    CHECK(ready >= 1 && ready <= MANY / 2);
    ZERO(pthread_join(t, NULL));
    for (int i = 0; i < MANY; i++) {
        short now = i % 2 == 0 && i >= MANY - 2 * ready ? POLLIN : 0;
        EQ(fds[i].revents, now);
    }
    // A signal ends it.
    char byte;
    EQ(read(quiet[0], &byte, 1), 1);
    struct sigaction action = {.sa_handler = nothing};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval soon = {.it_value = {0, 2000}};
    OK(setitimer(ITIMER_REAL, &soon, NULL));
    ERR(poll(fds, MANY, -1), EINTR);
}
