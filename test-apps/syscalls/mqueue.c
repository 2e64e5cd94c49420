// POSIX message queues (mq_overview(7)).
#include "harness.h"

#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/vfs.h>

static char name[64];

// A name that no other case has, free.
static const char *own_name(void) {
    snprintf(name, sizeof name, "/case-%d", getpid());
    mq_unlink(name);
    return name;
}

static mqd_t make(int flags, long messages, long bytes) {
    struct mq_attr attr = {.mq_maxmsg = messages, .mq_msgsize = bytes};
    return OK(mq_open(own_name(), O_CREAT | O_EXCL | flags, 0600, &attr));
}

static long count(mqd_t q) {
    struct mq_attr attr;
    OK(mq_getattr(q, &attr));
    return attr.mq_curmsgs;
}

static struct timespec from_now(long ms) {
    struct timespec t;
    OK(clock_gettime(CLOCK_REALTIME, &t));
    t.tv_nsec += ms % 1000 * 1000000;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

CASE(messages_come_by_priority_and_age) {
    mqd_t q = make(O_RDWR, 10, 16);
    OK(mq_send(q, "one", 3, 1));
    OK(mq_send(q, "high", 4, 32767));
    OK(mq_send(q, "two", 3, 1));
    OK(mq_send(q, "", 0, 5));
    EQ(count(q), 4);
    char text[16];
    unsigned priority;
    EQ(mq_receive(q, text, sizeof text, &priority), 4);
    EQ(priority, 32767);
    CHECK(!memcmp(text, "high", 4));
    EQ(mq_receive(q, text, sizeof text, &priority), 0);
    EQ(priority, 5);
    EQ(mq_receive(q, text, sizeof text, NULL), 3);
    CHECK(!memcmp(text, "one", 3));
    EQ(mq_receive(q, text, 100, NULL), 3);
    CHECK(!memcmp(text, "two", 3));
    EQ(count(q), 0);
    OK(mq_unlink(name));
}

CASE(errors_are_those_of_the_manual) {
    ERR(mq_open("/", O_CREAT | O_RDWR, 0600, NULL), ENOENT);
    ERR(syscall(SYS_mq_open, "", O_RDWR, 0, NULL), ENOENT);
    ERR(syscall(SYS_mq_open, "a/b", O_CREAT | O_RDWR, 0600, NULL), EACCES);
    ERR(syscall(SYS_mq_open, "..", O_RDWR, 0, NULL), EACCES);
    ERR(syscall(SYS_mq_open, "x", O_RDWR, 0, (void *)8), EFAULT);
    ERR(syscall(SYS_mq_open, (void *)8, O_RDWR, 0, NULL), EFAULT);
    char longest[300];
    memset(longest, 'n', sizeof longest);
    longest[256] = 0;
    ERR(syscall(SYS_mq_open, longest, O_CREAT | O_RDWR, 0600, NULL), ENAMETOOLONG);
    ERR(mq_open(own_name(), O_RDWR), ENOENT);
    ERR(mq_unlink(name), ENOENT);
    struct mq_attr bad = {.mq_maxmsg = 0, .mq_msgsize = 8};
    ERR(mq_open(name, O_CREAT | O_RDWR, 0600, &bad), EINVAL);
    bad = (struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = -1};
    ERR(mq_open(name, O_CREAT | O_RDWR, 0600, &bad), EINVAL);
    bad = (struct mq_attr){.mq_maxmsg = 65537, .mq_msgsize = 1};
    ERR(mq_open(name, O_CREAT | O_RDWR, 0600, &bad), EINVAL);

    mqd_t q = make(O_RDWR, 1, 8);
    ERR(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, NULL), EEXIST);
    char text[16];
    ERR(mq_send(q, "123456789", 9, 0), EMSGSIZE);
    ERR(mq_receive(q, text, 7, NULL), EMSGSIZE);
    ERR(mq_send(q, "1", 1, 32768), EINVAL);
    ERR(mq_send(q, (void *)8, 1, 0), EFAULT);
    EQ(count(q), 0);
    mqd_t reader = OK(mq_open(name, O_RDONLY)), writer = OK(mq_open(name, O_WRONLY));
    ERR(mq_send(reader, "1", 1, 0), EBADF);
    ERR(mq_receive(writer, text, sizeof text, NULL), EBADF);
    ERR(mq_send(-1, "1", 1, 0), EBADF);
    int null = OK(open("/dev/null", O_RDWR));
    struct mq_attr attr;
    ERR(mq_send(null, "1", 1, 0), EBADF);
    ERR(mq_getattr(null, &attr), EBADF);
    ERR(mq_notify(null, NULL), EBADF);
    struct timespec wrong = {.tv_nsec = 1000000000};
    ERR(mq_timedsend(q, "1", 1, 0, &wrong), EINVAL);
    ERR(mq_timedreceive(q, text, sizeof text, NULL, &wrong), EINVAL);
    attr = (struct mq_attr){.mq_flags = O_NONBLOCK | O_APPEND};
    ERR(syscall(SYS_mq_getsetattr, q, &attr, NULL), EINVAL);
    ERR(write(q, "1", 1), EINVAL);
    OK(mq_unlink(name));
}

CASE(what_is_full_or_empty_waits_or_does_not) {
    mqd_t q = make(O_RDWR | O_NONBLOCK, 2, 8);
    char text[8];
    ERR(mq_receive(q, text, sizeof text, NULL), EAGAIN);
    OK(mq_send(q, "1", 1, 0));
    OK(mq_send(q, "2", 1, 0));
    ERR(mq_send(q, "3", 1, 0), EAGAIN);
    struct mq_attr attr = {.mq_flags = 0}, old;
    OK(mq_setattr(q, &attr, &old));
    EQ(old.mq_flags, O_NONBLOCK);
    EQ(old.mq_maxmsg, 2);
    EQ(old.mq_msgsize, 8);
    EQ(old.mq_curmsgs, 2);
    EQ(fcntl(q, F_GETFL) & O_NONBLOCK, 0);
    struct timespec soon = from_now(30);
    int64_t begin = now_ns(CLOCK_MONOTONIC);
    ERR(mq_timedsend(q, "3", 1, 0, &soon), ETIMEDOUT);
    CHECK(now_ns(CLOCK_MONOTONIC) - begin >= 25000000);
    struct timespec past = {.tv_sec = 1};
    ERR(mq_timedsend(q, "3", 1, 0, &past), ETIMEDOUT);
    // What need not wait is not too late.
    EQ(mq_timedreceive(q, text, sizeof text, NULL, &past), 1);
    OK(mq_timedsend(q, "3", 1, 0, &past));

    pid_t writer = OK(fork());
    if (writer == 0) _exit(mq_send(q, "4", 1, 9) == 0 ? 0 : 1);
    WAIT_UNTIL(process_state(writer) == 'S');
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(text[0], '2');
    expect_exit(writer, 0);
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(text[0], '4');
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(text[0], '3');

    pid_t reader = OK(fork());
    if (reader == 0) _exit(mq_receive(q, text, sizeof text, NULL) == 2 && text[1] == 'y' ? 0 : 1);
    WAIT_UNTIL(process_state(reader) == 'S');
    OK(mq_send(q, "xy", 2, 0));
    expect_exit(reader, 0);
    OK(mq_unlink(name));
}

CASE(who_waits_is_served_at_once) {
    mqd_t q = make(O_RDWR | O_NONBLOCK, 1, 8);
    char text[8];
    struct mq_attr blocking = {.mq_flags = 0};
    // A message is given to who waits, not to who comes next.
    mqd_t waiting = OK(mq_open(name, O_RDWR));
    pid_t reader = OK(fork());
    if (reader == 0) _exit(mq_receive(waiting, text, sizeof text, NULL) == 1 && text[0] == '1' ? 0 : 1);
    WAIT_UNTIL(process_state(reader) == 'S');
    OK(mq_send(q, "1", 1, 0));
    EQ(count(q), 0);
    OK(mq_send(q, "2", 1, 9));
    ERR(mq_send(q, "3", 1, 0), EAGAIN);
    expect_exit(reader, 0);
    // So is room: the message of who waits for it is there as soon as there is room.
    pid_t writer = OK(fork());
    if (writer == 0) _exit(mq_send(waiting, "4", 1, 0) == 0 ? 0 : 1);
    WAIT_UNTIL(process_state(writer) == 'S');
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(text[0], '2');
    EQ(count(q), 1);
    ERR(mq_send(q, "5", 1, 9), EAGAIN);
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(text[0], '4');
    ERR(mq_receive(q, text, sizeof text, NULL), EAGAIN);
    expect_exit(writer, 0);
    // Who has given up gets nothing.
    OK(mq_setattr(q, &blocking, NULL));
    struct timespec soon = from_now(10);
    ERR(mq_timedreceive(q, text, sizeof text, NULL, &soon), ETIMEDOUT);
    OK(mq_send(q, "6", 1, 0));
    EQ(count(q), 1);
    soon = from_now(10);
    ERR(mq_timedsend(q, "7", 1, 0, &soon), ETIMEDOUT);
    EQ(mq_receive(q, text, sizeof text, NULL), 1);
    EQ(count(q), 0);
    OK(mq_unlink(name));
}

CASE(without_a_descriptor_no_queue_is_made) {
    struct rlimit before, none = {.rlim_cur = 0};
    OK(getrlimit(RLIMIT_NOFILE, &before));
    none.rlim_max = before.rlim_max;
    OK(setrlimit(RLIMIT_NOFILE, &none));
    ERR(mq_open(own_name(), O_CREAT | O_RDWR, 0600, NULL), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &before));
    ERR(mq_open(name, O_RDWR), ENOENT);
    mqd_t q = make(O_RDWR, 1, 8);
    mqd_t place = OK(mq_open(name, O_PATH));
    struct mq_attr attr;
    ERR(mq_getattr(place, &attr), EBADF);
    ERR(mq_notify(place, NULL), EBADF);
    OK(close(q));
    OK(mq_unlink(name));
}

static void on_signal(int signo) {}

CASE(a_signal_cuts_a_wait_short) {
    mqd_t q = make(O_RDWR, 1, 8);
    for (int restart = 0; restart < 2; restart++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = restart ? SA_RESTART : 0};
        OK(sigaction(SIGUSR1, &action, NULL));
        pid_t pid = OK(fork());
        if (pid == 0) {
            char text[8];
            long got = mq_receive(q, text, sizeof text, NULL);
            _exit(got == 1 ? 1 : errno == EINTR ? 2 : 3);
        }
        WAIT_UNTIL(process_state(pid) == 'S');
        OK(kill(pid, SIGUSR1));
        if (restart) {
            sleep_ms(20);
            OK(mq_send(q, "1", 1, 0));
        }
        expect_exit(pid, restart ? 1 : 2);
    }
    OK(mq_unlink(name));
}

CASE(a_queue_outlives_its_name_and_is_closed_by_exec) {
    mqd_t q = make(O_RDWR, 1, 8);
    CHECK(fcntl(q, F_GETFD) & FD_CLOEXEC);
    OK(mq_send(q, "1", 1, 0));
    mqd_t other = OK(mq_open(name, O_RDONLY));
    OK(mq_unlink(name));
    ERR(mq_open(name, O_RDWR), ENOENT);
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
    mqd_t fresh = OK(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attr));
    EQ(count(fresh), 0);
    char text[8];
    EQ(mq_receive(other, text, sizeof text, NULL), 1);
    struct stat st;
    OK(fstat(q, &st));
    EQ(st.st_nlink, 0);
    EQ(st.st_size, 80);
    OK(mq_unlink(name));
}

CASE(readiness_is_told) {
    mqd_t q = make(O_RDWR | O_NONBLOCK, 1, 8);
    struct pollfd p = {.fd = q, .events = POLLIN | POLLOUT};
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLOUT);
    int epfd = OK(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, got;
    OK(epoll_ctl(epfd, EPOLL_CTL_ADD, q, &event));
    EQ(epoll_wait(epfd, &got, 1, 0), 0);
    OK(mq_send(q, "1", 1, 0));
    EQ(epoll_wait(epfd, &got, 1, 0), 1);
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLIN);
    OK(mq_unlink(name));
}

CASE(permissions_and_limits_hold) {
    if (getuid() != 0) skip_case("needs root");
    umask(022);
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
    mqd_t q = OK(mq_open(own_name(), O_CREAT | O_EXCL | O_RDWR, 0666, &attr));
    struct stat st;
    OK(fstat(q, &st));
    EQ(st.st_mode, S_IFREG | 0644);
    AS_NOBODY({
        OK(mq_open(name, O_RDONLY));
        ERR(mq_open(name, O_WRONLY), EACCES);
        ERR(mq_open(name, O_RDWR), EACCES);
        ERR(syscall(SYS_mq_unlink, name + 1), EPERM);
        ERR(mq_unlink(name), EACCES);
        // Who makes it may use it, whatever its mode.
        char own[80];
        snprintf(own, sizeof own, "%s-own", name);
        mqd_t mine = OK(mq_open(own, O_CREAT | O_EXCL | O_RDWR, 0, &attr));
        OK(mq_send(mine, "1", 1, 0));
        ERR(mq_open(own, O_RDONLY), EACCES);
        OK(mq_unlink(own));
        OK(mq_close(mine));
        // fs.mqueue.msg_max and msgsize_max.
        attr = (struct mq_attr){.mq_maxmsg = 11, .mq_msgsize = 8};
        ERR(mq_open(own, O_CREAT | O_RDWR, 0600, &attr), EINVAL);
        attr = (struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 8193};
        ERR(mq_open(own, O_CREAT | O_RDWR, 0600, &attr), EINVAL);
        struct rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
        OK(setrlimit(RLIMIT_MSGQUEUE, &limit));
        attr = (struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 904};
        mine = OK(mq_open(own, O_CREAT | O_EXCL | O_RDWR, 0600, &attr));
        char more[80];
        snprintf(more, sizeof more, "%s-more", name);
        ERR(mq_open(more, O_CREAT | O_RDWR, 0600, &attr), EMFILE);
        OK(mq_unlink(own));
        OK(mq_close(mine));
        attr.mq_msgsize = 905;
        ERR(mq_open(more, O_CREAT | O_RDWR, 0600, &attr), EMFILE);
        attr.mq_msgsize = 904;
        OK(mq_open(more, O_CREAT | O_RDWR, 0600, &attr));
        OK(mq_unlink(more));
    });
    OK(mq_unlink(name));
    mqd_t usual = OK(mq_open(name, O_CREAT | O_RDWR, 0600, NULL));
    OK(mq_getattr(usual, &attr));
    EQ(attr.mq_maxmsg, 10);
    EQ(attr.mq_msgsize, 8192);
    OK(mq_unlink(name));
}

static volatile int signal_value, signal_code, signal_pid, signals;
static void on_message(int signo, siginfo_t *info, void *context) {
    signals++;
    (signal_value = info->si_value.sival_int, signal_code = info->si_code, signal_pid = info->si_pid);
}

CASE(a_message_to_an_empty_queue_is_told_of_once) {
    mqd_t q = make(O_RDWR | O_NONBLOCK, 4, 8);
    struct sigaction action = {.sa_sigaction = on_message, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR2, &action, NULL));
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2, .sigev_value.sival_int = 77};
    OK(mq_notify(q, &event));
    ERR(mq_notify(q, &event), EBUSY);
    char text[200], expected[200];
    CHECK(pread(q, text, sizeof text, 0) > 0);
    snprintf(expected, sizeof expected, "QSIZE:0          NOTIFY:0     SIGNO:12    NOTIFY_PID:%-6d\n", getpid());
    CHECK(!strncmp(text, expected, strlen(expected)));
    pid_t pid = OK(fork());
    if (pid == 0) {
        ERR(mq_notify(q, &event), EBUSY);
        // Another's registration stays.
        OK(mq_notify(q, NULL));
        OK(mq_send(q, "12", 2, 0));
        OK(mq_send(q, "3", 1, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(signals, 1);
    EQ(signal_value, 77);
    EQ(signal_code, SI_MESGQ);
    EQ(signal_pid, pid);
    CHECK(pread(q, text, sizeof text, 0) > 0);
    CHECK(!strncmp(text, "QSIZE:3          NOTIFY:0     SIGNO:0     NOTIFY_PID:0     \n", 60));
    // Not while there are messages, and not after its removal.
    OK(mq_notify(q, &event));
    OK(mq_send(q, "4", 1, 0));
    EQ(signals, 1);
    while (mq_receive(q, text, sizeof text, NULL) >= 0) {}
    OK(mq_notify(q, NULL));
    OK(mq_send(q, "5", 1, 0));
    EQ(signals, 1);
    OK(mq_receive(q, text, sizeof text, NULL));
    // Any descriptor that the process closes takes the registration with it.
    OK(mq_notify(q, &event));
    OK(close(OK(dup(q))));
    OK(mq_send(q, "6", 1, 0));
    EQ(signals, 1);
    OK(mq_receive(q, text, sizeof text, NULL));
    // So does the end of the process.
    pid = OK(fork());
    if (pid == 0) _exit(mq_notify(q, &event) == 0 ? 0 : 1);
    expect_exit(pid, 0);
    OK(mq_notify(q, &event));
    OK(mq_send(q, "7", 1, 0));
    EQ(signals, 2);
    struct sigevent bad = {.sigev_notify = 99};
    ERR(mq_notify(q, &bad), EINVAL);
    bad = (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 65};
    ERR(mq_notify(q, &bad), EINVAL);
    OK(mq_unlink(name));
}

CASE(who_waits_for_a_message_goes_before_who_is_told) {
    mqd_t q = make(O_RDWR, 4, 8);
    struct sigaction action = {.sa_sigaction = on_message, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR2, &action, NULL));
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    OK(mq_notify(q, &event));
    pid_t pid = OK(fork());
    char text[8];
    if (pid == 0) _exit(mq_receive(q, text, sizeof text, NULL) == 1 ? 0 : 1);
    WAIT_UNTIL(process_state(pid) == 'S');
    OK(mq_send(q, "1", 1, 0));
    expect_exit(pid, 0);
    EQ(signals, 0);
    OK(mq_send(q, "2", 1, 0));
    EQ(signals, 1);
    OK(mq_unlink(name));
}

static sem_t told;
static void on_thread(union sigval value) {
    signal_value = value.sival_int;
    sem_post(&told);
}

CASE(a_thread_of_the_library_can_be_told) {
    mqd_t q = make(O_RDWR, 4, 8);
    OK(sem_init(&told, 0, 0));
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_thread, .sigev_value.sival_int = 5};
    for (int i = 0; i < 3; i++) {
        event.sigev_value.sival_int = i + 5;
        OK(mq_notify(q, &event));
        OK(mq_send(q, "1", 1, 0));
        OK(sem_wait(&told));
        EQ(signal_value, i + 5);
        char text[8];
        OK(mq_receive(q, text, sizeof text, NULL));
    }
    OK(mq_notify(q, &event));
    OK(mq_notify(q, NULL));
    OK(mq_notify(q, &event));
    OK(mq_unlink(name));
}

CASE(the_file_system_shows_the_queues) {
    if (getuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
    if (mount("mqueue", "a", "mqueue", 0, NULL) == -1 && errno == EPERM) skip_case("may not mount");
    mqd_t q = make(O_RDWR, 4, 8);
    OK(mount("mqueue", "b", "mqueue", 0, NULL));
    struct statfs fs;
    OK(statfs("a", &fs));
    EQ(fs.f_type, 0x19800202);
    char path[100], text[200];
    for (const char *dir = "ab"; *dir; dir++) {
        snprintf(path, sizeof path, "%c%s", *dir, name);
        struct stat st, own;
        OK(stat(path, &st));
        OK(fstat(q, &own));
        EQ(st.st_ino, own.st_ino);
        EQ(st.st_dev, own.st_dev);
    }
    OK(mq_send(q, "12345", 5, 0));
    read_file(path, text, sizeof text);
    CHECK(!strncmp(text, "QSIZE:5 ", 8));
    // A file is a queue.
    mqd_t by_path = OK(open(path, O_RDONLY));
    ERR(mq_receive(by_path, text, 7, NULL), EMSGSIZE);
    EQ(mq_receive(by_path, text, sizeof text, NULL), 5);
    OK(close(by_path));
    OK(chmod(path, 0640));
    OK(unlink(path));
    ERR(mq_open(name, O_RDWR), ENOENT);
    ERR(access(path, F_OK), ENOENT);
    OK(close(OK(open(path, O_CREAT | O_RDWR, 0600))));
    mqd_t made = OK(mq_open(name, O_RDWR));
    struct mq_attr attr;
    OK(mq_getattr(made, &attr));
    EQ(attr.mq_maxmsg, 10);
    OK(mq_unlink(name));
    ERR(access(path, F_OK), ENOENT);
    ERR(mkdir("a/dir", 0755), EPERM);
    ERR(rename("a/x", "a/y"), ENOENT);
    OK(umount("a"));
    OK(umount("b"));
}

enum { SENDERS = 4, EACH = 500 };

static void *send_many(void *arg) {
    mqd_t q = *(mqd_t *)arg;
    for (int i = 0; i < EACH; i++) OK(mq_send(q, (char *)&i, sizeof i, i % 3));
    return NULL;
}

static long received[SENDERS];
static void *receive_many(void *arg) {
    mqd_t q = *(mqd_t *)arg;
    static _Atomic int next;
    int me = next++, value;
    for (int i = 0; i < EACH; i++) {
        EQ(mq_receive(q, (char *)&value, sizeof value, NULL), sizeof value);
        received[me] += value;
    }
    return NULL;
}

CASE(many_threads_lose_nothing) {
    mqd_t q = make(O_RDWR, 5, sizeof(int));
    pthread_t threads[2 * SENDERS];
    for (int i = 0; i < 2 * SENDERS; i++) ZERO(pthread_create(&threads[i], NULL, i % 2 ? send_many : receive_many, &q));
    for (int i = 0; i < 2 * SENDERS; i++) ZERO(pthread_join(threads[i], NULL));
    long all = 0;
    for (int i = 0; i < SENDERS; i++) all += received[i];
    EQ(all, (long)SENDERS * EACH * (EACH - 1) / 2);
    EQ(count(q), 0);
    OK(mq_unlink(name));
}
