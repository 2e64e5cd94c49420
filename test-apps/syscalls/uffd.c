// userfaultfd(2), ioctl_userfaultfd(2): page faults that a program serves itself.
#include "harness.h"

#include <arpa/inet.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
enum { PAGE = 4096 };
static const uint64_t EXACT = 1 << 11;

static int new_fd(int flags) {
    int fd = (int)syscall(SYS_userfaultfd, flags);
    if (fd == -1 && errno == ENOSYS) skip_case("the kernel has no such call");
    return OK(fd);
}

static int with_features(int flags, uint64_t features) {
    int fd = new_fd(flags);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    OK(ioctl(fd, UFFDIO_API, &api));
    EQ(api.features & features, features);
    return fd;
}

static char *pages(int count) {
    return OK(mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static int enroll_as(int fd, char *at, int count, uint64_t mode) {
    struct uffdio_register r = {.range = {(uintptr_t)at, (uint64_t)count * PAGE}, .mode = mode};
    return ioctl(fd, UFFDIO_REGISTER, &r);
}

static int enroll(int fd, char *at, int count) { return enroll_as(fd, at, count, UFFDIO_REGISTER_MODE_MISSING); }

static int leave(int fd, char *at, int count) {
    struct uffdio_range r = {(uintptr_t)at, (uint64_t)count * PAGE};
    return ioctl(fd, UFFDIO_UNREGISTER, &r);
}

static int wake(int fd, char *at, int count) {
    struct uffdio_range r = {(uintptr_t)at, (uint64_t)count * PAGE};
    return ioctl(fd, UFFDIO_WAKE, &r);
}

static int64_t copied;

static int copy(int fd, char *to, const char *from, int count, uint64_t mode) {
    struct uffdio_copy c = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = (uint64_t)count * PAGE, .mode = mode};
    int result = ioctl(fd, UFFDIO_COPY, &c);
    copied = c.copy;
    return result;
}

static int zero(int fd, char *to, int count, uint64_t mode) {
    struct uffdio_zeropage z = {.range = {(uintptr_t)to, (uint64_t)count * PAGE}, .mode = mode};
    int result = ioctl(fd, UFFDIO_ZEROPAGE, &z);
    copied = z.zeropage;
    return result;
}

static int protect(int fd, char *at, int count, uint64_t mode) {
    struct uffdio_writeprotect p = {.range = {(uintptr_t)at, (uint64_t)count * PAGE}, .mode = mode};
    return ioctl(fd, UFFDIO_WRITEPROTECT, &p);
}

static char *filled(int count, int byte) {
    char *p = pages(count);
    memset(p, byte, (size_t)count * PAGE);
    return p;
}

static struct uffd_msg next(int fd) {
    struct uffd_msg msg;
    ssize_t got;
    while ((got = read(fd, &msg, sizeof msg)) == -1 && errno == EAGAIN) sleep_ms(1);
    EQ(got, sizeof msg);
    return msg;
}

static void expect_fault(int fd, char *at, uint64_t flags) {
    struct uffd_msg msg = next(fd);
    EQ(msg.event, UFFD_EVENT_PAGEFAULT);
    EQ(msg.arg.pagefault.address, (uintptr_t)at);
    EQ(msg.arg.pagefault.flags, flags);
}

// A thread that touches a byte.
struct toucher {
    pthread_t thread;
    volatile char *at;
    bool writes;
    atomic_int tid, done;
    char seen;
};

static void *touch(void *arg) {
    struct toucher *t = arg;
    t->tid = (int)syscall(SYS_gettid);
    if (t->writes)
        *t->at = 'w';
    else
        t->seen = *t->at;
    t->done = 1;
    return NULL;
}

static struct toucher *start(char *at, bool writes) {
    struct toucher *t = calloc(1, sizeof *t);
    t->at = at;
    t->writes = writes;
    ZERO(pthread_create(&t->thread, NULL, touch, t));
    return t;
}

static char end(struct toucher *t) {
    ZERO(pthread_join(t->thread, NULL));
    return t->seen;
}

CASE(who_may_have_one) {
    int fd = new_fd(O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    ERR(syscall(SYS_userfaultfd, 0x100), EINVAL);
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EQ(fcntl(fd, F_GETFL) & (O_NONBLOCK | O_ACCMODE), O_NONBLOCK);
    char text[64] = "", path[64], link[64] = "";
    read_file("/proc/sys/vm/unprivileged_userfaultfd", text, sizeof text);
    CHECK(text[0] == '0' || text[0] == '1');
    bool is_for_all = text[0] == '1';
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(readlink(path, link, sizeof link - 1));
    STR_EQ(link, "anon_inode:[userfaultfd]");
    AS_NOBODY({
        if (!is_for_all) ERR(syscall(SYS_userfaultfd, 0), EPERM);
        if (!is_for_all) ERR(syscall(SYS_userfaultfd, 0x100), EPERM);
        OK(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY));
        ERR(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY | 0x100), EINVAL);
    });
}

CASE(handshake_comes_first_and_once) {
    int fd = new_fd(O_NONBLOCK);
    char *p = pages(1);
    struct uffd_msg msg;
    ERR(enroll(fd, p, 1), EINVAL);
    ERR(read(fd, &msg, sizeof msg), EINVAL);
    struct pollfd poller = {fd, POLLIN, 0};
    EQ(poll(&poller, 1, 0), 1);
    EQ(poller.revents, POLLERR);
    struct uffdio_api api = {.api = UFFD_API + 1};
    ERR(ioctl(fd, UFFDIO_API, &api), EINVAL);
    EQ(api.api, 0);
    api = (struct uffdio_api){.api = UFFD_API, .features = 1ull << 62};
    ERR(ioctl(fd, UFFDIO_API, &api), EINVAL);
    EQ(api.features, 0);
    ERR(ioctl(fd, UFFDIO_API, NULL), EFAULT);
    api = (struct uffdio_api){.api = UFFD_API};
    OK(ioctl(fd, UFFDIO_API, &api));
    CHECK(api.features & UFFD_FEATURE_THREAD_ID && api.features & UFFD_FEATURE_SIGBUS);
    EQ(api.ioctls, 1ull << _UFFDIO_REGISTER | 1ull << _UFFDIO_UNREGISTER | 1ull << _UFFDIO_API);
    ERR(ioctl(fd, UFFDIO_API, &api), EINVAL);
    ERR(ioctl(fd, 0xaa11, &api), EINVAL);
    EQ(poll(&poller, 1, 0), 0);
    ERR(read(fd, &msg, sizeof msg), EAGAIN);
    ERR(read(fd, &msg, sizeof msg - 1), EINVAL);
    ERR(write(fd, &msg, sizeof msg), EBADF);
    EQ(lseek(fd, 5, SEEK_SET), 0);
}

CASE(what_can_be_registered) {
    int fd = with_features(O_NONBLOCK, 0), other = with_features(0, 0);
    char *p = pages(4);
    struct uffdio_register r = {.range = {(uintptr_t)p, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    OK(ioctl(fd, UFFDIO_REGISTER, &r));
    uint64_t wanted = 1ull << _UFFDIO_WAKE | 1ull << _UFFDIO_COPY | 1ull << _UFFDIO_ZEROPAGE;
    EQ(r.ioctls & wanted, wanted);
    CHECK(!(r.ioctls & 1ull << _UFFDIO_WRITEPROTECT));
    OK(enroll(fd, p, 1));
    ERR(enroll(other, p, 1), EBUSY);
    ERR(enroll(other, p, 4), EBUSY);
    OK(enroll(other, p + PAGE, 1));
    ERR(enroll_as(fd, p, 1, 0), EINVAL);
    ERR(enroll_as(fd, p, 1, 64), EINVAL);
    ERR(enroll(fd, p + 1, 1), EINVAL);
    ERR(enroll(fd, p, 0), EINVAL);
    ERR(enroll(fd, (char *)-PAGE, 1), EINVAL);
    ERR(enroll(fd, (char *)(uintptr_t)0x7ffffffff000, 4), EINVAL);
    OK(munmap(p + 3 * PAGE, PAGE));
    ERR(enroll(fd, p + 3 * PAGE, 1), EINVAL);
    OK(enroll(fd, p + 2 * PAGE, 2));
    // Not one of the scratch directory, which may be a tmpfs.
    int file = OK(open("/proc/self/exe", O_RDONLY));
    char *text = OK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0));
    ERR(enroll(fd, text, 1), EINVAL);
    ERR(ioctl(fd, UFFDIO_REGISTER, NULL), EFAULT);
    ERR(leave(fd, p + 1, 1), EINVAL);
    ERR(leave(fd, p + 3 * PAGE, 1), EINVAL);
    OK(leave(fd, p, 1));
    OK(leave(fd, p, 1));
    OK(enroll(other, p, 1));
}

CASE(missing_page_is_copied) {
    int fd = with_features(0, 0);
    char *p = pages(4), *from = filled(1, 'x');
    OK(enroll(fd, p, 4));
    struct toucher *t = start(p + PAGE + 100, false);
    expect_fault(fd, p + PAGE, 0);
    EQ(t->done, 0);
    OK(copy(fd, p + PAGE, from, 1, 0));
    EQ(copied, PAGE);
    EQ(end(t), 'x');
    // The next page is missing as before.
    t = start(p + 2 * PAGE, true);
    expect_fault(fd, p + 2 * PAGE, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(copy(fd, p + 2 * PAGE, from, 1, 0));
    end(t);
    EQ(p[2 * PAGE], 'w');
    EQ(p[2 * PAGE + 1], 'x');
    EQ(from[0], 'x');
}

CASE(missing_page_is_zero) {
    int fd = with_features(0, 0);
    char *p = pages(3);
    OK(enroll(fd, p, 3));
    struct toucher *t = start(p, true);
    expect_fault(fd, p, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p, 2, 0));
    EQ(copied, 2 * PAGE);
    end(t);
    EQ(p[0], 'w');
    EQ(p[1], 0);
    EQ(p[PAGE], 0);
    p[PAGE] = 1;
    ERR(zero(fd, p, 1, 0), EEXIST);
    EQ(copied, -EEXIST);
    ERR(zero(fd, p + 2 * PAGE, 1, 2), EINVAL);
}

CASE(thread_and_exact_address_are_told) {
    int fd = with_features(0, UFFD_FEATURE_THREAD_ID | EXACT);
    char *p = pages(1);
    OK(enroll(fd, p, 1));
    struct toucher *t = start(p + 123, false);
    struct uffd_msg msg = next(fd);
    EQ(msg.arg.pagefault.address, (uintptr_t)p + 123);
    EQ(msg.arg.pagefault.feat.ptid, t->tid);
    OK(zero(fd, p, 1, 0));
    end(t);
}

CASE(copy_finds_what_is_there) {
    int fd = with_features(0, 0);
    char *p = pages(4), *from = filled(4, 'y');
    ERR(copy(fd, p, from, 1, 0), ENOENT);
    EQ(copied, -ENOENT);
    OK(enroll(fd, p, 3));
    OK(copy(fd, p + PAGE, from, 1, 0));
    ERR(copy(fd, p + PAGE, from, 1, 0), EEXIST);
    EQ(copied, -EEXIST);
    // As far as it goes.
    ERR(copy(fd, p, from, 3, 0), EAGAIN);
    EQ(copied, PAGE);
    ERR(copy(fd, p + PAGE, from, 3, 0), ENOENT);
    ERR(copy(fd, p + 2 * PAGE, from, 1, 8), EINVAL);
    ERR(copy(fd, p + 1, from, 1, 0), EINVAL);
    ERR(copy(fd, p, from, 0, 0), EINVAL);
    char *hole = pages(2);
    hole[0] = 'h';
    OK(munmap(hole + PAGE, PAGE));
    ERR(copy(fd, p + 2 * PAGE, hole + PAGE, 1, 0), EFAULT);
    EQ(copied, -EFAULT);
    OK(copy(fd, p + 2 * PAGE, hole, 1, 0));
    EQ(p[0], 'y');
    EQ(p[2 * PAGE], 'h');
    OK(munmap(p, PAGE));
    ERR(copy(fd, p, from, 1, 0), ENOENT);
}

CASE(what_was_there_before_stays) {
    int fd = with_features(0, 0);
    char *p = pages(16), *from = filled(1, 'n');
    p[3 * PAGE] = 'o';
    OK(enroll(fd, p, 16));
    EQ(p[3 * PAGE], 'o');
    ERR(copy(fd, p + 3 * PAGE, from, 1, 0), EEXIST);
    // What lies beside it was never touched.
    for (int i = 0; i < 16; i++) {
        if (i == 3) continue;
        struct toucher *t = start(p + i * PAGE, false);
        expect_fault(fd, p + i * PAGE, 0);
        OK(copy(fd, p + i * PAGE, from, 1, 0));
        EQ(end(t), 'n');
    }
    EQ(p[3 * PAGE], 'o');
}

CASE(copy_need_not_wake) {
    int fd = with_features(O_NONBLOCK, 0);
    char *p = pages(1), *from = filled(1, 'q');
    OK(enroll(fd, p, 1));
    struct toucher *t = start(p, false);
    expect_fault(fd, p, 0);
    OK(copy(fd, p, from, 1, UFFDIO_COPY_MODE_DONTWAKE));
    sleep_ms(30);
    EQ(t->done, 0);
    OK(wake(fd, p, 1));
    EQ(end(t), 'q');
    ERR(wake(fd, p + 1, 1), EINVAL);
}

CASE(wake_without_page_is_another_fault) {
    int fd = with_features(0, 0);
    char *p = pages(1);
    OK(enroll(fd, p, 1));
    struct toucher *t = start(p, false);
    for (int i = 0; i < 3; i++) {
        expect_fault(fd, p, 0);
        OK(wake(fd, p, 1));
    }
    expect_fault(fd, p, 0);
    OK(zero(fd, p, 1, 0));
    EQ(end(t), 0);
}

CASE(poll_tells_of_faults) {
    int fd = with_features(O_NONBLOCK, 0);
    char *p = pages(2);
    OK(enroll(fd, p, 2));
    struct pollfd poller = {fd, POLLIN, 0};
    struct toucher *t = start(p, false);
    EQ(poll(&poller, 1, 5000), 1);
    EQ(poller.revents, POLLIN);
    struct toucher *u = start(p + PAGE, false);
    // Both are read at once, when both are there.
    struct uffd_msg msgs[4];
    int faults = 0;
    while (faults < 2) {
        ssize_t got = read(fd, msgs, sizeof msgs);
        if (got == -1) {
            EQ(errno, EAGAIN);
            sleep_ms(1);
            continue;
        }
        EQ(got % (ssize_t)sizeof *msgs, 0);
        faults += (int)(got / (ssize_t)sizeof *msgs);
    }
    EQ(poll(&poller, 1, 0), 0);
    OK(zero(fd, p, 2, 0));
    end(t);
    end(u);
    // One that blocks cannot be polled.
    OK(fcntl(fd, F_SETFL, 0));
    EQ(poll(&poller, 1, 0), 1);
    EQ(poller.revents, POLLERR);
}

CASE(many_threads_fault_on_one_page) {
    int fd = with_features(0, 0);
    char *p = pages(1), *from = filled(1, 'm');
    OK(enroll(fd, p, 1));
    struct toucher *t[16];
    for (int i = 0; i < 16; i++) t[i] = start(p + i, false);
    for (int i = 0; i < 16; i++) expect_fault(fd, p, 0);
    OK(copy(fd, p, from, 1, 0));
    for (int i = 0; i < 16; i++) EQ(end(t[i]), 'm');
}

struct monitor {
    int fd;
    char *base;
    int pages, served;
};

// Serves faults with pages of the number of the page, until all of them are there.
static void *serve(void *arg) {
    struct monitor *m = arg;
    char *page = pages(1);
    while (m->served < m->pages) {
        struct uffd_msg msg = next(m->fd);
        char *at = (char *)(uintptr_t)msg.arg.pagefault.address;
        memset(page, (int)((at - m->base) / PAGE) + 1, PAGE);
        int result = copy(m->fd, at, page, 1, 0);
        if (result == 0)
            m->served++;
        else
            CHECK(errno == EEXIST && wake(m->fd, at, 1) == 0);
    }
    return NULL;
}

static struct { char *base; int pages; } area;

static void *read_all(void *arg) {
    int from = (int)(intptr_t)arg;
    for (int i = 0; i < area.pages; i++) {
        int page = (i + from) % area.pages;
        EQ(((volatile char *)area.base)[page * PAGE + from], (char)(page + 1));
    }
    return NULL;
}

CASE(sixty_four_threads_fault_everywhere) {
    struct monitor m = {with_features(0, 0), pages(64), 64, 0};
    OK(enroll(m.fd, m.base, 64));
    area.base = m.base;
    area.pages = 64;
    pthread_t monitor, threads[64];
    ZERO(pthread_create(&monitor, NULL, serve, &m));
    for (intptr_t i = 0; i < 64; i++) ZERO(pthread_create(&threads[i], NULL, read_all, (void *)i));
    // Who finds its page there when it is told last may never be: all are woken at the end.
    ZERO(pthread_join(monitor, NULL));
    OK(leave(m.fd, m.base, 64));
    for (int i = 0; i < 64; i++) ZERO(pthread_join(threads[i], NULL));
}

CASE(unregistered_memory_is_the_kernels) {
    int fd = with_features(0, 0);
    char *p = pages(3);
    OK(enroll(fd, p, 3));
    struct toucher *t = start(p + PAGE, false);
    expect_fault(fd, p + PAGE, 0);
    OK(leave(fd, p + PAGE, 1));
    EQ(end(t), 0);
    t = start(p + 2 * PAGE, false);
    expect_fault(fd, p + 2 * PAGE, 0);
    OK(zero(fd, p + 2 * PAGE, 1, 0));
    end(t);
    ERR(copy(fd, p, p + PAGE, 2, 0), ENOENT);
}

CASE(close_lets_all_go) {
    int fd = with_features(0, 0);
    char *p = pages(4);
    OK(enroll(fd, p, 4));
    struct toucher *t = start(p, false), *u = start(p + PAGE, true);
    next(fd);
    // The other one is not read.
    sleep_ms(10);
    OK(close(fd));
    EQ(end(t), 0);
    end(u);
    EQ(p[PAGE], 'w');
    EQ(p[2 * PAGE], 0);
    fd = with_features(0, 0);
    OK(enroll(fd, p, 4));
}

static atomic_int handled;

static void on_signal(int signo) { handled += signo == SIGUSR1; }

CASE(signal_is_handled_while_a_thread_waits) {
    int fd = with_features(0, 0);
    char *p = pages(1), *from = filled(1, 's');
    OK(enroll(fd, p, 1));
    signal(SIGUSR1, on_signal);
    struct toucher *t = start(p, false);
    expect_fault(fd, p, 0);
    ZERO(pthread_kill(t->thread, SIGUSR1));
    WAIT_UNTIL(handled);
    // The instruction was begun again.
    expect_fault(fd, p, 0);
    EQ(t->done, 0);
    OK(copy(fd, p, from, 1, 0));
    EQ(end(t), 's');
}

CASE(who_waits_can_be_killed) {
    int fd = with_features(0, 0);
    char *p = pages(1);
    OK(enroll(fd, p, 1));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int own = with_features(0, 0);
        OK(enroll(own, p, 1));
        *(volatile char *)p = 1;
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S' || process_state(pid) == 'D');
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    // A whole process ends while one of its threads waits.
    pid = OK(fork());
    if (pid == 0) {
        int own = with_features(0, 0);
        OK(enroll(own, p, 1));
        start(p, true);
        next(own);
        _exit(7);
    }
    expect_exit(pid, 7);
}

CASE(child_has_nothing_of_it) {
    int fd = with_features(O_NONBLOCK, 0);
    char *p = pages(2), *from = filled(1, 'f');
    OK(enroll(fd, p, 2));
    OK(copy(fd, p, from, 1, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(p[0], 'f');
        EQ(p[PAGE], 0);
        // It may have one of its own there.
        int own = with_features(0, 0);
        OK(enroll(own, p, 2));
        _exit(0);
    }
    expect_exit(pid, 0);
    struct uffd_msg msg;
    ERR(read(fd, &msg, sizeof msg), EAGAIN);
    ERR(copy(fd, p, from, 1, 0), EEXIST);
    OK(copy(fd, p + PAGE, from, 1, 0));
}

// Another process serves the faults of this one.
CASE(another_process_serves) {
    int fd = with_features(0, 0);
    char *p = pages(8);
    volatile int *ready = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *from = pages(1);
        WAIT_UNTIL(*ready);
        for (int i = 0; i < 8; i++) {
            struct uffd_msg msg = next(fd);
            memset(from, 'A' + i, PAGE);
            OK(copy(fd, (char *)(uintptr_t)msg.arg.pagefault.address, from, 1, 0));
        }
        _exit(0);
    }
    OK(enroll(fd, p, 8));
    *ready = 1;
    for (int i = 0; i < 8; i++) EQ(((volatile char *)p)[(7 - i) * PAGE], 'A' + i);
    expect_exit(pid, 0);
}

CASE(memory_may_have_ended) {
    int sockets[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    volatile char **place = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int fd = with_features(0, 0);
        char *p = pages(1);
        OK(enroll(fd, p, 1));
        *place = p;
        char control[CMSG_SPACE(sizeof fd)] = {0};
        struct iovec byte = {"b", 1};
        struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
        OK(sendmsg(sockets[1], &message, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec into = {&byte, 1};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    OK(recvmsg(sockets[0], &message, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    char *from = filled(1, 'e');
    ERR(copy(fd, (char *)*place, from, 1, 0), ESRCH);
    ERR(zero(fd, (char *)*place, 1, 0), ESRCH);
    OK(close(fd));
}

CASE(dropped_pages_are_missing_again) {
    int fd = with_features(0, 0);
    char *p = pages(4), *from = filled(1, 'd');
    OK(enroll(fd, p, 4));
    for (int i = 0; i < 4; i++) OK(copy(fd, p + i * PAGE, from, 1, 0));
    p[PAGE] = 'e';
    OK(madvise(p + PAGE, 2 * PAGE, MADV_DONTNEED));
    EQ(p[0], 'd');
    EQ(p[3 * PAGE], 'd');
    for (int i = 1; i < 3; i++) {
        struct toucher *t = start(p + i * PAGE, false);
        expect_fault(fd, p + i * PAGE, 0);
        OK(copy(fd, p + i * PAGE, from, 1, 0));
        EQ(end(t), 'd');
    }
}

CASE(moved_memory_is_the_kernels) {
    int fd = with_features(O_NONBLOCK, 0);
    char *p = pages(4), *room = pages(4), *from = filled(1, 'v');
    OK(enroll(fd, p, 2));
    OK(copy(fd, p, from, 1, 0));
    char *q = OK(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room));
    EQ(q[0], 'v');
    EQ(q[PAGE], 0);
    ERR(copy(fd, q + PAGE, from, 1, 0), ENOENT);
    ERR(copy(fd, p, from, 1, 0), ENOENT);
    // What grows in its place is registered as before.
    p = pages(4);
    OK(munmap(p + PAGE, 3 * PAGE));
    OK(enroll(fd, p, 1));
    EQ(OK(mremap(p, PAGE, 3 * PAGE, 0)), p);
    OK(copy(fd, p + 2 * PAGE, from, 1, 0));
    EQ(p[2 * PAGE], 'v');
}

CASE(pages_are_moved_out_and_missing) {
    int fd = with_features(0, 0);
    char *p = pages(2), *from = filled(1, 'g');
    p[0] = 'o';
    OK(enroll(fd, p, 2));
    char *q = OK(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
    EQ(q[0], 'o');
    EQ(q[PAGE], 0);
    struct toucher *t = start(p, false);
    expect_fault(fd, p, 0);
    OK(copy(fd, p, from, 1, 0));
    EQ(end(t), 'g');
}

CASE(registered_ranges_are_mappings_of_their_own) {
    int fd = with_features(0, 0), other = with_features(0, 0);
    char *p = pages(6), *from = filled(4, 'r');
    OK(enroll(fd, p + PAGE, 2));
    OK(enroll(other, p + 3 * PAGE, 2));
    // One request is about one mapping.
    ERR(copy(fd, p + 2 * PAGE, from, 2, 0), ENOENT);
    OK(copy(fd, p + PAGE, from, 2, 0));
    OK(mprotect(p + PAGE, PAGE, PROT_READ));
    EQ(p[2 * PAGE], 'r');
    OK(madvise(p + PAGE, 2 * PAGE, MADV_DONTNEED));
    OK(copy(fd, p + PAGE, from, 1, 0));
    ERR(copy(fd, p + PAGE, from, 2, 0), ENOENT);
    EQ(p[PAGE], 'r');
    // What is mapped there anew is nobody's.
    OK(mmap(p + PAGE, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    EQ(p[PAGE], 0);
    EQ(p[4 * PAGE], 0);
}

static volatile char *bus_at;
static atomic_int buses;

static void on_bus(int signo, siginfo_t *info, void *context) {
    (void)signo, (void)context;
    bus_at = info->si_addr;
    buses += info->si_code == BUS_ADRERR;
    OK(mprotect((void *)((uintptr_t)info->si_addr & -4096ul), PAGE, PROT_READ));
    OK(mmap((void *)((uintptr_t)info->si_addr & -4096ul), PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

CASE(fault_can_be_a_signal) {
    int fd = with_features(O_NONBLOCK, UFFD_FEATURE_SIGBUS);
    char *p = pages(2);
    OK(enroll(fd, p, 2));
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGBUS, &action, NULL));
    EQ(((volatile char *)p)[5], 0);
    EQ(buses, 1);
    EQ((uintptr_t)bus_at, (uintptr_t)p + 5);
    struct uffd_msg msg;
    ERR(read(fd, &msg, sizeof msg), EAGAIN);
    int pipes[2];
    OK(pipe(pipes));
    ERR(write(pipes[1], p + PAGE, 1), EFAULT);
    OK(zero(fd, p + PAGE, 1, 0));
    EQ(p[PAGE], 0);
}

// ---- accesses of the kernel ----

struct call {
    pthread_t thread;
    int fds[2];
    char *at;
    long result;
    int error;
    atomic_int tid;
};

static void *reads(void *arg) {
    struct call *c = arg;
    c->result = read(c->fds[0], c->at, 2 * PAGE);
    c->error = errno;
    return NULL;
}

static void *writes(void *arg) {
    struct call *c = arg;
    c->result = write(c->fds[1], c->at, 10);
    c->error = errno;
    return NULL;
}

static void *waits(void *arg) {
    struct call *c = arg;
    c->result = waitpid(-1, (int *)c->at, 0);
    c->error = errno;
    return NULL;
}

CASE(calls_wait_for_pages_too) {
    int fd = with_features(0, 0);
    char *p = pages(4), *from = filled(1, 'k');
    OK(enroll(fd, p, 4));
    struct call c = {.at = p + 8};
    OK(pipe(c.fds));
    OK(write(c.fds[1], from, 100));
    ZERO(pthread_create(&c.thread, NULL, reads, &c));
    expect_fault(fd, p, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, 100);
    EQ(p[7], 0);
    EQ(p[8], 'k');
    EQ(p[107], 'k');
    EQ(p[108], 0);
    c.at = p + PAGE;
    ZERO(pthread_create(&c.thread, NULL, writes, &c));
    expect_fault(fd, p + PAGE, 0);
    OK(copy(fd, p + PAGE, from, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, 10);
    char bytes[10];
    EQ(read(c.fds[0], bytes, 10), 10);
    EQ(bytes[9], 'k');
    // What is done cannot be done again.
    c.at = p + 2 * PAGE + 4;
    pid_t pid = OK(fork());
    if (pid == 0) _exit(3);
    ZERO(pthread_create(&c.thread, NULL, waits, &c));
    expect_fault(fd, p + 2 * PAGE, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p + 2 * PAGE, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, pid);
    EQ(*(int *)c.at, 3 << 8);
    EQ(*(int *)(c.at - 4), 0);
}

CASE(file_is_read_into_missing_pages) {
    int fd = with_features(0, 0);
    char *p = pages(2), *text = filled(2, 't');
    int file = create("data");
    OK(write(file, text, 2 * PAGE));
    OK(enroll(fd, p, 2));
    struct call c = {.at = p, .fds = {file, file}};
    OK(lseek(file, 0, SEEK_SET));
    ZERO(pthread_create(&c.thread, NULL, reads, &c));
    expect_fault(fd, p, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p, 1, 0));
    expect_fault(fd, p + PAGE, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p + PAGE, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, 2 * PAGE);
    EQ(memcmp(p, text, 2 * PAGE), 0);
}

static void *sends(void *arg) {
    struct call *c = arg;
    c->result = send(c->fds[0], c->at, PAGE + 100, 0);
    c->error = errno;
    return NULL;
}

static void *receives(void *arg) {
    struct call *c = arg;
    c->result = recv(c->fds[1], c->at, 2 * PAGE, 0);
    c->error = errno;
    return NULL;
}

// A datagram is sent and received whole.
static void send_over_missing_pages(int domain) {
    int fd = with_features(0, 0);
    char *p = pages(8), *from = filled(1, 'u');
    struct call c = {0};
    if (domain == AF_UNIX) {
        OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, c.fds));
    } else {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof at;
        c.fds[0] = OK(socket(AF_INET, SOCK_DGRAM, 0));
        c.fds[1] = OK(socket(AF_INET, SOCK_DGRAM, 0));
        OK(bind(c.fds[1], (void *)&at, sizeof at));
        OK(getsockname(c.fds[1], (void *)&at, &len));
        OK(connect(c.fds[0], (void *)&at, sizeof at));
    }
    OK(enroll(fd, p, 8));
    OK(copy(fd, p, from, 1, 0));
    c.at = p;
    ZERO(pthread_create(&c.thread, NULL, sends, &c));
    expect_fault(fd, p + PAGE, 0);
    OK(copy(fd, p + PAGE, from, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, PAGE + 100);
    c.at = p + 4 * PAGE;
    OK(zero(fd, c.at, 1, 0));
    ZERO(pthread_create(&c.thread, NULL, receives, &c));
    expect_fault(fd, p + 5 * PAGE, UFFD_PAGEFAULT_FLAG_WRITE);
    OK(zero(fd, p + 5 * PAGE, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, PAGE + 100);
    EQ(p[5 * PAGE + 99], 'u');
    EQ(p[5 * PAGE + 100], 0);
}

CASE(datagrams_are_whole) { send_over_missing_pages(AF_UNIX); }

CASE(internet_datagrams_are_whole) { send_over_missing_pages(AF_INET); }

// ---- a handler on a stack that is missing ----

static char *stack_at;

static void *gets_signal(void *arg) {
    struct call *c = arg;
    stack_t stack = {.ss_sp = stack_at, .ss_size = 16 * PAGE};
    OK(sigaltstack(&stack, NULL));
    c->tid = (int)syscall(SYS_gettid);
    while (!handled) sleep_ms(1);
    return NULL;
}

CASE(handler_runs_on_a_stack_that_is_missing) {
    int fd = with_features(O_NONBLOCK, 0);
    stack_at = pages(16);
    OK(enroll(fd, stack_at, 16));
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &action, NULL));
    struct call c = {0};
    ZERO(pthread_create(&c.thread, NULL, gets_signal, &c));
    WAIT_UNTIL(c.tid);
    ZERO(pthread_kill(c.thread, SIGUSR1));
    while (!handled) {
        struct uffd_msg msg;
        if (read(fd, &msg, sizeof msg) != sizeof msg) {
            sleep_ms(1);
            continue;
        }
        char *at = (char *)(uintptr_t)msg.arg.pagefault.address;
        CHECK(at >= stack_at && at < stack_at + 16 * PAGE);
        OK(zero(fd, at, 1, 0));
    }
    ZERO(pthread_join(c.thread, NULL));
}

CASE(calls_fault_where_only_user_mode_may) {
    int fd = with_features(O_NONBLOCK | UFFD_USER_MODE_ONLY, 0);
    char *p = pages(1);
    OK(enroll(fd, p, 1));
    int pipes[2];
    OK(pipe(pipes));
    OK(write(pipes[1], "0123", 4));
    ERR(read(pipes[0], p, 4), EFAULT);
    ERR(write(pipes[1], p, 4), EFAULT);
    struct uffd_msg msg;
    ERR(read(fd, &msg, sizeof msg), EAGAIN);
    struct toucher *t = start(p, false);
    expect_fault(fd, p, 0);
    OK(zero(fd, p, 1, 0));
    end(t);
    char bytes[4] = "";
    EQ(read(pipes[0], bytes, 4), 4);
}

// ---- writes ----

static const uint64_t WP = UFFDIO_REGISTER_MODE_WP;

CASE(writes_are_told_first) {
    int fd = with_features(0, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    char *p = filled(4, 'a');
    struct uffdio_register r = {.range = {(uintptr_t)p, 4 * PAGE}, .mode = WP};
    OK(ioctl(fd, UFFDIO_REGISTER, &r));
    CHECK(r.ioctls & 1ull << _UFFDIO_WRITEPROTECT);
    OK(protect(fd, p, 2, UFFDIO_WRITEPROTECT_MODE_WP));
    EQ(p[0], 'a');
    p[2 * PAGE] = 'b';
    struct toucher *t = start(p + 1, true);
    expect_fault(fd, p, UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE);
    EQ(t->done, 0);
    EQ(p[1], 'a');
    OK(protect(fd, p, 1, 0));
    end(t);
    EQ(p[1], 'w');
    p[2] = 'x';
    // The other page is as before; it is let go by hand.
    t = start(p + PAGE, true);
    expect_fault(fd, p + PAGE, UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE);
    OK(protect(fd, p + PAGE, 1, UFFDIO_WRITEPROTECT_MODE_DONTWAKE));
    sleep_ms(20);
    EQ(t->done, 0);
    OK(wake(fd, p + PAGE, 1));
    end(t);
    OK(protect(fd, p, 4, UFFDIO_WRITEPROTECT_MODE_WP));
    // mprotect(2) does not give it back.
    OK(mprotect(p, 4 * PAGE, PROT_READ));
    OK(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE));
    t = start(p + 3 * PAGE, true);
    expect_fault(fd, p + 3 * PAGE, UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE);
    OK(leave(fd, p, 4));
    // Linux wakes only who waits for a missing page.
    OK(wake(fd, p, 4));
    end(t);
    p[0] = 'y';
}

CASE(what_write_protection_asks_for) {
    int fd = with_features(0, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    char *p = filled(2, 'a'), *q = pages(2), *from = filled(1, 'c');
    ERR(protect(fd, p, 1, UFFDIO_WRITEPROTECT_MODE_WP), ENOENT);
    OK(enroll(fd, q, 1));
    ERR(protect(fd, q, 1, UFFDIO_WRITEPROTECT_MODE_WP), ENOENT);
    ERR(copy(fd, q, from, 1, UFFDIO_COPY_MODE_WP), EINVAL);
    OK(enroll_as(fd, p, 2, WP));
    ERR(protect(fd, p, 1, UFFDIO_WRITEPROTECT_MODE_WP | UFFDIO_WRITEPROTECT_MODE_DONTWAKE), EINVAL);
    ERR(protect(fd, p, 1, 4), EINVAL);
    ERR(protect(fd, p + 1, 1, 0), EINVAL);
    // Pages that are missing are the kernel's there.
    OK(madvise(p, PAGE, MADV_DONTNEED));
    EQ(p[0], 0);
    // Copied, and write-protected at once.
    OK(enroll_as(fd, q, 2, WP | UFFDIO_REGISTER_MODE_MISSING));
    OK(copy(fd, q, from, 1, UFFDIO_COPY_MODE_WP));
    EQ(q[0], 'c');
    struct toucher *t = start(q, true);
    expect_fault(fd, q, UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE);
    OK(protect(fd, q, 1, 0));
    end(t);
    EQ(q[0], 'w');
}

CASE(protected_pages_are_written_by_calls_and_children) {
    int fd = with_features(0, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    char *p = filled(2, 'a');
    OK(enroll_as(fd, p, 2, WP));
    OK(protect(fd, p, 2, UFFDIO_WRITEPROTECT_MODE_WP));
    pid_t pid = OK(fork());
    if (pid == 0) {
        p[0] = 'b';
        _exit(p[0] == 'b' && p[PAGE] == 'a' ? 0 : 1);
    }
    expect_exit(pid, 0);
    struct call c = {.at = p};
    OK(pipe(c.fds));
    OK(write(c.fds[1], "call", 4));
    ZERO(pthread_create(&c.thread, NULL, reads, &c));
    expect_fault(fd, p, UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE);
    EQ(p[0], 'a');
    OK(protect(fd, p, 1, 0));
    ZERO(pthread_join(c.thread, NULL));
    EQ(c.result, 4);
    EQ(p[0], 'c');
    OK(close(fd));
    p[PAGE] = 'z';
}

// ---- events ----

static char *area_of_events;
static char seen_events[4096];
static int child_fd;

// Writes down all events, and serves all faults with zeros.
static void *listen_to(void *arg) {
    int fd = (int)(intptr_t)arg;
    struct uffd_msg msg;
    while (read(fd, &msg, sizeof msg) == sizeof msg) {
        char line[100] = "";
        long from = ((long)msg.arg.remap.from - (long)area_of_events) / PAGE, to = ((long)msg.arg.remap.to - (long)area_of_events) / PAGE;
        struct uffdio_zeropage z = {.range = {msg.arg.pagefault.address, PAGE}};
        switch (msg.event) {
        case UFFD_EVENT_PAGEFAULT: EQ(ioctl(fd, UFFDIO_ZEROPAGE, &z), 0); break;
        case UFFD_EVENT_FORK: child_fd = (int)msg.arg.fork.ufd; snprintf(line, sizeof line, "fork "); break;
        case UFFD_EVENT_REMAP: snprintf(line, sizeof line, "remap %ld %ld %ld ", from, to, (long)msg.arg.remap.len / PAGE); break;
        case UFFD_EVENT_REMOVE: snprintf(line, sizeof line, "remove %ld %ld ", from, to); break;
        case UFFD_EVENT_UNMAP: snprintf(line, sizeof line, "unmap %ld %ld ", from, to); break;
        }
        strcat(seen_events, line);
    }
    return NULL;
}

// Who did it goes on when it has been read, and before it has been written down.
static void expect_events(const char *expected) {
    for (int i = 0; i < 2000 && strcmp(seen_events, expected) != 0; i++) sleep_ms(1);
    STR_EQ(seen_events, expected);
}

static int with_events(uint64_t features, int registered) {
    int fd = with_features(0, features);
    area_of_events = pages(64);
    OK(enroll(fd, area_of_events, registered));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, listen_to, (void *)(intptr_t)fd));
    return fd;
}

CASE(unmapping_and_removing_are_told) {
    with_events(UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE, 8);
    char *p = area_of_events;
    p[0] = p[PAGE] = 1;
    OK(madvise(p + 4 * PAGE, 8 * PAGE, MADV_DONTNEED));
    OK(madvise(p, PAGE, MADV_FREE));
    OK(madvise(p + 20 * PAGE, PAGE, MADV_DONTNEED));
    OK(munmap(p + 6 * PAGE, 4 * PAGE));
    OK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    EQ(mremap(p + PAGE, 5 * PAGE, 4 * PAGE, 0), p + PAGE);
    OK(munmap(p + 20 * PAGE, PAGE));
    // What has been read is over.
    OK(madvise(p + PAGE, PAGE, MADV_DONTNEED));
    expect_events("remove 4 8 remove 0 1 unmap 6 10 unmap 0 1 unmap 5 6 remove 1 2 ");
    EQ(((volatile char *)p)[PAGE], 0);
}

CASE(moving_is_told) {
    with_events(UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_UNMAP, 8);
    char *p = area_of_events;
    p[0] = 'm';
    OK(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 32 * PAGE));
    EQ(p[32 * PAGE], 'm');
    // It is registered there too; the case would fail in its listener otherwise.
    EQ(p[33 * PAGE], 0);
    OK(mremap(p + 4 * PAGE, PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 40 * PAGE));
    p[42 * PAGE] = 'n';
    OK(mremap(p + 5 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, p + 50 * PAGE));
    OK(munmap(p + 60 * PAGE, PAGE));
    OK(munmap(p + 50 * PAGE, PAGE));
    expect_events("remap 0 32 2 unmap 0 2 remap 4 40 1 unmap 4 5 remap 5 50 1 unmap 50 51 ");
}

CASE(children_are_told) {
    with_events(UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_UNMAP, 8);
    char *p = area_of_events, *from = filled(1, 'k');
    p[0] = 'p';
    pid_t pid = OK(fork());
    if (pid == 0) _exit(p[0] == 'p' && p[PAGE] == 'k' && p[20 * PAGE] == 0 ? 0 : 1);
    expect_events("fork ");
    EQ(fcntl(child_fd, F_GETFL) & O_NONBLOCK, 0);
    expect_fault(child_fd, p + PAGE, 0);
    ERR(copy(child_fd, p, from, 1, 0), EEXIST);
    OK(copy(child_fd, p + PAGE, from, 1, 0));
    expect_exit(pid, 0);
    EQ(p[PAGE], 0);
    ERR(copy(child_fd, p + 2 * PAGE, from, 1, 0), ESRCH);
    // The faults of one that nobody has a descriptor of are the kernel's.
    pid = OK(fork());
    if (pid == 0) {
        sleep_ms(50);
        _exit(p[2 * PAGE] == 0 ? 0 : 1);
    }
    expect_events("fork fork ");
    OK(close(child_fd));
    expect_exit(pid, 0);
    AS_NOBODY({
        struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK};
        int fd = new_fd(UFFD_USER_MODE_ONLY);
        ERR(ioctl(fd, UFFDIO_API, &api), EPERM);
        api = (struct uffdio_api){.api = UFFD_API};
        OK(ioctl(fd, UFFDIO_API, &api));
    });
}

static void *drops(void *arg) {
    OK(madvise(arg, PAGE, MADV_DONTNEED));
    return arg;
}

CASE(nothing_is_placed_until_an_event_is_read) {
    int fd = with_features(O_NONBLOCK, UFFD_FEATURE_EVENT_REMOVE);
    char *p = pages(2), *from = filled(1, 'z');
    OK(enroll(fd, p, 2));
    OK(copy(fd, p, from, 1, 0));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, drops, p));
    struct pollfd poller = {fd, POLLIN, 0};
    EQ(poll(&poller, 1, 5000), 1);
    ERR(copy(fd, p + PAGE, from, 1, 0), EAGAIN);
    ERR(zero(fd, p + PAGE, 1, 0), EAGAIN);
    EQ(next(fd).event, UFFD_EVENT_REMOVE);
    ZERO(pthread_join(thread, NULL));
    OK(copy(fd, p + PAGE, from, 1, 0));
    OK(copy(fd, p, from, 1, 0));
    // Who waits goes on when it is closed.
    ZERO(pthread_create(&thread, NULL, drops, p));
    EQ(poll(&poller, 1, 5000), 1);
    OK(close(fd));
    ZERO(pthread_join(thread, NULL));
    EQ(p[0], 0);
}

CASE(exec_ends_it) {
    int fd = with_features(0, 0);
    char *p = pages(1), number[16], place[32];
    OK(enroll(fd, p, 1));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int own = with_features(0, 0);
        OK(enroll(own, p, 1));
        snprintf(number, sizeof number, "%d", own);
        snprintf(place, sizeof place, "%lu", (unsigned long)p);
        execl(self_path, self_path, "after-exec", number, place, NULL);
        _exit(99);
    }
    expect_exit(pid, 0);
}

// Serves two faults of its memory at `p`, one by a read and one by a write of somebody else.
static void serves_others(char *p, int ready, int over) {
    int fd = with_features(0, 0);
    OK(enroll(fd, p, 3));
    EQ(write(ready, "r", 1), 1);
    expect_fault(fd, p, 0);
    OK(copy(fd, p, filled(1, 'c'), 1, 0));
    expect_fault(fd, p + PAGE, UFFD_PAGEFAULT_FLAG_WRITE);
    // It is not held up meanwhile.
    sleep_ms(20);
    OK(copy(fd, p + PAGE, filled(1, 'd'), 1, 0));
    char byte;
    EQ(read(over, &byte, 1), 1);
    EQ(p[PAGE - 1], 'w');
    EQ(p[PAGE], 'w');
    EQ(p[PAGE + 1], 'd');
    OK(close(fd));
    _exit(0);
}

CASE(memory_of_others_is_waited_for) {
    char *p = pages(3), got[8];
    int ready[2], over[2];
    OK(pipe(ready)), OK(pipe(over));
    pid_t pid = OK(fork());
    if (pid == 0) serves_others(p, ready[1], over[0]);
    EQ(read(ready[0], got, 1), 1);
    struct iovec local = {got, 4}, remote = {p + 8, 4};
    EQ(process_vm_readv(pid, &local, 1, &remote, 1, 0), 4);
    EQ(memcmp(got, "cccc", 4), 0);
    // Over the end of a page that is there.
    local = (struct iovec){"ww", 2}, remote = (struct iovec){p + PAGE - 1, 2};
    EQ(process_vm_writev(pid, &local, 1, &remote, 1, 0), 2);
    EQ(write(over[1], "o", 1), 1);
    expect_exit(pid, 0);
}

static void *serves_two(void *arg) {
    int fd = *(int *)arg;
    for (int i = 0; i < 2; i++) {
        struct uffd_msg msg = next(fd);
        OK(copy(fd, (char *)(uintptr_t)msg.arg.pagefault.address, filled(1, 's'), 1, 0));
    }
    return NULL;
}

CASE(memory_of_ones_own_is_waited_for_in_copies) {
    int fd = with_features(0, 0);
    char *p = pages(2), *there = filled(2, 'y');
    OK(enroll(fd, p, 2));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, serves_two, &fd));
    // The second page is missing in the midst of the copy.
    struct iovec local = {p + 8, 2 * PAGE - 16}, remote = {there, 2 * PAGE - 16};
    EQ(process_vm_readv(getpid(), &local, 1, &remote, 1, 0), 2 * PAGE - 16);
    ZERO(pthread_join(thread, NULL));
    EQ(p[7], 's');
    EQ(p[8], 'y');
    EQ(p[2 * PAGE - 9], 'y');
    EQ(p[2 * PAGE - 8], 's');
}

int helper_main(int argc, char **argv) {
    if (argc < 4 || strcmp(argv[1], "after-exec") != 0) return -1;
    char *from = filled(1, 'x');
    ERR(copy(atoi(argv[2]), (char *)strtoul(argv[3], NULL, 10), from, 1, 0), ESRCH);
    return 0;
}
