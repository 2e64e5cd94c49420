// Descriptors of processes and threads (pidfd_open(2)) as Linux 6.5 to 6.13 has them: PIDFD_THREAD, scopes of
// pidfd_send_signal(2), ioctl(2) of them, SO_PEERPIDFD, SO_PASSPIDFD, SCM_PIDFD. A kernel that has not got one skips its
// cases.
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/vfs.h>

enum { THREAD = O_EXCL, TO_THREAD = 1, TO_GROUP = 2, TO_PROCESS_GROUP = 4, PEER_PIDFD = 77, PASS_PIDFD = 76, CMSG_PIDFD = 4 };

static int pidfd_of(pid_t pid, unsigned flags) { return (int)syscall(SYS_pidfd_open, pid, flags); }
static long signal_to(int fd, int signo, unsigned flags) { return syscall(SYS_pidfd_send_signal, fd, signo, NULL, flags); }

static void needs_threads(void) {
    int fd = pidfd_of(getpid(), THREAD);
    if (fd < 0 && errno == EINVAL) skip_case("no PIDFD_THREAD");
    CHECK(fd >= 0);
    close(fd);
}

static bool is_readable(int fd, int timeout_ms, short *events) {
    struct pollfd p = {fd, POLLIN, 0};
    int count = OK(poll(&p, 1, timeout_ms));
    *events = p.revents;
    return count == 1;
}

static _Atomic pid_t helper;
static _Atomic int orders, caught;

// Lives until it is told to end.
static void *live(void *unused) {
    (void)unused;
    helper = gettid();
    while (!orders) sleep_ms(1);
    return NULL;
}

static pthread_t another_thread(void) {
    pthread_t thread;
    helper = orders = 0;
    ZERO(pthread_create(&thread, NULL, live, NULL));
    WAIT_UNTIL(helper);
    return thread;
}

CASE(a_thread_that_ends_is_seen) {
    needs_threads();
    pthread_t thread = another_thread();
    int fd = OK(pidfd_of(helper, THREAD)), nonblocking = OK(pidfd_of(helper, THREAD | O_NONBLOCK));
    CHECK(pidfd_of(helper, 0) == -1 && (errno == EINVAL || errno == ENOENT));
    EQ(fcntl(fd, F_GETFL) & (O_ACCMODE | THREAD | O_NONBLOCK), O_RDWR | THREAD);
    EQ(fcntl(nonblocking, F_GETFL) & (O_ACCMODE | THREAD | O_NONBLOCK), O_RDWR | THREAD | O_NONBLOCK);
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    short events;
    CHECK(!is_readable(fd, 0, &events));
    OK(signal_to(fd, 0, 0));
    orders = 1;
    CHECK(is_readable(fd, -1, &events));
    EQ(events & POLLIN, POLLIN);
    ZERO(pthread_join(thread, NULL));
    WAIT_UNTIL(is_readable(fd, 0, &events) && events == (POLLIN | POLLHUP));
    ERR(signal_to(fd, 0, 0), ESRCH);
    ERR(signal_to(fd, 0, TO_GROUP), ESRCH);
    char text[512];
    sprintf(text, "/proc/self/fdinfo/%d", fd);
    read_file(text, text, sizeof text);
    CHECK(strstr(text, "Pid:\t-1\n"));
}

// It has no memory of its own that the library could use.
static int only_wait(void *unused) {
    (void)unused;
    while (!orders) syscall(SYS_sched_yield);
    return 0;
}

CASE(a_thread_that_clone_makes_has_a_descriptor) {
    needs_threads();
    static char stack[65536] __attribute__((aligned(16)));
    int fd = -1, flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_PIDFD;
    pid_t tid = OK(clone(only_wait, stack + sizeof stack, flags, NULL, &fd));
    CHECK(fd >= 0);
    EQ(fcntl(fd, F_GETFL) & THREAD, THREAD);
    char text[512], line[64];
    sprintf(text, "/proc/self/fdinfo/%d", fd);
    read_file(text, text, sizeof text);
    sprintf(line, "Pid:\t%d\n", tid);
    CHECK(strstr(text, line));
    short events;
    CHECK(!is_readable(fd, 0, &events));
    orders = 1;
    CHECK(is_readable(fd, -1, &events));
    // Nowhere to store it: there is no thread.
    ERR(clone(only_wait, stack + sizeof stack, flags, NULL, (void *)8), EFAULT);
}

CASE(what_takes_a_process_takes_no_thread) {
    needs_threads();
    pthread_t thread = another_thread();
    int fd = OK(pidfd_of(helper, THREAD)), whole = OK(pidfd_of(getpid(), THREAD));
    struct iovec range = {&fd, 1};
    ERR(syscall(SYS_process_madvise, fd, &range, 1, MADV_COLD, 0), ESRCH);
    ERR(syscall(SYS_process_mrelease, fd, 0), ESRCH);
    siginfo_t info;
    ERR(waitid(P_PIDFD, fd, &info, WEXITED), ECHILD);
    // A thread has descriptors, those of its process here.
    int copy = OK((int)syscall(SYS_pidfd_getfd, fd, fd, 0));
    struct stat one, other;
    OK(fstat(fd, &one));
    OK(fstat(copy, &other));
    EQ(one.st_ino, other.st_ino);
    OK(fstat(whole, &other));
    CHECK(one.st_ino != other.st_ino);
    OK(close(copy));
    ERR(pidfd_of(getpid(), THREAD | O_CLOEXEC), EINVAL);
    orders = 1;
    ZERO(pthread_join(thread, NULL));
}

static void note(int signo, siginfo_t *info, void *context) {
    (void)signo, (void)context;
    if (info->si_code == SI_TKILL && info->si_pid == getpid()) caught = gettid();
    if (info->si_code == SI_USER) caught = -1;
}

CASE(a_signal_for_one_thread) {
    needs_threads();
    OK(sigaction(SIGUSR1, &(struct sigaction){.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL));
    pthread_t thread = another_thread();
    int fd = OK(pidfd_of(helper, THREAD)), process = OK(pidfd_of(getpid(), 0));
    OK(signal_to(fd, SIGUSR1, 0));
    WAIT_UNTIL(caught);
    EQ(caught, helper);
    caught = 0;
    OK(signal_to(fd, SIGUSR1, TO_THREAD));
    WAIT_UNTIL(caught);
    EQ(caught, helper);
    caught = 0;
    OK(signal_to(process, SIGUSR1, TO_THREAD));
    WAIT_UNTIL(caught);
    EQ(caught, getpid());
    caught = 0;
    OK(signal_to(fd, SIGUSR1, TO_GROUP));
    WAIT_UNTIL(caught);
    EQ(caught, -1);
    // No group has the number of a thread.
    ERR(signal_to(fd, SIGUSR1, TO_PROCESS_GROUP), ESRCH);
    // One scope, and none that there is not.
    ERR(signal_to(process, SIGUSR1, TO_THREAD | TO_GROUP), EINVAL);
    ERR(signal_to(process, SIGUSR1, 8), EINVAL);
    ERR(signal_to(process, 65, 0), EINVAL);
    // The information has to fit.
    siginfo_t info = {.si_signo = SIGUSR2, .si_code = SI_QUEUE};
    ERR(syscall(SYS_pidfd_send_signal, process, SIGUSR1, &info, 0), EINVAL);
    orders = 1;
    ZERO(pthread_join(thread, NULL));
}

CASE(a_signal_for_a_process_group) {
    needs_threads();
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = OK(fork());
        if (pids[i] == 0) {
            pause();
            _exit(0);
        }
        OK(setpgid(pids[i], pids[0]));
    }
    int leader = OK(pidfd_of(pids[0], 0)), member = OK(pidfd_of(pids[1], 0));
    // The group with that number is meant, not the one that the process is in.
    ERR(signal_to(member, SIGTERM, TO_PROCESS_GROUP), ESRCH);
    siginfo_t info = {.si_signo = SIGTERM, .si_code = SI_USER};
    ERR(syscall(SYS_pidfd_send_signal, leader, SIGTERM, &info, TO_PROCESS_GROUP), EPERM);
    OK(signal_to(leader, SIGTERM, TO_PROCESS_GROUP));
    expect_killed(pids[0], SIGTERM);
    expect_killed(pids[1], SIGTERM);
    ERR(signal_to(leader, SIGTERM, TO_PROCESS_GROUP), ESRCH);
}

CASE(a_process_that_has_been_waited_for) {
    needs_threads();
    pid_t pid = OK(fork());
    if (pid == 0) _exit(0);
    int fd = OK(pidfd_of(pid, 0));
    short events;
    CHECK(is_readable(fd, -1, &events));
    EQ(events, POLLIN);
    // It is there still, as a zombie.
    OK(signal_to(fd, SIGTERM, 0));
    expect_exit(pid, 0);
    ERR(signal_to(fd, 0, 0), ESRCH);
    CHECK(is_readable(fd, 0, &events));
    EQ(events, POLLIN | POLLHUP);
}

CASE(descriptors_of_one_process_have_one_number) {
    needs_threads();
    int one = OK(pidfd_of(getpid(), 0)), other = OK(pidfd_of(getpid(), THREAD)), parent = OK(pidfd_of(getppid(), 0));
    struct stat a, b, c;
    OK(fstat(one, &a));
    OK(fstat(other, &b));
    OK(fstat(parent, &c));
    EQ(a.st_ino, b.st_ino);
    CHECK(a.st_ino != c.st_ino);
    EQ(a.st_mode, 0700);
    struct statfs fs;
    OK(fstatfs(one, &fs));
    EQ(fs.f_type, 0x50494446);
    char path[64], name[64] = "";
    sprintf(path, "/proc/self/fd/%d", one);
    OK(readlink(path, name, sizeof name - 1));
    CHECK(!strcmp(name, "anon_inode:[pidfd]") || !strncmp(name, "pidfd:[", 7));
}

// ---- ioctl ----

struct info {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid, spare;
};
#define GET_INFO _IOWR(0xff, 11, struct info)

CASE(namespaces_of_a_process) {
    static const char *names[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"};
    int fd = OK(pidfd_of(getpid(), 0));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        int namespace = ioctl(fd, _IO(0xff, i + 1), 0);
        if (namespace < 0 && errno == ENOTTY && i == 0) skip_case("no such requests");
        CHECK(namespace >= 0);
        char path[64];
        sprintf(path, "/proc/self/ns/%s", names[i]);
        struct stat one, other;
        OK(fstat(namespace, &one));
        OK(stat(path, &other));
        EQ(one.st_ino, other.st_ino);
        EQ(fcntl(namespace, F_GETFD), FD_CLOEXEC);
        OK(close(namespace));
        ERR(ioctl(fd, _IO(0xff, i + 1), 1), EINVAL);
    }
    pid_t pid = OK(fork());
    if (pid == 0) _exit(0);
    int ended = OK(pidfd_of(pid, 0));
    expect_exit(pid, 0);
    ERR(ioctl(ended, _IO(0xff, 3), 0), ESRCH);
    int own = OK(pidfd_of(getpid(), 0));
    AS_NOBODY(ERR(ioctl(own, _IO(0xff, 3), 0), EACCES));
}

CASE(what_a_descriptor_tells_of_a_process) {
    struct info info = {.mask = 3};
    int fd = OK(pidfd_of(getpid(), 0));
    if (ioctl(fd, GET_INFO, &info) < 0 && (errno == ENOTTY || errno == EINVAL)) skip_case("no PIDFD_GET_INFO");
    EQ(info.mask & 3, 3);
    EQ(info.pid, getpid());
    EQ(info.tgid, getpid());
    EQ(info.ppid, getppid());
    EQ(info.ruid, getuid());
    EQ(info.egid, getegid());
    ERR(ioctl(fd, GET_INFO, NULL), EINVAL);
    ERR(ioctl(fd, GET_INFO, (void *)8), EFAULT);
    // Smaller than it ever was.
    CHECK(ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, 56), &info) == -1 && (errno == EINVAL || errno == ENOTTY));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresgid(5, 6, 7));
        OK(setresuid(8, 9, 10));
        pause();
    }
    int child = OK(pidfd_of(pid, 0));
    do {
        OK(ioctl(child, GET_INFO, &info));
    } while (info.suid != 10);
    EQ(info.pid, pid);
    EQ(info.ppid, getpid());
    EQ(info.rgid, 5);
    EQ(info.egid, 6);
    EQ(info.sgid, 7);
    EQ(info.fsgid, 6);
    EQ(info.ruid, 8);
    EQ(info.euid, 9);
    EQ(info.fsuid, 9);
    OK(signal_to(child, SIGKILL, 0));
    expect_killed(pid, SIGKILL);
    // Later kernels tell how it ended, who asks for that.
    info.mask = 0;
    ERR(ioctl(child, GET_INFO, &info), ESRCH);
}

CASE(a_thread_tells_its_own_number) {
    needs_threads();
    pthread_t thread = another_thread();
    int fd = OK(pidfd_of(helper, THREAD));
    struct info info = {0};
    if (ioctl(fd, GET_INFO, &info) < 0 && (errno == ENOTTY || errno == EINVAL)) skip_case("no PIDFD_GET_INFO");
    EQ(info.pid, helper);
    EQ(info.tgid, getpid());
    orders = 1;
    ZERO(pthread_join(thread, NULL));
}

// ---- sockets ----

static void expect_names(int fd, pid_t pid) {
    char path[64], text[512], line[64];
    CHECK(fd >= 0);
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    sprintf(path, "/proc/self/fdinfo/%d", fd);
    read_file(path, text, sizeof text);
    sprintf(line, "Pid:\t%d\n", pid);
    CHECK(strstr(text, line));
}

static int peer_of(int socket) {
    int fd = -1;
    socklen_t length = sizeof fd;
    if (getsockopt(socket, SOL_SOCKET, PEER_PIDFD, &fd, &length) < 0) {
        if (errno == ENOPROTOOPT) skip_case("no SO_PEERPIDFD");
        return -1;
    }
    EQ(length, sizeof fd);
    return fd;
}

CASE(who_connected) {
    int listener = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    OK(bind(listener, (void *)&address, sizeof address));
    OK(listen(listener, 4));
    expect_names(peer_of(listener), getpid());
    pid_t pid = OK(fork());
    if (pid == 0) {
        int client = OK(socket(AF_UNIX, SOCK_STREAM, 0));
        OK(connect(client, (void *)&address, sizeof address));
        char byte;
        EQ(read(client, &byte, 1), 1);
        _exit(0);
    }
    int server = OK(accept(listener, NULL, NULL)), fd = peer_of(server);
    expect_names(fd, pid);
    OK(write(server, "x", 1));
    OK(close(fd));
    expect_exit(pid, 0);
    int pair[2], alone = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK(peer_of(alone) == -1 && (errno == ENODATA || errno == ESRCH));
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    expect_names(peer_of(pair[0]), getpid());
    // None is left open that nobody was told of.
    int before = OK(dup(0)), value;
    OK(close(before));
    ERR(getsockopt(pair[0], SOL_SOCKET, PEER_PIDFD, (void *)8, &(socklen_t){sizeof value}), EFAULT);
    int after = OK(dup(0));
    EQ(after, before);
}

struct got {
    struct ucred who;
    int pidfd, file, flags;
};

static struct got receive(int socket, size_t room) {
    char byte, control[256] __attribute__((aligned(8)));
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    EQ(recvmsg(socket, &message, 0), 1);
    struct got got = {.pidfd = -1000, .file = -1000, .flags = message.msg_flags};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        EQ(c->cmsg_level, SOL_SOCKET);
        if (c->cmsg_type == SCM_CREDENTIALS) memcpy(&got.who, CMSG_DATA(c), sizeof got.who);
        if (c->cmsg_type == SCM_RIGHTS) memcpy(&got.file, CMSG_DATA(c), sizeof got.file);
        if (c->cmsg_type == CMSG_PIDFD) memcpy(&got.pidfd, CMSG_DATA(c), sizeof got.pidfd);
    }
    return got;
}

static void set(int socket, int option, int value) {
    if (setsockopt(socket, SOL_SOCKET, option, &value, sizeof value) < 0 && errno == ENOPROTOOPT) skip_case("no SO_PASSPIDFD");
    int now;
    OK(getsockopt(socket, SOL_SOCKET, option, &now, &(socklen_t){sizeof now}));
    EQ(now, value);
}

static void who_sent(int kind) {
    int pair[2];
    OK(socketpair(AF_UNIX, kind, 0, pair));
    set(pair[1], PASS_PIDFD, 1);
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 4; i++) OK(send(pair[0], "x", 1, 0));
        char byte;
        EQ(recv(pair[0], &byte, 1, 0), 1);
        _exit(0);
    }
    struct got got = receive(pair[1], 256);
    expect_names(got.pidfd, pid);
    EQ(got.who.pid, 0);
    EQ(got.flags & MSG_CTRUNC, 0);
    // Both, as often as is asked.
    set(pair[1], SO_PASSCRED, 1);
    got = receive(pair[1], 256);
    expect_names(got.pidfd, pid);
    EQ(got.who.pid, pid);
    got = receive(pair[1], CMSG_SPACE(sizeof got.who) + CMSG_LEN(0));
    EQ(got.pidfd, -1000);
    EQ(got.flags & MSG_CTRUNC, MSG_CTRUNC);
    set(pair[1], PASS_PIDFD, 0);
    got = receive(pair[1], 256);
    EQ(got.pidfd, -1000);
    EQ(got.who.pid, pid);
    OK(send(pair[1], "x", 1, 0));
    expect_exit(pid, 0);
}

CASE(who_sent_to_a_stream) { who_sent(SOCK_STREAM); }
CASE(who_sent_a_datagram) { who_sent(SOCK_DGRAM); }
CASE(who_sent_a_packet) { who_sent(SOCK_SEQPACKET); }

CASE(a_file_and_who_sent_it) {
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    set(pair[1], PASS_PIDFD, 1);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &(int){0}, sizeof(int));
    EQ(sendmsg(pair[0], &message, 0), 1);
    struct got got = receive(pair[1], 256);
    expect_names(got.pidfd, getpid());
    CHECK(got.file >= 0 && got.file != got.pidfd);
    // Nobody sends one.
    c->cmsg_type = CMSG_PIDFD;
    ERR(sendmsg(pair[0], &message, 0), EINVAL);
}
