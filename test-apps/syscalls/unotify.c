// seccomp_unotify(2): calls that a filter gives to a supervisor, who answers in the program's place.
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#define SET_FLAGS SECCOMP_IOW(4, uint64_t)
#define SYNC_WAKE_UP 1
#define NOTIFIED SECCOMP_RET_USER_NOTIF

static int listener;
static volatile int *shared;

static long restrict_one(unsigned flags, int nr, unsigned value) {
    struct sock_filter insns[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, value),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, insns};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

// This process and its children ask about one call.
static void listen_to_with(unsigned flags, int nr) {
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    listener = OK(restrict_one(SECCOMP_FILTER_FLAG_NEW_LISTENER | flags, nr, NOTIFIED));
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void listen_to(int nr) { listen_to_with(0, nr); }

// A child that runs this and exits with what it returns.
static pid_t target(int (*run)(void)) {
    pid_t pid = OK(fork());
    if (pid == 0) _exit(run());
    return pid;
}

static struct seccomp_notif take(void) {
    struct seccomp_notif notif = {};
    OK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif));
    return notif;
}

static long answer(uint64_t id, int64_t val, int error, unsigned flags) {
    struct seccomp_notif_resp resp = {.id = id, .val = val, .error = error, .flags = flags};
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &resp);
}

static long is_valid(uint64_t id) { return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id); }

static int events(void) {
    struct pollfd poller = {listener, POLLIN | POLLOUT, 0};
    OK(poll(&poller, 1, 0));
    return poller.revents;
}

static void wait_for(int event) {
    struct pollfd poller = {listener, event, 0};
    EQ(poll(&poller, 1, -1), 1);
}

// The call, by its number alone.
static int calls(void) {
    long got = syscall(SYS_getppid, 1, 2);
    return got >= 0 ? got : -got;
}
static int fails_with(void) { return syscall(SYS_getppid) == -1 ? errno : 99; }

int helper_main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "executed") != 0) return -1;
    return syscall(SYS_getppid);
}

CASE(sizes_and_actions) {
    struct seccomp_notif_sizes sizes;
    OK(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes));
    EQ(sizes.seccomp_notif, sizeof(struct seccomp_notif));
    EQ(sizes.seccomp_notif_resp, sizeof(struct seccomp_notif_resp));
    EQ(sizes.seccomp_data, sizeof(struct seccomp_data));
    ERR(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 1, &sizes), EINVAL);
    ERR(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, NULL), EFAULT);
    unsigned action = NOTIFIED;
    OK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action));
}

CASE(a_call_is_told_and_answered) {
    listen_to(SYS_getppid);
    CHECK(fcntl(listener, F_GETFD) == FD_CLOEXEC);
    EQ(fcntl(listener, F_GETFL) & O_ACCMODE, O_RDWR);
    char path[64], name[64] = {};
    snprintf(path, sizeof path, "/proc/self/fd/%d", listener);
    OK(readlink(path, name, sizeof name - 1));
    STR_EQ(name, "anon_inode:seccomp notify");
    pid_t pid = target(calls);
    struct seccomp_notif notif = take();
    EQ(notif.pid, pid);
    EQ(notif.flags, 0);
    EQ(notif.data.nr, SYS_getppid);
    EQ(notif.data.arch, AUDIT_ARCH_X86_64);
    EQ(notif.data.args[0], 1);
    EQ(notif.data.args[1], 2);
    CHECK(notif.data.instruction_pointer != 0);
    OK(is_valid(notif.id));
    OK(answer(notif.id, 42, 0, 0));
    expect_exit(pid, 42);
    ERR(is_valid(notif.id), ENOENT);
    pid = target(fails_with);
    OK(answer(take().id, 42, -EXDEV, 0));
    expect_exit(pid, EXDEV);
}

static int is_child_of_this(void) { return syscall(SYS_getppid) == *shared ? 3 : 4; }

CASE(a_call_goes_on) {
    listen_to(SYS_getppid);
    *shared = getpid();
    pid_t pid = target(is_child_of_this);
    uint64_t id = take().id;
    ERR(answer(id, 1, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE), EINVAL);
    ERR(answer(id, 0, -1, SECCOMP_USER_NOTIF_FLAG_CONTINUE), EINVAL);
    ERR(answer(id, 0, 0, 2), EINVAL);
    OK(answer(id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE));
    expect_exit(pid, 3);
}

static int calls_often(void) {
    for (int i = 1; i <= 2000; i++) {
        if (syscall(SYS_getppid, i) != i * 3) return 4;
    }
    return 3;
}

CASE(calls_in_a_row) {
    for (int i = 0; i < 10000; i++) CHECK(syscall(SYS_getppid) > 0);
    listen_to(SYS_getppid);
    pid_t pid = target(calls_often);
    for (int i = 1; i <= 2000; i++) {
        struct seccomp_notif notif = take();
        EQ(notif.data.args[0], i);
        EQ(((unsigned char *)notif.data.instruction_pointer)[-1], 0x05);
        OK(answer(notif.id, i * 3, 0, 0));
    }
    expect_exit(pid, 3);
}


CASE(wrong_requests) {
    listen_to(SYS_getppid);
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, NULL), EFAULT);
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, NULL), EFAULT);
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, NULL), EFAULT);
    ERR(ioctl(listener, SECCOMP_IO(9), NULL), EINVAL);
    ERR(answer(1, 0, 0, 0), ENOENT);
    ERR(is_valid(1), ENOENT);
    char byte;
    ERR(read(listener, &byte, 1), EINVAL);
    ERR(write(listener, &byte, 1), EINVAL);
    pid_t first = target(calls);
    struct seccomp_notif notif = {.flags = 1};
    wait_for(POLLIN);
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif), EINVAL);
    // What cannot be told is told later.
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, page), EFAULT);
    notif = take();
    // The number of the next one is known, but nobody has taken it.
    pid_t second = target(calls);
    wait_for(POLLIN);
    ERR(answer(notif.id + 1, 0, 0, 0), EINPROGRESS);
    ERR(is_valid(notif.id + 1), ENOENT);
    struct seccomp_notif_addfd addfd = {.id = notif.id + 1};
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addfd), EINPROGRESS);
    struct seccomp_notif later = take();
    EQ(later.id, notif.id + 1);
    EQ(later.pid, second);
    // In any order.
    OK(answer(later.id, 2, 0, 0));
    expect_exit(second, 2);
    OK(answer(notif.id, 1, 0, 0));
    expect_exit(first, 1);
}

CASE(wrong_flags) {
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    ERR(restrict_one(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC, SYS_getppid, NOTIFIED), EINVAL);
    ERR(restrict_one(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, SYS_getppid, NOTIFIED), EINVAL);
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    struct rlimit none = {0, limit.rlim_max};
    OK(setrlimit(RLIMIT_NOFILE, &none));
    ERR(restrict_one(SECCOMP_FILTER_FLAG_NEW_LISTENER, SYS_getppid, NOTIFIED), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    EQ(prctl(PR_GET_SECCOMP), 0);
}

CASE(there_is_one_listener) {
    listen_to(SYS_getppid);
    ERR(restrict_one(SECCOMP_FILTER_FLAG_NEW_LISTENER, SYS_getpgrp, NOTIFIED), EBUSY);
    // The one that failed left no descriptor.
    int next = OK(dup(0));
    EQ(next, listener + 1);
    OK(restrict_one(0, SYS_getpgrp, NOTIFIED));
    ERR(syscall(SYS_getpgrp), ENOSYS);
    OK(close(listener));
    listener = OK(restrict_one(SECCOMP_FILTER_FLAG_NEW_LISTENER, SYS_getsid, NOTIFIED));
    ERR(syscall(SYS_getppid), ENOSYS);
}

static int leaves_it_and_calls(void) {
    OK(close(listener));
    return fails_with();
}

CASE(a_closed_listener_answers_enosys) {
    listen_to(SYS_getppid);
    pid_t taken = target(leaves_it_and_calls);
    take();
    pid_t fresh = target(leaves_it_and_calls);
    wait_for(POLLIN);
    OK(close(listener));
    expect_exit(taken, ENOSYS);
    expect_exit(fresh, ENOSYS);
    expect_exit(target(fails_with), ENOSYS);
}

static void *calls_in_thread(void *error) {
    errno = 0;
    if (syscall(SYS_getppid) == -1) *(int *)error = errno;
    return NULL;
}

CASE(threads_that_wait_get_enosys) {
    listen_to(SYS_getppid);
    pthread_t threads[2];
    int errors[2] = {};
    ZERO(pthread_create(&threads[0], NULL, calls_in_thread, &errors[0]));
    take();
    ZERO(pthread_create(&threads[1], NULL, calls_in_thread, &errors[1]));
    wait_for(POLLIN);
    OK(close(listener));
    for (int i = 0; i < 2; i++) {
        ZERO(pthread_join(threads[i], NULL));
        EQ(errors[i], ENOSYS);
    }
    ERR(syscall(SYS_getppid), ENOSYS);
}

CASE(readiness) {
    listen_to(SYS_getppid);
    int epoll = OK(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    OK(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event));
    EQ(events(), 0);
    EQ(epoll_wait(epoll, &event, 1, 0), 0);
    pid_t pid = target(calls);
    EQ(epoll_wait(epoll, &event, 1, -1), 1);
    EQ(event.events, EPOLLIN);
    EQ(events(), POLLIN);
    uint64_t id = take().id;
    EQ(events(), POLLOUT);
    pid_t other = target(calls);
    wait_for(POLLIN);
    EQ(events(), POLLIN | POLLOUT);
    OK(answer(id, 1, 0, 0));
    expect_exit(pid, 1);
    EQ(events(), POLLIN);
    OK(kill(other, SIGKILL));
    expect_killed(other, SIGKILL);
    EQ(events(), 0);
}

CASE(the_end_of_all_is_told) {
    // The listener comes from a child with which this process shares its descriptors.
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = OK(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        volatile int *told = shared;
        listen_to(SYS_getppid);
        *told = listener;
        _exit(calls());
    }
    WAIT_UNTIL(*shared);
    listener = *shared;
    OK(answer(take().id, 7, 0, 0));
    expect_exit(pid, 7);
    wait_for(POLLIN);
    EQ(events(), POLLHUP);
}

static void does_nothing(int signo) { (void)signo; }

static void handle(int signo, int flags) {
    struct sigaction action = {.sa_handler = does_nothing, .sa_flags = flags};
    OK(sigaction(signo, &action, NULL));
}

CASE(a_signal_interrupts_the_call) {
    listen_to(SYS_getppid);
    handle(SIGUSR1, 0);
    pid_t pid = target(fails_with);
    uint64_t id = take().id;
    OK(kill(pid, SIGUSR1));
    expect_exit(pid, EINTR);
    ERR(is_valid(id), ENOENT);
    ERR(answer(id, 1, 0, 0), ENOENT);
}

CASE(a_signal_has_it_made_again) {
    listen_to(SYS_getppid);
    handle(SIGUSR1, SA_RESTART);
    pid_t pid = target(calls);
    uint64_t id = take().id;
    OK(kill(pid, SIGUSR1));
    struct seccomp_notif again = take();
    EQ(again.pid, pid);
    CHECK(again.id != id);
    ERR(answer(id, 1, 0, 0), ENOENT);
    OK(answer(again.id, 2, 0, 0));
    expect_exit(pid, 2);
}

CASE(one_that_is_killed_is_gone) {
    listen_to(SYS_getppid);
    pid_t pid = target(calls);
    uint64_t id = take().id;
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    ERR(is_valid(id), ENOENT);
    ERR(answer(id, 1, 0, 0), ENOENT);
    struct seccomp_notif_addfd addfd = {.id = id};
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addfd), ENOENT);
    // One that nobody has taken is told of once.
    pid = target(calls);
    wait_for(POLLIN);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    EQ(events(), 0);
    struct seccomp_notif notif = {};
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif), ENOENT);
}

static volatile int handled;
static void counts(int signo) { (void)signo, handled++; }
static int calls_and_is_handled(void) {
    long got = syscall(SYS_getppid);
    return handled * 10 + got;
}

CASE(one_that_was_taken_outlasts_signals) {
    listen_to_with(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, SYS_getppid);
    struct sigaction action = {.sa_handler = counts};
    OK(sigaction(SIGUSR1, &action, NULL));
    pid_t pid = target(calls_and_is_handled);
    uint64_t id = take().id;
    OK(kill(pid, SIGUSR1));
    sleep_ms(20);
    OK(is_valid(id));
    OK(answer(id, 3, 0, 0));
    expect_exit(pid, 13);
    // But not what kills.
    pid = target(calls);
    id = take().id;
    OK(kill(pid, SIGTERM));
    expect_killed(pid, SIGTERM);
    ERR(is_valid(id), ENOENT);
    // One that was not taken is interrupted.
    handle(SIGUSR1, 0);
    pid = target(fails_with);
    wait_for(POLLIN);
    OK(kill(pid, SIGUSR1));
    expect_exit(pid, EINTR);
}

static void *interrupts(void *thread) {
    sleep_ms(20);
    for (;;) {
        pthread_kill(*(pthread_t *)thread, SIGUSR2);
        sleep_ms(5);
    }
    return NULL;
}

CASE(the_supervisor_is_interrupted) {
    listen_to(SYS_getppid);
    handle(SIGUSR2, 0);
    pthread_t self = pthread_self(), other;
    ZERO(pthread_create(&other, NULL, interrupts, &self));
    struct seccomp_notif notif = {};
    ERR(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif), EINTR);
}

static int reads(void) {
    long fd = syscall(SYS_getppid);
    char text[8] = {};
    if (fd < 0 || read(fd, text, sizeof text - 1) != 5) return 9;
    if (strcmp(text, "hello") != 0) return 8;
    return fcntl(fd, F_GETFD) == FD_CLOEXEC ? fd + 100 : fd;
}

static long add_fd(struct seccomp_notif_addfd addfd) { return ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addfd); }

CASE(descriptors_are_given) {
    listen_to(SYS_getppid);
    write_file("file", "hello");
    pid_t pid = target(reads);
    uint64_t id = take().id;
    int file = OK(open("file", O_RDONLY));
    long fd = OK(add_fd((struct seccomp_notif_addfd){.id = id, .srcfd = file, .newfd_flags = O_CLOEXEC}));
    OK(answer(id, fd, 0, 0));
    expect_exit(pid, 100 + fd);
    // At this place, in place of what was there.
    pid = target(reads);
    id = take().id;
    OK(lseek(file, 0, SEEK_SET));
    for (int i = 0; i < 2; i++) EQ(add_fd((struct seccomp_notif_addfd){.id = id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .srcfd = file, .newfd = 77}), 77);
    OK(answer(id, 77, 0, 0));
    expect_exit(pid, 77);
    // With the answer.
    pid = target(reads);
    id = take().id;
    OK(lseek(file, 0, SEEK_SET));
    fd = OK(add_fd((struct seccomp_notif_addfd){.id = id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = file}));
    expect_exit(pid, fd);
    ERR(is_valid(id), ENOENT);
}

CASE(descriptors_that_are_not_given) {
    listen_to(SYS_getppid);
    pid_t pid = target(calls);
    uint64_t id = take().id;
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .flags = 4}), EINVAL);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .newfd_flags = O_NONBLOCK}), EINVAL);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .newfd = 5}), EINVAL);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .srcfd = 4321}), EBADF);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .srcfd = OK(open("/", O_PATH))}), EBADF);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id + 1}), ENOENT);
    struct seccomp_notif_addfd addfds[2] = {{.id = id}, {.id = 1}};
    ERR(ioctl(listener, SECCOMP_IOC_MAGIC << 8 | 3 | 1U << 30 | 23 << 16, addfds), EINVAL);
    ERR(ioctl(listener, SECCOMP_IOC_MAGIC << 8 | 3 | 1U << 30 | 4096 << 16, addfds), EINVAL);
    ERR(ioctl(listener, SECCOMP_IOC_MAGIC << 8 | 3 | 1U << 30 | 48 << 16, addfds), E2BIG);
    addfds[1].id = 0;
    OK(ioctl(listener, SECCOMP_IOC_MAGIC << 8 | 3 | 1U << 30 | 48 << 16, addfds));
    struct rlimit few = {3, 3};
    OK(prlimit(pid, RLIMIT_NOFILE, &few, NULL));
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .flags = SECCOMP_ADDFD_FLAG_SEND}), EMFILE);
    ERR(add_fd((struct seccomp_notif_addfd){.id = id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .newfd = 3}), EBADF);
    // It waits still.
    OK(is_valid(id));
    OK(answer(id, 6, 0, 0));
    expect_exit(pid, 6);
}

static void *calls_by_number(void *number) { return (void *)syscall(SYS_getppid, number); }

CASE(many_threads_wait) {
    enum { MANY = 20 };
    listen_to(SYS_getppid);
    pthread_t threads[MANY];
    for (long i = 0; i < MANY; i++) ZERO(pthread_create(&threads[i], NULL, calls_by_number, (void *)i));
    struct seccomp_notif notifs[MANY];
    for (int i = 0; i < MANY; i++) notifs[i] = take();
    for (int i = MANY - 1; i >= 0; i--) {
        CHECK(i == 0 || notifs[i].id == notifs[i - 1].id + 1);
        OK(answer(notifs[i].id, notifs[i].data.args[0] * 2 + 1, 0, 0));
    }
    for (long i = 0; i < MANY; i++) {
        void *got;
        ZERO(pthread_join(threads[i], &got));
        EQ((long)got, i * 2 + 1);
    }
}

static volatile int may_call;
static void *calls_when_told(void *unused) {
    (void)unused;
    while (!may_call) sched_yield();
    return (void *)syscall(SYS_getppid);
}

static void *filters_itself(void *unused) {
    (void)unused;
    OK(restrict_one(0, SYS_getpgrp, SECCOMP_RET_ALLOW));
    may_call = 1;
    for (;;) pause();
}

CASE(all_threads_get_it) {
    pthread_t thread, other;
    ZERO(pthread_create(&thread, NULL, calls_when_told, NULL));
    listen_to_with(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH, SYS_getppid);
    may_call = 1;
    OK(answer(take().id, 5, 0, 0));
    void *got;
    ZERO(pthread_join(thread, &got));
    EQ((long)got, 5);
    OK(close(listener));
    may_call = 0;
    ZERO(pthread_create(&other, NULL, filters_itself, NULL));
    WAIT_UNTIL(may_call);
    int next = OK(dup(0));
    OK(close(next));
    ERR(restrict_one(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH | SECCOMP_FILTER_FLAG_NEW_LISTENER, SYS_getsid, NOTIFIED), ESRCH);
    EQ(OK(dup(0)), next);
}

CASE(others_are_more_severe) {
    listen_to(SYS_getppid);
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_TRACE | 1));
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_LOG));
    pid_t pid = target(calls);
    OK(answer(take().id, 8, 0, 0));
    expect_exit(pid, 8);
    OK(restrict_one(0, SYS_getppid, SECCOMP_RET_ERRNO | 71));
    expect_exit(target(fails_with), 71);
    EQ(events(), 0);
}

static int executes(void) {
    execl(self_path, self_path, "executed", NULL);
    return 98;
}

CASE(programs_inherit_it) {
    listen_to(SYS_getppid);
    pid_t pid = target(executes);
    struct seccomp_notif notif = take();
    EQ(notif.pid, pid);
    OK(answer(notif.id, 31, 0, 0));
    expect_exit(pid, 31);
}

static int executes_another(void) {
    execl("/proc/self/exe", "x", "executed", NULL);
    return errno;
}

CASE(execve_is_asked_about) {
    listen_to(SYS_execve);
    pid_t pid = target(executes_another);
    OK(answer(take().id, 0, -EACCES, 0));
    expect_exit(pid, EACCES);
    pid = target(executes);
    *shared = getpid();
    OK(answer(take().id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE));
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    EQ(WEXITSTATUS(status), getpid() & 0xff);
}

static int forks(void) {
    pid_t pid = syscall(SYS_fork);
    if (pid == 0) _exit(4);
    int status = 0;
    return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 9;
}

static int vforks(void) {
    pid_t pid = vfork();
    if (pid == 0) _exit(calls());
    int status = 0;
    return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 9;
}

CASE(calls_that_fork) {
    listen_to(SYS_fork);
    pid_t pid = target(forks);
    OK(answer(take().id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE));
    expect_exit(pid, 4);
    OK(close(listener));
    listen_to(SYS_getppid);
    pid = target(vforks);
    struct seccomp_notif notif = take();
    CHECK((pid_t)notif.pid != pid);
    OK(answer(notif.id, 17, 0, 0));
    expect_exit(pid, 17);
}

static int calls_unknown(void) { return syscall(0x40000000 | SYS_getppid, 3); }

CASE(numbers_of_x32) {
    listen_to(0x40000000 | SYS_getppid);
    pid_t pid = target(calls_unknown);
    struct seccomp_notif notif = take();
    EQ(notif.data.nr, 0x40000000 | SYS_getppid);
    OK(answer(notif.id, 12, 0, 0));
    expect_exit(pid, 12);
}

CASE(calls_are_served_in_one_row) {
    listen_to(SYS_getppid);
    if (ioctl(listener, SET_FLAGS, SYNC_WAKE_UP) != 0) {
        EQ(errno, EINVAL);
        skip_case("Linux 6.6 has it");
    }
    ERR(ioctl(listener, SET_FLAGS, 2), EINVAL);
    OK(ioctl(listener, SET_FLAGS, 0));
    OK(ioctl(listener, SET_FLAGS, SYNC_WAKE_UP));
    pid_t pid = target(calls_often);
    for (int i = 1; i <= 2000; i++) OK(answer(take().id, i * 3, 0, 0));
    expect_exit(pid, 3);
}
