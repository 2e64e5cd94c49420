// Signals that tell of I/O (signal(7), fcntl(2) "Managing signals"): F_SETOWN and its kin, F_SETSIG, O_ASYNC.
#include "harness.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef FIOSETOWN
#define FIOSETOWN 0x8901
#define SIOCSPGRP 0x8902
#define FIOGETOWN 0x8903
#define SIOCGPGRP 0x8904
#endif

#define LONG 20000
#define SHORT 100

static void expect(int signo, int code, int fd, long band) {
    siginfo_t info;
    CHECK(signal_within(signo, &info, LONG));
    EQ(info.si_code, code);
    EQ(info.si_fd, fd);
    EQ(info.si_band, band);
}

#define IN_BAND (POLLIN_ | POLLRDNORM_)
enum { POLLIN_ = 1, POLLPRI_ = 2, POLLOUT_ = 4, POLLERR_ = 8, POLLHUP_ = 16, POLLRDNORM_ = 64, POLLWRNORM_ = 256, POLLWRBAND_ = 512 };
#define OUT_BAND (POLLOUT_ | POLLWRNORM_ | POLLWRBAND_)

// Has `fd` tell of I/O by a real-time signal, which is blocked.
static int tell(int fd) {
    int signo = SIGRTMIN + 1;
    block_signal(signo);
    OK(fcntl(fd, F_SETSIG, signo));
    OK(fcntl(fd, F_SETOWN, getpid()));
    OK(fcntl(fd, F_SETFL, OK(fcntl(fd, F_GETFL)) | O_ASYNC | O_NONBLOCK));
    return signo;
}

CASE(owner_is_kept) {
    int fds[2];
    OK(pipe(fds));
    struct f_owner_ex owner = {9, 9};
    EQ(fcntl(fds[0], F_GETOWN), 0);
    OK(fcntl(fds[0], F_GETOWN_EX, &owner));
    EQ(owner.type, F_OWNER_TID);
    EQ(owner.pid, 0);
    OK(fcntl(fds[0], F_SETOWN, getpid()));
    EQ(fcntl(fds[0], F_GETOWN), getpid());
    OK(fcntl(fds[0], F_GETOWN_EX, &owner));
    EQ(owner.type, F_OWNER_PID);
    EQ(owner.pid, getpid());
    OK(fcntl(fds[0], F_SETOWN, -getpgrp()));
    OK(fcntl(fds[0], F_GETOWN_EX, &owner));
    EQ(owner.type, F_OWNER_PGRP);
    EQ(owner.pid, getpgrp());
    // glibc asks F_GETOWN_EX for it: the call itself gives a negative number.
    EQ(fcntl(fds[0], F_GETOWN), -getpgrp());
    owner = (struct f_owner_ex){F_OWNER_TID, gettid()};
    OK(fcntl(fds[0], F_SETOWN_EX, &owner));
    owner = (struct f_owner_ex){9, 9};
    OK(fcntl(fds[0], F_GETOWN_EX, &owner));
    EQ(owner.type, F_OWNER_TID);
    EQ(owner.pid, gettid());
    EQ(fcntl(fds[0], F_GETOWN), gettid());
    // The other end has one of its own, a copy the same.
    EQ(fcntl(fds[1], F_GETOWN), 0);
    EQ(fcntl(OK(dup(fds[0])), F_GETOWN), gettid());
    OK(fcntl(fds[0], F_SETOWN, 0));
    EQ(fcntl(fds[0], F_GETOWN), 0);
}

CASE(owners_that_cannot_be) {
    int fds[2];
    OK(pipe(fds));
    ERR(fcntl(fds[0], F_SETOWN, INT_MIN), EINVAL);
    ERR(fcntl(fds[0], F_SETOWN, 4000000), ESRCH);
    ERR(fcntl(fds[0], F_SETOWN, -4000000), ESRCH);
    struct f_owner_ex owner = {3, getpid()};
    ERR(fcntl(fds[0], F_SETOWN_EX, &owner), EINVAL);
    owner.type = -1;
    ERR(fcntl(fds[0], F_SETOWN_EX, &owner), EINVAL);
    for (int type = 0; type < 3; type++) {
        owner = (struct f_owner_ex){type, 4000000};
        ERR(fcntl(fds[0], F_SETOWN_EX, &owner), ESRCH);
    }
    ERR(fcntl(fds[0], F_SETOWN_EX, (void *)8), EFAULT);
    OK(fcntl(fds[0], F_SETOWN, getpid()));
    ERR(fcntl(fds[0], F_GETOWN_EX, (void *)8), EFAULT);
    int path = OK(open("/", O_PATH));
    ERR(fcntl(path, F_SETOWN, getpid()), EBADF);
    ERR(fcntl(path, F_GETSIG), EBADF);
}

CASE(owner_that_has_ended_is_none) {
    int fds[2];
    OK(pipe(fds));
    pid_t child = OK(fork());
    if (child == 0) {
        pause();
        _exit(0);
    }
    OK(fcntl(fds[0], F_SETOWN, child));
    EQ(fcntl(fds[0], F_GETOWN), child);
    OK(kill(child, SIGKILL));
    EQ(waitpid(child, NULL, 0), child);
    EQ(fcntl(fds[0], F_GETOWN), 0);
    block_signal(SIGIO);
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    EQ(write(fds[1], "x", 1), 1);
    expect_no_signal(SIGIO);
}

CASE(signal_is_kept) {
    int fds[2];
    OK(pipe(fds));
    EQ(fcntl(fds[0], F_GETSIG), 0);
    OK(fcntl(fds[0], F_SETSIG, SIGUSR2));
    EQ(fcntl(fds[0], F_GETSIG), SIGUSR2);
    OK(fcntl(fds[0], F_SETSIG, 64));
    EQ(fcntl(fds[0], F_GETSIG), 64);
    ERR(fcntl(fds[0], F_SETSIG, 65), EINVAL);
    ERR(fcntl(fds[0], F_SETSIG, -1), EINVAL);
    EQ(fcntl(fds[0], F_GETSIG), 64);
    OK(fcntl(fds[0], F_SETSIG, 0));
    EQ(fcntl(fds[0], F_GETSIG), 0);
}

CASE(pipe_tells_of_data) {
    int fds[2];
    OK(pipe(fds));
    int signo = tell(fds[0]);
    CHECK(fcntl(fds[0], F_GETFL) & O_ASYNC);
    expect_no_signal(signo);
    EQ(write(fds[1], "x", 1), 1);
    expect(signo, POLL_IN, fds[0], IN_BAND);
    expect_no_signal(signo);
}

CASE(pipe_tells_of_room) {
    int fds[2];
    char page[4096] = "";
    OK(pipe(fds));
    int signo = tell(fds[1]);
    while (write(fds[1], page, sizeof page) > 0) {}
    EQ(errno, EAGAIN);
    siginfo_t info;
    while (signal_within(signo, &info, SHORT)) {}
    EQ(read(fds[0], page, sizeof page), 4096);
    expect(signo, POLL_OUT, fds[1], OUT_BAND);
}

CASE(pipe_tells_of_its_end) {
    int fds[2];
    OK(pipe(fds));
    int signo = tell(fds[0]);
    OK(close(fds[1]));
    expect(signo, POLL_IN, fds[0], IN_BAND);
}

CASE(without_a_signal_it_is_sigio) {
    int fds[2];
    siginfo_t info;
    OK(pipe(fds));
    block_signal(SIGIO);
    OK(fcntl(fds[0], F_SETOWN, getpid()));
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    EQ(write(fds[1], "x", 1), 1);
    CHECK(signal_within(SIGIO, &info, LONG));
    EQ(info.si_code, SI_KERNEL);
    // And if it is asked for, it tells of the descriptor.
    OK(fcntl(fds[0], F_SETSIG, SIGIO));
    EQ(read(fds[0], (char[1]){0}, 1), 1);
    EQ(write(fds[1], "x", 1), 1);
    expect(SIGIO, POLL_IN, fds[0], IN_BAND);
}

CASE(nobody_is_told_without_an_owner_or_the_flag) {
    int fds[2];
    OK(pipe(fds));
    block_signal(SIGIO);
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    EQ(write(fds[1], "x", 1), 1);
    expect_no_signal(SIGIO);
    OK(fcntl(fds[0], F_SETFL, 0));
    OK(fcntl(fds[0], F_SETOWN, getpid()));
    EQ(read(fds[0], (char[1]){0}, 1), 1);
    EQ(write(fds[1], "x", 1), 1);
    expect_no_signal(SIGIO);
}

CASE(switched_off_it_is_quiet) {
    int fds[2], on = 1, off = 0;
    OK(pipe(fds));
    int signo = tell(fds[0]);
    int copy = OK(dup(fds[0]));
    OK(close(fds[0]));
    EQ(write(fds[1], "x", 1), 1);
    // The descriptor that it was switched on by.
    expect(signo, POLL_IN, fds[0], IN_BAND);
    EQ(read(copy, (char[1]){0}, 1), 1);
    OK(ioctl(copy, FIOASYNC, &off));
    CHECK(!(fcntl(copy, F_GETFL) & O_ASYNC));
    EQ(write(fds[1], "x", 1), 1);
    expect_no_signal(signo);
    EQ(read(copy, (char[1]){0}, 1), 1);
    OK(ioctl(copy, FIOASYNC, &on));
    CHECK(fcntl(copy, F_GETFL) & O_ASYNC);
    EQ(write(fds[1], "x", 1), 1);
    expect(signo, POLL_IN, copy, IN_BAND);
    OK(close(copy));
    signal(SIGPIPE, SIG_IGN);
    ERR(write(fds[1], "x", 1), EPIPE);
    expect_no_signal(signo);
}

CASE(files_that_tell_nothing) {
    int on = 1;
    int files[] = {OK(open("file", O_CREAT | O_RDWR, 0600)), OK(eventfd(0, 0)), OK(open("/", O_DIRECTORY)), OK(open("/dev/null", O_RDWR))};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        OK(fcntl(files[i], F_SETFL, O_ASYNC));
        CHECK(!(fcntl(files[i], F_GETFL) & O_ASYNC));
        ERR(ioctl(files[i], FIOASYNC, &on), ENOTTY);
        OK(fcntl(files[i], F_SETOWN, getpid()));
        EQ(fcntl(files[i], F_GETOWN), getpid());
    }
}

CASE(socket_pair_tells) {
    int fds[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    int signo = tell(fds[0]);
    EQ(write(fds[1], "x", 1), 1);
    expect(signo, POLL_IN, fds[0], IN_BAND);
    OK(close(fds[1]));
    expect(signo, POLL_HUP, fds[0], POLLHUP_ | POLLERR_);
}

CASE(datagrams_tell) {
    int fds[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
    int signo = tell(fds[0]);
    EQ(send(fds[1], "x", 1, 0), 1);
    expect(signo, POLL_IN, fds[0], IN_BAND);
    EQ(send(fds[1], "y", 1, 0), 1);
    expect(signo, POLL_IN, fds[0], IN_BAND);
}

static struct sockaddr_in listening(int *fd) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    *fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(bind(*fd, (void *)&address, sizeof address));
    OK(listen(*fd, 5));
    OK(getsockname(*fd, (void *)&address, &length));
    return address;
}

CASE(tcp_tells) {
    int listener;
    struct sockaddr_in address = listening(&listener);
    int signo = tell(listener);
    int client = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (void *)&address, sizeof address));
    expect(signo, POLL_IN, listener, IN_BAND);
    int server = OK(accept(listener, NULL, NULL));
    tell(server);
    siginfo_t info;
    while (signal_within(signo, &info, SHORT)) {}
    EQ(write(client, "x", 1), 1);
    expect(signo, POLL_IN, server, IN_BAND);
}

CASE(owner_of_a_socket_by_ioctl) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0)), pipes[2], pid = getpid(), got = 9;
    OK(ioctl(fd, FIOSETOWN, &pid));
    EQ(fcntl(fd, F_GETOWN), pid);
    OK(ioctl(fd, FIOGETOWN, &got));
    EQ(got, pid);
    pid = -getpgrp();
    OK(ioctl(fd, SIOCSPGRP, &pid));
    OK(ioctl(fd, SIOCGPGRP, &got));
    EQ(got, pid);
    pid = 4000000;
    ERR(ioctl(fd, SIOCSPGRP, &pid), ESRCH);
    ERR(ioctl(fd, SIOCSPGRP, (void *)8), EFAULT);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pipes));
    pid = getpid();
    OK(ioctl(pipes[0], SIOCSPGRP, &pid));
    EQ(fcntl(pipes[0], F_GETOWN), pid);
    OK(pipe(pipes));
    ERR(ioctl(pipes[0], SIOCSPGRP, &pid), ENOTTY);
}

CASE(terminal_tells_its_group) {
    int master, slave;
    OK(openpty(&master, &slave, NULL, NULL, NULL));
    block_signal(SIGIO);
    OK(fcntl(slave, F_SETFL, O_ASYNC));
    // Nobody was asked for: it takes the process (it has no foreground group).
    struct f_owner_ex owner;
    OK(fcntl(slave, F_GETOWN_EX, &owner));
    EQ(owner.type, F_OWNER_PID);
    EQ(owner.pid, getpid());
    EQ(write(master, "line\n", 5), 5);
    siginfo_t info;
    CHECK(signal_within(SIGIO, &info, LONG));
}

CASE(inotify_tells) {
    int fd = OK(inotify_init1(IN_NONBLOCK));
    OK(inotify_add_watch(fd, ".", IN_CREATE));
    int signo = tell(fd);
    OK(mkdir("new", 0700));
    expect(signo, POLL_IN, fd, IN_BAND);
}

CASE(group_is_told_as_a_whole) {
    int fds[2], ready[2];
    OK(pipe(fds));
    OK(pipe(ready));
    block_signal(SIGUSR1);
    pid_t children[3];
    OK(setpgid(0, 0));
    for (int i = 0; i < 3; i++) {
        children[i] = OK(fork());
        if (children[i] == 0) {
            siginfo_t info;
            CHECK(write(ready[1], "r", 1) == 1);
            _exit(signal_within(SIGUSR1, &info, LONG) && info.si_code == POLL_IN ? 7 : 8);
        }
    }
    for (int i = 0; i < 3; i++) EQ(read(ready[0], (char[1]){0}, 1), 1);
    OK(fcntl(fds[0], F_SETSIG, SIGUSR1));
    OK(fcntl(fds[0], F_SETOWN, -getpgrp()));
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    EQ(write(fds[1], "x", 1), 1);
    for (int i = 0; i < 3; i++) {
        int status;
        EQ(waitpid(children[i], &status, 0), children[i]);
        EQ(WEXITSTATUS(status), 7);
    }
    expect(SIGUSR1, POLL_IN, fds[0], IN_BAND);
}

static int told_fd;
static pthread_barrier_t barrier;

static void *waits(void *wanted) {
    siginfo_t info;
    struct f_owner_ex owner = {F_OWNER_TID, gettid()};
    OK(fcntl(told_fd, F_SETOWN_EX, &owner));
    pthread_barrier_wait(&barrier);
    CHECK(signal_within(SIGUSR1, &info, LONG));
    *(int *)wanted = info.si_fd;
    return NULL;
}

CASE(thread_is_told_alone) {
    int fds[2], got = -1;
    pthread_t thread;
    OK(pipe(fds));
    block_signal(SIGUSR1);
    told_fd = fds[0];
    ZERO(pthread_barrier_init(&barrier, NULL, 2));
    OK(fcntl(fds[0], F_SETSIG, SIGUSR1));
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    ZERO(pthread_create(&thread, NULL, waits, &got));
    pthread_barrier_wait(&barrier);
    expect_no_signal(SIGUSR1);
    EQ(write(fds[1], "x", 1), 1);
    ZERO(pthread_join(thread, NULL));
    EQ(got, fds[0]);
    expect_no_signal(SIGUSR1);
}

CASE(who_may_not_signal_tells_nothing) {
    if (getuid() != 0) skip_case("needs root");
    int fds[2];
    OK(pipe(fds));
    block_signal(SIGIO);
    OK(fcntl(fds[0], F_SETFL, O_ASYNC));
    pid_t parent = getpid(), child = OK(fork());
    if (child == 0) {
        OK(setresuid(1000, 1000, 1000));
        OK(fcntl(fds[0], F_SETOWN, parent));
        _exit(0);
    }
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 0);
    EQ(write(fds[1], "x", 1), 1);
    expect_no_signal(SIGIO);
    EQ(read(fds[0], (char[1]){0}, 1), 1);
    OK(fcntl(fds[0], F_SETOWN, parent));
    EQ(write(fds[1], "x", 1), 1);
    siginfo_t info;
    CHECK(signal_within(SIGIO, &info, LONG));
}

CASE(too_many_to_queue_are_sigio) {
    int fds[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
    int signo = tell(fds[0]);
    block_signal(SIGIO);
    struct rlimit none = {0, 0};
    OK(setrlimit(RLIMIT_SIGPENDING, &none));
    EQ(send(fds[1], "x", 1, 0), 1);
    siginfo_t info;
    CHECK(signal_within(SIGIO, &info, LONG));
    CHECK(!signal_within(signo, &info, SHORT));
}

CASE(default_action_ends_the_process) {
    int fds[2];
    OK(pipe(fds));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(fcntl(fds[0], F_SETOWN, getpid()));
        OK(fcntl(fds[0], F_SETFL, O_ASYNC));
        EQ(write(fds[1], "x", 1), 1);
        pause();
        _exit(0);
    }
    int status;
    EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    EQ(WTERMSIG(status), SIGIO);
}

CASE(flags_that_are_refused_change_nothing) {
    if (getuid() != 0) skip_case("needs root");
    OK(mkfifo("fifo", 0666));
    OK(chmod("fifo", 0666));
    int fd = OK(open("fifo", O_RDWR | O_NONBLOCK));
    OK(setresuid(1000, 1000, 1000));
    block_signal(SIGIO);
    OK(fcntl(fd, F_SETOWN, getpid()));
    ERR(fcntl(fd, F_SETFL, O_ASYNC | O_NOATIME), EPERM);
    EQ(write(fd, "x", 1), 1);
    expect_no_signal(SIGIO);
}

CASE(terminal_does_not_tell_of_its_own_echo) {
    int master, slave;
    OK(openpty(&master, &slave, NULL, NULL, NULL));
    int signo = tell(slave);
    char b[64];
    EQ(write(slave, "output", 6), 6);
    EQ(read(master, b, sizeof b), 6);
    expect_no_signal(signo);
}
