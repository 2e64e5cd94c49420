// What one further operation costs while many objects of its kind exist: 100, 1,000, 3,000 and 10,000 of them. Prints one
// JSON object: for each curve microseconds by the number of objects ("us"), and why fewer were made than asked for
// ("stopped"). A curve that ends in _each is an operation that looks at all of them, divided by their number; one that ends in
// _end is the end of the process that has them, divided likewise.
//   scale [KIND...]     (default: all)
//   scale --list        the kinds
// Each number of objects has a process of its own. No kind takes longer than SECONDS, a quarter of which is left for measuring,
// and half as much again to end.
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 30, MOST = 10000, PAGE = 4096, STACK = 16 << 10, KEY = 0x51000000, BATCHES = 12 };
static const int POINTS[] = {100, 1000, 3000, MOST};
enum { POINTS_COUNT = sizeof POINTS / sizeof POINTS[0] };

// The objects of this process, and how many there are.
static int objects[2 * MOST + 8];
static int count;

static int keep(int object) {
    if (object < 0) return -1;
    objects[count] = object;
    return 0;
}

static void check(long result, const char *what) {
    if (result < 0) die(what);
}

// ---- threads, and futexes that they wait on: every other one on a word of its own ----

static _Atomic int words[MOST];
static _Atomic int ask, answer;

static void futex_wait(_Atomic int *word, int value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); }
static void futex_wake(_Atomic int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

static void *wait_for_ever(void *at) {
    intptr_t i = (intptr_t)at;
    for (;;) futex_wait(&words[i % 2 ? i : 0], 0);
    return NULL;
}

static void *echo(void *unused) {
    for (int seen = 0;;) {
        futex_wait(&ask, seen);
        if (ask == seen) continue;
        seen = ask;
        answer = seen;
        futex_wake(&answer);
    }
    return unused;
}

static void *nothing(void *unused) { return unused; }

static int thread(pthread_t *made, void *(*main)(void *), void *argument) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    errno = pthread_create(made, &attr, main, argument);
    return errno ? -1 : 0;
}

static void threads_start(void) {
    pthread_t partner;
    signal(SIGUSR1, (void (*)(int))(void *)getppid);
    check(thread(&partner, echo, NULL), "pthread_create");
}
static int threads_more(int i) {
    pthread_t made;
    return thread(&made, wait_for_ever, (void *)(intptr_t)i);
}
static void threads_once(void) {
    pthread_t made;
    check(thread(&made, nothing, NULL), "pthread_create");
    pthread_join(made, NULL);
}
static void futex_round_trip(void) {
    int question = ask + 1;
    ask = question;
    futex_wake(&ask);
    while (answer != question) futex_wait(&answer, question - 1);
}
static void futex_timeout(void) {
    struct timespec soon = {0, 1};
    syscall(SYS_futex, &words[0], FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0);
}
static void signal_once(void) { check(kill(getpid(), SIGUSR1), "kill"); }

static void list(const char *path) {
    struct dirent *entry;
    DIR *dir = opendir(path);
    if (!dir) die(path);
    while ((entry = readdir(dir))) {}
    closedir(dir);
}
static void task_list(void) { list("/proc/self/task"); }

// ---- processes ----

static int until_end[2];

static void processes_start(void) { check(pipe(until_end), "pipe"); }
static int processes_more(int i) {
    char c;
    pid_t pid = fork();
    if (pid == 0) {
        close(until_end[1]);
        _exit((int)read(until_end[0], &c, 1));
    }
    // Some are in groups of their own.
    if (pid > 0 && i % 2 == 0) setpgid(pid, pid);
    return keep(pid);
}
static pid_t child(void) {
    pid_t pid = fork();
    check(pid, "fork");
    if (pid == 0) _exit(0);
    return pid;
}
static void processes_once(void) { check(waitpid(child(), NULL, 0), "waitpid"); }
static void wait_any(void) {
    child();
    check(waitpid(-1, NULL, 0), "waitpid");
}
static void wait_nobody(void) { check(waitpid(-1, NULL, WNOHANG), "waitpid"); }
static void group_signal(void) { check(kill(-objects[0], 0), "kill"); }
static void group_change(void) {
    check(setpgid(objects[2], objects[0]), "setpgid");
    check(setpgid(objects[2], 0), "setpgid");
}
static void proc_list(void) { list("/proc"); }

// ---- signals that are queued ----

static sigset_t realtime;

static void signals_start(void) {
    sigemptyset(&realtime);
    sigaddset(&realtime, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &realtime, NULL);
}
static int signals_more(int i) { return sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}); }
static void signals_once(void) {
    siginfo_t info;
    check(signals_more(0), "sigqueue");
    check(sigwaitinfo(&realtime, &info), "sigwaitinfo");
}

// ---- mappings ----

static char *maps[MOST];

static char *map(int i) {
    return mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static int mappings_more(int i) {
    maps[i] = map(i);
    if (maps[i] == MAP_FAILED) return -1;
    if (i % 2 == 0) *maps[i] = 1;
    return 0;
}
static void mappings_once(void) {
    char *p = map(0);
    if (p == MAP_FAILED) die("mmap");
    *p = 1;
    munmap(p, PAGE);
}
static void mapping_fault(void) {
    char *p = maps[count / 2 & ~1];
    check(madvise(p, PAGE, MADV_DONTNEED), "madvise");
    *(volatile char *)p = 1;
}
static void maps_list(void) {
    static char buffer[1 << 16];
    int fd = open("/proc/self/maps", O_RDONLY);
    check(fd, "/proc/self/maps");
    while (read(fd, buffer, sizeof buffer) > 0) {}
    close(fd);
}

// ---- descriptors ----

static int first_fd;

static void descriptors_start(void) { check(first_fd = dup(0), "dup"); }
static int descriptors_more(int i) {
    (void)i;
    return keep(dup(0));
}
static void descriptors_once(void) {
    int fd = dup(0);
    check(fd, "dup");
    close(fd);
}
static void descriptor_hole(void) {
    close(first_fd);
    int low = dup(0), high = dup(0);
    if (low != first_fd || high < 0) die("dup");
    close(high);
}
static void fd_list(void) { list("/proc/self/fd"); }

// ---- pipes ----

static struct pollfd polled[MOST];

static int pipes_more(int i) {
    int fds[2];
    if (pipe(fds)) return -1;
    polled[i] = (struct pollfd){.fd = fds[0], .events = POLLIN};
    return 0;
}
static void pipes_once(void) {
    int fds[2];
    char c = 'x';
    if (pipe(fds) || write(fds[1], &c, 1) != 1 || read(fds[0], &c, 1) != 1) die("pipe");
    close(fds[0]), close(fds[1]);
}
static void poll_all(void) { check(poll(polled, (nfds_t)count, 0), "poll"); }

// ---- timers ----

static int extra_timer;

static void arm(int fd, time_t s, long ns) {
    struct itimerspec when = {.it_value = {s, ns}};
    check(timerfd_settime(fd, 0, &when, NULL), "timerfd_settime");
}
static void timers_start(void) { check(extra_timer = timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create"); }
static int timers_more(int i) {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    if (fd < 0) return -1;
    arm(fd, 1000 + i * 7919 % MOST, 0);
    return 0;
}
static void timers_once(void) {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    check(fd, "timerfd_create");
    arm(fd, 3000, 0);
    close(fd);
}
static void timer_arm(void) {
    arm(extra_timer, 6000, 0);
    arm(extra_timer, 0, 0);
}
static void timer_expiry(void) {
    uint64_t times;
    arm(extra_timer, 0, 1);
    check(read(extra_timer, &times, sizeof times), "read");
}

static int posix_timer(timer_t *made) {
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    struct itimerspec when = {.it_value = {3000, 0}};
    return timer_create(CLOCK_MONOTONIC, &none, made) || timer_settime(*made, 0, &when, NULL) ? -1 : 0;
}
static int posix_timers_more(int i) {
    timer_t made;
    (void)i;
    return posix_timer(&made);
}
static void posix_timers_once(void) {
    timer_t made;
    check(posix_timer(&made), "timer_create");
    timer_delete(made);
}

// ---- sockets ----

static struct sockaddr_in loopback(void) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
static int udp(void) {
    struct sockaddr_in at = loopback();
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    return s < 0 || bind(s, (void *)&at, sizeof at) ? -1 : s;
}
static int udp_more(int i) {
    (void)i;
    return keep(udp());
}
static void udp_once(void) {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    char c = 'x';
    int s = udp();
    check(s, "socket");
    if (getsockname(s, (void *)&at, &length) || sendto(s, &c, 1, 0, (void *)&at, length) != 1 || read(s, &c, 1) != 1) die("udp");
    close(s);
}

static int listener;
static struct sockaddr_in listens_at;

static void tcp_start(void) {
    socklen_t length = sizeof listens_at;
    listens_at = loopback();
    check(listener = socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (bind(listener, (void *)&listens_at, length) || listen(listener, 16) || getsockname(listener, (void *)&listens_at, &length)) die("listen");
}
static int tcp(int ends[2]) {
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (ends[0] < 0 || connect(ends[0], (void *)&listens_at, sizeof listens_at)) return -1;
    return ends[1] = accept(listener, NULL, NULL);
}
static int tcp_more(int i) {
    int ends[2];
    if (tcp(ends) < 0) return -1;
    objects[2 * i] = ends[0], objects[2 * i + 1] = ends[1];
    return 0;
}
static void tcp_once(void) {
    // No port is left waiting.
    struct linger hard = {1, 0};
    int ends[2];
    check(tcp(ends), "connect");
    setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(ends[0]), close(ends[1]);
}
static void tcp_byte(void) {
    char c = 'x';
    if (write(objects[0], &c, 1) != 1 || read(objects[1], &c, 1) != 1) die("tcp");
}

static int unix_socket(int number, int listens) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof at.sun_family;
    // Without a number: a name that the kernel chooses.
    if (number >= 0) length += (socklen_t)(1 + sprintf(at.sun_path + 1, "scale-%d-%d", getpid(), number));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (s < 0 || bind(s, (void *)&at, length)) return -1;
    return listens && listen(s, 16) ? -1 : s;
}
static int unix_more(int i) { return keep(unix_socket(i % 2 ? -1 : i, i % 2 == 0)); }
static void unix_once(void) {
    int s = unix_socket(MOST, 0);
    check(s, "bind");
    close(s);
}
static void unix_autobind(void) {
    int s = unix_socket(-1, 0);
    check(s, "bind");
    close(s);
}
static void unix_connect(void) {
    struct sockaddr_un at;
    socklen_t length = sizeof at;
    int to = objects[count / 2 & ~1], s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (getsockname(to, (void *)&at, &length) || connect(s, (void *)&at, length)) die("connect");
    int served = accept(to, NULL, NULL);
    check(served, "accept");
    close(s), close(served);
}

// ---- epoll ----

static int set, initial;

static void epoll_start(void) { check(set = epoll_create1(0), "epoll_create1"); }
static int shared_file;
static void watchers_start(void) { check(shared_file = eventfd(0, EFD_NONBLOCK), "eventfd"); }
static int watcher(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(0);
    return fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, shared_file, &event) ? -1 : fd;
}
static int watchers_more(int i) {
    (void)i;
    return keep(watcher());
}
static void watchers_once(void) {
    int fd = watcher();
    check(fd, "epoll_ctl");
    check(epoll_ctl(fd, EPOLL_CTL_DEL, shared_file, NULL), "epoll_ctl");
    close(fd);
}
static void epoll_ready_start(void) {
    initial = 1;
    epoll_start();
}
static int watched(void) {
    int fd = eventfd((unsigned)initial, EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) ? -1 : fd;
}
static int epoll_more(int i) {
    (void)i;
    return keep(watched());
}
static void epoll_event(void) {
    struct epoll_event event;
    uint64_t one = 1;
    int fd = objects[count / 2];
    if (write(fd, &one, 8) != 8 || epoll_wait(set, &event, 1, -1) != 1 || event.data.fd != fd || read(fd, &one, 8) != 8) die("epoll_wait");
}
static void epoll_one(void) {
    struct epoll_event event;
    if (epoll_wait(set, &event, 1, -1) != 1) die("epoll_wait");
}
static void epoll_add(void) {
    int fd = watched();
    check(fd, "epoll_ctl");
    check(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), "epoll_ctl");
    close(fd);
}
static void epoll_poll(void) {
    struct pollfd one = {.fd = set, .events = POLLIN};
    check(poll(&one, 1, 0), "poll");
}

// ---- System V objects: every other one has a key ----

static key_t key(int i) { return i % 2 ? IPC_PRIVATE : KEY + i; }
static key_t known_key(void) { return KEY + (count / 2 & ~1); }

static int sem_more(int i) { return keep(semget(key(i), 1, IPC_CREAT | 0600)); }
static void sem_once(void) {
    int id = semget(IPC_PRIVATE, 1, 0600);
    check(id, "semget");
    check(semctl(id, 0, IPC_RMID), "semctl");
}
static void sem_by_key(void) { check(semget(known_key(), 1, 0), "semget"); }
static void sem_operation(void) {
    struct sembuf operations[] = {{0, 1, 0}, {0, -1, 0}};
    check(semop(objects[count / 2], operations, 2), "semop");
}
static void sem_undo(void) {
    // The end of a process that has done something that is undone.
    struct sembuf up = {0, 1, SEM_UNDO};
    pid_t pid = fork();
    check(pid, "fork");
    if (pid == 0) _exit(semop(objects[0], &up, 1) != 0);
    check(waitpid(pid, NULL, 0), "waitpid");
}
static void sem_finish(void) {
    for (int i = 0; i < count; i++) semctl(objects[i], 0, IPC_RMID);
}

static int shm_more(int i) {
    if (keep(shmget(key(i), PAGE, IPC_CREAT | 0600))) return -1;
    return shmat(objects[i], NULL, 0) == (void *)-1 ? -1 : 0;
}
static void shm_once(void) {
    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    check(id, "shmget");
    char *at = shmat(id, NULL, 0);
    if (at == (void *)-1) die("shmat");
    check(shmdt(at), "shmdt");
    check(shmctl(id, IPC_RMID, NULL), "shmctl");
}
static void shm_by_key(void) { check(shmget(known_key(), PAGE, 0), "shmget"); }
static void shm_stat(void) {
    struct shmid_ds state;
    check(shmctl(objects[count / 2], IPC_STAT, &state), "shmctl");
    if (state.shm_nattch != 1) die("nattch");
}
static void shm_finish(void) {
    for (int i = 0; i < count; i++) shmctl(objects[i], IPC_RMID, NULL);
}

static int msg_more(int i) { return keep(msgget(key(i), IPC_CREAT | 0600)); }
static void msg_once(void) {
    int id = msgget(IPC_PRIVATE, 0600);
    check(id, "msgget");
    check(msgctl(id, IPC_RMID, NULL), "msgctl");
}
static void msg_by_key(void) { check(msgget(known_key(), 0), "msgget"); }
static void msg_send(void) {
    struct { long kind; char text[8]; } message = {1, "x"};
    int id = objects[count / 2];
    if (msgsnd(id, &message, 8, 0) || msgrcv(id, &message, 8, 0, 0) != 8) die("msgsnd");
}
static void msg_finish(void) {
    for (int i = 0; i < count; i++) msgctl(objects[i], IPC_RMID, NULL);
}

// ---- files of a tmpfs ----

static void directory_start(void) {
    char name[64];
    sprintf(name, "/dev/shm/scale-%d", getpid());
    if (mkdir(name, 0700) || chdir(name)) die(name);
}
static void directory_finish(void) {
    char name[64];
    DIR *dir = opendir(".");
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) unlink(entry->d_name);
    sprintf(name, "/dev/shm/scale-%d", getpid());
    rmdir(name);
}
static const char *name_of(int i) {
    static char name[32];
    sprintf(name, "file-%d", i);
    return name;
}
static int file(const char *name) { return open(name, O_RDWR | O_CREAT, 0600); }

static int entries_more(int i) {
    int fd = file(name_of(i));
    if (fd < 0) return -1;
    close(fd);
    return 0;
}
static void entries_once(void) {
    int fd = file("further");
    check(fd, "open");
    close(fd);
    check(unlink("further"), "unlink");
}
static void entry_lookup(void) {
    struct stat state;
    check(stat(name_of(count / 2), &state), "stat");
}
static void entry_rename(void) {
    char name[32];
    strcpy(name, name_of(count / 2));
    check(rename(name, "other"), "rename");
    check(rename("other", name), "rename");
}
static void entry_list(void) { list("."); }

// ---- inotify ----

static int notifies, spare_fd, watched_fd;

static void inotify_start(void) {
    directory_start();
    check(notifies = inotify_init1(IN_NONBLOCK), "inotify_init1");
    check(spare_fd = file("spare"), "open");
}
static int inotify_more(int i) {
    int fd = file(name_of(i));
    if (fd < 0) return -1;
    close(fd);
    if (i == 50) check(watched_fd = file(name_of(i)), "open");
    return keep(inotify_add_watch(notifies, name_of(i), IN_MODIFY));
}
static void read_event(uint32_t mask) {
    char buffer[4096];
    long length = read(notifies, buffer, sizeof buffer);
    if (length < (long)sizeof(struct inotify_event) || ((struct inotify_event *)(void *)buffer)->mask != mask) die("event");
}
static void inotify_once(void) {
    int wd = inotify_add_watch(notifies, "spare", IN_MODIFY);
    check(wd, "inotify_add_watch");
    check(inotify_rm_watch(notifies, wd), "inotify_rm_watch");
    read_event(IN_IGNORED);
}
static void inotify_event(void) {
    if (pwrite(watched_fd, "x", 1, 0) != 1) die("write");
    read_event(IN_MODIFY);
}
static void inotify_no_event(void) {
    if (pwrite(spare_fd, "x", 1, 0) != 1) die("write");
}

// ---- locks ----

static int fcntl_lock(int fd, short kind, off_t at) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock);
}
static int flock_more(int i) {
    int fd = file(name_of(i));
    return fd < 0 ? -1 : flock(fd, LOCK_EX);
}
static void flock_once(void) {
    int fd = file("further");
    check(fd, "open");
    check(flock(fd, LOCK_EX), "flock");
    close(fd);
}
static void close_beside_locks(void) {
    int fd = dup(0);
    check(fd, "dup");
    close(fd);
    check(fd = open("/dev/null", O_RDONLY), "open");
    close(fd);
}
static int record_files_more(int i) {
    int fd = file(name_of(i));
    return fd < 0 ? -1 : fcntl_lock(fd, F_WRLCK, 0);
}
static void record_files_once(void) {
    int fd = file("further");
    check(fd, "open");
    check(fcntl_lock(fd, F_WRLCK, 0), "F_SETLK");
    close(fd);
}
static void ranges_start(void) {
    directory_start();
    check(spare_fd = file("locked"), "open");
}
static int ranges_more(int i) { return fcntl_lock(spare_fd, F_WRLCK, 4 * i); }
static void ranges_once(void) {
    off_t at = 4 * (count / 2) + 2;
    check(fcntl_lock(spare_fd, F_WRLCK, at), "F_SETLK");
    check(fcntl_lock(spare_fd, F_UNLCK, at), "F_SETLK");
}

// ---- what there is ----

static const struct kind {
    const char *name;
    void (*start)(void);
    int (*more)(int i);
    void (*finish)(void);
    struct curve { const char *name; void (*once)(void); } curves[8];
} KINDS[] = {
    {"threads", threads_start, threads_more, NULL, {{"threads", threads_once}, {"futex_round_trip", futex_round_trip},
     {"futex_timeout", futex_timeout}, {"signal", signal_once}, {"task_list_each", task_list}}},
    {"processes", processes_start, processes_more, NULL, {{"processes", processes_once}, {"wait_any", wait_any},
     {"wait_nobody", wait_nobody}, {"group_signal", group_signal}, {"group_change", group_change}, {"proc_list_each", proc_list}}},
    {"queued_signals", signals_start, signals_more, NULL, {{"queued_signals", signals_once}}},
    {"mappings", NULL, mappings_more, NULL, {{"mappings", mappings_once}, {"mapping_fault", mapping_fault}, {"maps_list_each", maps_list}}},
    {"descriptors", descriptors_start, descriptors_more, NULL, {{"descriptors", descriptors_once}, {"descriptor_hole", descriptor_hole},
     {"fd_list_each", fd_list}}},
    {"pipes", NULL, pipes_more, NULL, {{"pipes", pipes_once}, {"poll_each", poll_all}}},
    {"timers", timers_start, timers_more, NULL, {{"timers", timers_once}, {"timer_arm", timer_arm}, {"timer_expiry", timer_expiry}}},
    {"posix_timers", NULL, posix_timers_more, NULL, {{"posix_timers", posix_timers_once}}},
    {"udp_sockets", NULL, udp_more, NULL, {{"udp_sockets", udp_once}}},
    {"tcp_connections", tcp_start, tcp_more, NULL, {{"tcp_connections", tcp_once}, {"tcp_byte", tcp_byte}}},
    {"unix_sockets", NULL, unix_more, NULL, {{"unix_sockets", unix_once}, {"unix_autobind", unix_autobind}, {"unix_connect", unix_connect}}},
    {"epoll", epoll_start, epoll_more, NULL, {{"epoll_event", epoll_event}, {"epoll_add", epoll_add}}},
    {"epoll_ready", epoll_ready_start, epoll_more, NULL, {{"epoll_ready", epoll_one}, {"epoll_ready_add", epoll_add}, {"epoll_ready_poll", epoll_poll}}},
    {"epoll_watchers", watchers_start, watchers_more, NULL, {{"epoll_watchers", watchers_once}}},
    {"semaphores", NULL, sem_more, sem_finish, {{"semaphores", sem_once}, {"sem_by_key", sem_by_key}, {"sem_operation", sem_operation},
     {"sem_undo", sem_undo}}},
    {"shared_memory", NULL, shm_more, shm_finish, {{"shared_memory", shm_once}, {"shm_by_key", shm_by_key}, {"shm_stat", shm_stat}}},
    {"message_queues", NULL, msg_more, msg_finish, {{"message_queues", msg_once}, {"msg_by_key", msg_by_key}, {"msg_send", msg_send}}},
    {"tmpfs_entries", directory_start, entries_more, directory_finish, {{"tmpfs_entries", entries_once}, {"entry_lookup", entry_lookup},
     {"entry_rename", entry_rename}, {"entry_list_each", entry_list}}},
    {"inotify_watches", inotify_start, inotify_more, directory_finish, {{"inotify_watches", inotify_once}, {"inotify_event", inotify_event},
     {"inotify_no_event", inotify_no_event}}},
    {"flocks", directory_start, flock_more, directory_finish, {{"flocks", flock_once}, {"close_beside_locks", close_beside_locks}}},
    {"record_locks", directory_start, record_files_more, directory_finish, {{"record_locks", record_files_once}}},
    {"record_ranges", ranges_start, ranges_more, directory_finish, {{"record_ranges", ranges_once}}},
};
enum { KINDS_COUNT = sizeof KINDS / sizeof KINDS[0], MOST_CURVES = 8 };

// Microseconds of one operation: the fastest of several rows of them, which is what it takes when the machine's other work
// does not come in between.
static double cost(void (*once)(void), double until) {
    double began = now(), best = 1e9;
    long row = 0;
    while (row < 3 || (now() - began < 0.02 && now() < until)) once(), row++;
    double each = (now() - began) / (double)row;
    row = each > 0.005 ? 1 : (long)(0.005 / each);
    for (int i = 0; i < 2 || (now() < until && (i < BATCHES || now() - began < 0.2)); i++) {
        double from = now();
        for (long j = 0; j < row; j++) once();
        double took = (now() - from) / (double)row;
        if (took < best) best = took;
    }
    return best * 1e6;
}

// The process that has `many` objects: writes lines of curve, number and microseconds to `out`. Nothing is measured at a limit,
// for an operation would find it too.
static void with_objects(const struct kind *kind, int many, double deadline, FILE *out) {
    const char *stopped = NULL;
    if (kind->start) kind->start();
    for (count = 0; count < many; count++) {
        if (kind->more(count)) {
            stopped = strerrorname_np(errno);
            break;
        }
        if (count % 16 == 0 && now() > deadline - SECONDS / 4) {
            stopped = "time";
            count++;
            break;
        }
    }
    if (stopped) fprintf(out, "stopped %s\n", stopped);
    int is_full = stopped && strcmp(stopped, "time") != 0;
    for (const struct curve *c = kind->curves; c->name && !is_full && count >= POINTS[0]; c++) {
        double us = cost(c->once, deadline);
        if (strstr(c->name, "_each")) us /= count;
        fprintf(out, "%s %d %.4f\n", c->name, count, us);
        fflush(out);
    }
    if (kind->finish) kind->finish();
    fprintf(out, "%s %d %.9f\n", is_full ? "full" : "end", count, now());
    fflush(out);
}

struct results {
    struct { int n[POINTS_COUNT]; double us[POINTS_COUNT]; int points; } curves[MOST_CURVES + 1];
    char stopped[32];
};

static void note(struct results *r, int curve, int n, double us) {
    int at = r->curves[curve].points;
    if (at == POINTS_COUNT || (at > 0 && r->curves[curve].n[at - 1] == n)) return;
    r->curves[curve].n[at] = n;
    r->curves[curve].us[at] = us;
    r->curves[curve].points++;
}

static int curves_of(const struct kind *kind) {
    int n = 0;
    while (n < MOST_CURVES && kind->curves[n].name) n++;
    return n;
}

// One number of objects, in a process of its own. If there may not be so many: how many there were, else 0.
static int measure(const struct kind *kind, int many, double deadline, struct results *r) {
    int fds[2], n = 0;
    char line[128], name[64];
    double value = 0, ended = 0;
    name[0] = 0;
    if (pipe(fds)) die("pipe");
    pid_t pid = fork();
    check(pid, "fork");
    if (pid == 0) {
        close(fds[0]);
        setpgid(0, 0);
        with_objects(kind, many, deadline, fdopen(fds[1], "w"));
        _exit(0);
    }
    close(fds[1]);
    FILE *in = fdopen(fds[0], "r");
    struct pollfd readable = {.fd = fds[0], .events = POLLIN};
    // Lines come one at a time.
    setvbuf(in, NULL, _IONBF, 0);
    for (;;) {
        double left = deadline + SECONDS / 2 - now();
        int is_late = left <= 0 || poll(&readable, 1, (int)(left * 1e3) + 1) == 0;
        if (is_late || !fgets(line, sizeof line, in)) {
            strcpy(r->stopped, is_late ? "time" : "failed");
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            break;
        }
        if (sscanf(line, "stopped %31s", r->stopped) == 1) continue;
        if (sscanf(line, "%63s %d %lf", name, &n, &value) != 3) continue;
        if (strcmp(name, "full") == 0) break;
        if (strcmp(name, "end") == 0) {
            ended = value;
            break;
        }
        for (int i = 0; i < curves_of(kind); i++)
            if (strcmp(name, kind->curves[i].name) == 0) note(r, i, n, value);
    }
    // It, and the processes that it left behind.
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
    if (ended > 0 && n > 0) note(r, MOST_CURVES, n, (now() - ended) / n * 1e6);
    fclose(in);
    return strcmp(name, "full") == 0 ? n : 0;
}

static int print(const char *name, const char *suffix, struct results *r, int curve, int printed) {
    if (r->curves[curve].points == 0) return printed;
    printf("%s\"%s%s\": {\"us\": {", printed ? ", " : "", name, suffix);
    for (int i = 0; i < r->curves[curve].points; i++)
        printf("%s\"%d\": %.4f", i ? ", " : "", r->curves[curve].n[i], r->curves[curve].us[i]);
    printf("}, \"stopped\": \"%s\"}", r->stopped);
    return 1;
}

int main(int argc, char **argv) {
    int printed = 0;
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (int k = 0; k < KINDS_COUNT; k++) puts(KINDS[k].name);
        return 0;
    }
    struct rlimit files = {2 * MOST + 200, 2 * MOST + 200};
    if (setrlimit(RLIMIT_NOFILE, &files)) {
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    // The host's own System V objects are none of ours.
    if (unshare(CLONE_NEWIPC)) errno = 0;
    printf("{");
    for (int k = 0; k < KINDS_COUNT; k++) {
        const struct kind *kind = &KINDS[k];
        int wanted = argc == 1;
        for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], kind->name) == 0;
        if (!wanted) continue;
        struct results results = {0};
        double deadline = now() + SECONDS;
        for (int p = 0; p < POINTS_COUNT && !results.stopped[0]; p++) {
            int most = measure(kind, POINTS[p], deadline, &results);
            // Some places are left for what is measured.
            if (most > POINTS[0]) measure(kind, most - most / 50 - 8, deadline, &results);
        }
        for (int i = 0; i < curves_of(kind); i++) printed = print(kind->curves[i].name, "", &results, i, printed);
        printed = print(kind->name, "_end", &results, MOST_CURVES, printed);
        fflush(stdout);
    }
    printf("}\n");
    return 0;
}
