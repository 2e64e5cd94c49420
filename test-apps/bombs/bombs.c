// Memory bombs: each mode makes as much of one thing as it can get, holds it for a moment, and ends. Whatever is refused is no failure:
// the only question is whether the sandbox, and everybody else in it, lives on. `bombs MODE [SECONDS]`; `bombs list` names the modes.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

static double seconds = 2;
static double begin;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int over(void) { return now() - begin > seconds; }

static void hold(void) {
    while (!over()) usleep(20000);
}

static void raise_limits(void) {
    const int which[] = {RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_STACK};
    for (unsigned i = 0; i < sizeof which / sizeof *which; i++) {
        struct rlimit l;
        if (getrlimit(which[i], &l)) continue;
        l.rlim_cur = l.rlim_max;
        setrlimit(which[i], &l);
    }
}

// ---- processes and threads
static void bomb_fork(void) {
    while (!over())
        if (fork() < 0) usleep(1000);
    _exit(0);
}

static void bomb_fork_flat(void) {
    for (int n = 0; !over() && n < 100000; n++) {
        int pid = fork();
        if (pid == 0) { hold(); _exit(0); }
        if (pid < 0) usleep(10000);
    }
}

static void bomb_vfork_exec(void) {
    while (!over()) {
        int pid = fork();
        if (pid == 0) { execl("/proc/self/exe", "bombs", "touch", "1", NULL); _exit(1); }
        if (pid < 0) usleep(1000);
    }
}

static void *idle_thread(void *p) { pause(); return p; }

static void bomb_threads(void) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 16384);
    while (!over()) {
        pthread_t t;
        if (pthread_create(&t, &a, idle_thread, NULL)) usleep(1000);
    }
    _exit(0);
}

// No memory at all: as many as there may be who all want a processor, in user code, in the kernel, or by waking each other.
static void crowd(void (*each)(void)) {
    for (int n = 0; n < 500 && !over(); n++) {
        int pid = fork();
        if (pid == 0) { while (!over()) each(); _exit(0); }
        if (pid < 0) usleep(10000);
    }
    while (!over()) each();
}

static void spin(void) { for (volatile int i = 0; i < 1000000; i++) {} }
static void call(void) { for (int i = 0; i < 1000; i++) getppid(); }
static void fault(void) {
    char *p = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    for (int i = 0; i < 1 << 16; i += 4096) p[i] = 1;
    munmap(p, 1 << 16);
}
static void bomb_spin(void) { crowd(spin); }
static void bomb_calls(void) { crowd(call); }
static void bomb_faults(void) { crowd(fault); }

static void bomb_chain(void) {
    // A process tree as deep as it gets: each child makes the next, and all wait.
    while (!over()) {
        int pid = fork();
        if (pid < 0) { hold(); break; }
        if (pid > 0) { hold(); _exit(0); }
    }
    _exit(0);
}

// ---- pages
static void touch_all(char *p, size_t len) {
    for (size_t i = 0; i < len && !over(); i += 4096) p[i] = 1;
}

static void bomb_touch(void) {
    for (;;) {
        size_t len = 64 << 20;
        char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) break;
        touch_all(p, len);
        if (over()) break;
    }
    hold();
}

static void *touch_thread(void *x) { bomb_touch(); return x; }

static void bomb_touch_threads(void) {
    pthread_t t[8];
    for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, touch_thread, 0);
    for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
}

static void bomb_two(void) {
    for (int i = 0; i < 2; i++)
        if (fork() == 0) { bomb_touch_threads(); _exit(0); }
    while (wait(0) > 0) {}
}

static void bomb_memfd(void) {
    for (int n = 0; n < 64 && !over(); n++) {
        int fd = memfd_create("bomb", 0);
        if (fallocate(fd, 0, 0, 235 << 20)) fallocate(fd, 0, 0, 32 << 20);
    }
    hold();
}

static void bomb_memfd_small(void) {
    // A page each: objects, inodes and tables rather than pages.
    while (!over()) {
        int fd = memfd_create("bomb", 0);
        if (fd < 0) break;
        if (ftruncate(fd, 1 << 20) || pwrite(fd, "x", 1, 0) != 1) usleep(1000);
    }
    hold();
}

static void bomb_shm(void) {
    int ids[4096], n = 0;
    while (!over() && n < 4096) {
        int id = shmget(IPC_PRIVATE, 8 << 20, 0600 | IPC_CREAT);
        if (id < 0) break;
        ids[n++] = id;
        char *p = shmat(id, 0, 0);
        if (p != (void *)-1) touch_all(p, 8 << 20);
    }
    hold();
    while (n-- > 0) shmctl(ids[n], IPC_RMID, 0);
}

static void bomb_tables(void) {
    // One page in each 2 MiB of terabytes: page tables rather than pages.
    size_t len = 1ul << 40;
    for (int n = 0; n < 4; n++) {
        char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        for (size_t i = 0; i < len && !over(); i += 2 << 20) (void)*(volatile char *)(p + i);
    }
    hold();
}

static void bomb_tables_shared(void) {
    // The same with one page of a file behind all of it.
    int fd = memfd_create("one", 0);
    ftruncate(fd, 4096);
    for (size_t i = 1; !over(); i++) {
        void *at = (void *)(0x100000000000ul + i * (2ul << 20));
        char *p = mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (p == MAP_FAILED) break;
        *p = 1;
    }
    hold();
}

static void bomb_mappings(void) {
    for (size_t i = 0; !over(); i++)
        if (mmap(0, 4096, i & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    // And what a copy of them costs.
    for (int n = 0; n < 64 && !over(); n++)
        if (fork() == 0) { hold(); _exit(0); }
    hold();
}

static void bomb_mlockall(void) {
    mlockall(MCL_CURRENT | MCL_FUTURE);
    for (int n = 0; n < 64 && !over(); n++) {
        mmap(0, 512ul << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        mmap(0, 1ul << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    hold();
}

static void bomb_mincore(void) {
    size_t len = 2ul << 40;
    char *p = mmap(0, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *vec = mmap(0, len / 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    while (!over()) mincore(p, len, vec);
}

static void bomb_madvise(void) {
    size_t len = 8ul << 40;
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    while (!over()) {
        madvise(p, len, MADV_WILLNEED);
        madvise(p, len, 22 /* MADV_POPULATE_READ */);
        madvise(p, len, 23 /* MADV_POPULATE_WRITE */);
        madvise(p, len, MADV_DONTNEED);
        mprotect(p, len, PROT_READ);
        mprotect(p, len, PROT_READ | PROT_WRITE);
        msync(p, len, MS_SYNC);
        mlock(p, len);
        munlock(p, len);
    }
}

static void bomb_holes(void) {
    size_t pages = 60000;
    char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages && !over(); i += 2) mprotect(p + i * 4096, 4096, PROT_READ);
    for (size_t i = 0; i < pages && !over(); i += 2) munmap(p + i * 4096, 4096);
    for (int n = 0; n < 32 && !over(); n++)
        if (fork() == 0) { hold(); _exit(0); }
    hold();
}

// ---- pipes and sockets
static char block[1 << 16];

static void bomb_pipes(void) {
    int fds[2];
    while (!over() && pipe2(fds, O_NONBLOCK) == 0) {
        fcntl(fds[1], F_SETPIPE_SZ, 1 << 20);
        while (!over() && write(fds[1], block, sizeof block) > 0) {}
    }
    hold();
}

static void bomb_pipes_bytes(void) {
    // Packets of one byte: what holds a byte is larger than the byte.
    int fds[2];
    while (!over() && pipe2(fds, O_NONBLOCK | O_DIRECT) == 0)
        while (!over() && write(fds[1], block, 1) > 0) {}
    hold();
}

static void fill_unix(int type) {
    int fds[2];
    while (!over() && socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, fds) == 0) {
        int size = 1 << 30;
        setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(fds[0], SOL_SOCKET, 32 /* SO_SNDBUFFORCE */, &size, sizeof size);
        while (!over() && send(fds[0], block, type == SOCK_STREAM ? sizeof block : 1, 0) > 0) {}
    }
    hold();
}

static void bomb_unix_stream(void) { fill_unix(SOCK_STREAM); }
static void bomb_unix_dgram(void) { fill_unix(SOCK_DGRAM); }
static void bomb_unix_seq(void) { fill_unix(SOCK_SEQPACKET); }

static void bomb_unix_dgram_named(void) {
    // Many senders, one receiver that never reads.
    int to = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int len = sizeof(sa_family_t) + 1 + sprintf(a.sun_path + 1, "bomb%d", getpid());
    bind(to, (void *)&a, len);
    while (!over()) {
        int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (s < 0) break;
        while (!over() && sendto(s, block, sizeof block, 0, (void *)&a, len) > 0) {}
    }
    hold();
}

static int send_fd(int s, int fd) {
    union { char buf[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c = {0};
    struct iovec io = {"x", 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = c.buf, .msg_controllen = sizeof c.buf};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    return sendmsg(s, &m, MSG_DONTWAIT) > 0 ? 0 : -1;
}

static void bomb_rights(void) {
    // Sockets that lie in the queues of sockets: a chain, whose end closes all of it.
    int fds[2], last[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, last)) return;
    long n = 0;
    while (!over() && n < 200000 && socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0) {
        if (send_fd(fds[0], last[0]) || send_fd(fds[0], last[1])) break;
        close(last[0]);
        close(last[1]);
        memcpy(last, fds, sizeof fds);
        n++;
    }
    close(last[0]);
    close(last[1]);
}

static void bomb_rights_cycle(void) {
    // Sockets that hold each other: nobody can close them any more.
    int fds[2];
    while (!over() && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, fds) == 0) {
        send_fd(fds[0], fds[0]);
        send_fd(fds[0], fds[1]);
        for (int i = 0; i < 8; i++) send(fds[0], block, 4096, 0);
        close(fds[0]);
        close(fds[1]);
    }
    hold();
}

// ---- queues and objects
static void bomb_msg(void) {
    struct { long type; char text[8192]; } m = {.type = 1};
    int ids[4096], n = 0;
    while (!over() && n < 4096) {
        int id = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
        if (id < 0) break;
        ids[n++] = id;
        struct msqid_ds ds;
        if (!msgctl(id, IPC_STAT, &ds)) { ds.msg_qbytes = 1 << 30; msgctl(id, IPC_SET, &ds); }
        while (!over() && msgsnd(id, &m, n & 1 ? 1 : sizeof m.text, IPC_NOWAIT) == 0) {}
    }
    hold();
    while (n-- > 0) msgctl(ids[n], IPC_RMID, 0);
}

static void bomb_sem(void) {
    int ids[40000], n = 0;
    while (!over() && n < 40000) {
        int id = semget(IPC_PRIVATE, 32000, 0600 | IPC_CREAT);
        if (id < 0) break;
        ids[n++] = id;
        struct sembuf op = {31999, 1, SEM_UNDO};
        semop(id, &op, 1);
    }
    hold();
    while (n-- > 0) semctl(ids[n], 0, IPC_RMID);
}

static void bomb_epoll(void) {
    int e = epoll_create1(0), p[2];
    while (!over() && pipe(p) == 0) {
        for (int i = 0; i < 2; i++) {
            struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
            epoll_ctl(e, EPOLL_CTL_ADD, p[i], &ev);
        }
    }
    while (!over()) {
        int x = epoll_create1(0);
        if (x < 0) break;
        struct epoll_event ev = {.events = EPOLLIN};
        epoll_ctl(x, EPOLL_CTL_ADD, e, &ev);
    }
    static struct epoll_event out[65536];
    while (!over()) epoll_wait(e, out, 65536, 1);
}

static void bomb_epoll_nest(void) {
    int last = eventfd(1, 0);
    for (int i = 0; i < 100000 && !over(); i++) {
        int e = epoll_create1(0);
        struct epoll_event ev = {.events = EPOLLIN};
        if (e < 0 || epoll_ctl(e, EPOLL_CTL_ADD, last, &ev)) break;
        last = e;
    }
    struct epoll_event out;
    epoll_wait(last, &out, 1, 0);
    hold();
}

static void bomb_poll(void) {
    static struct pollfd fds[1 << 20];
    for (int i = 0; i < 1 << 20; i++) fds[i].fd = -1;
    while (!over()) poll(fds, 1 << 20, 1);
}

static void bomb_iovec(void) {
    static struct iovec io[1024];
    int fd = open("/dev/zero", O_RDWR);
    char *p = mmap(0, 1ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < 1024; i++) io[i] = (struct iovec){p + ((size_t)i << 20), 1 << 20};
    while (!over()) {
        readv(fd, io, 1024);
        writev(fd, io, 1024);
        process_vm_readv(getpid(), io, 1024, io, 1024, 0);
    }
}

static void bomb_inotify(void) {
    char path[64];
    int fd = inotify_init1(IN_NONBLOCK);
    mkdir("/tmp/watched", 0700);
    inotify_add_watch(fd, "/tmp/watched", IN_ALL_EVENTS);
    for (long i = 0; !over(); i++) {
        sprintf(path, "/tmp/watched/%ld", i % 1000);
        int f = open(path, O_CREAT | O_RDWR, 0600);
        close(f);
        inotify_add_watch(fd, path, IN_ALL_EVENTS);
        if (i % 100 == 0) inotify_init1(0);
    }
}

static void bomb_timers(void) {
    struct itimerspec t = {{0, 1000000}, {1000, 0}};
    while (!over()) {
        timer_t id;
        struct sigevent e = {.sigev_notify = SIGEV_NONE};
        int failed = syscall(SYS_timer_create, CLOCK_MONOTONIC, &e, &id);
        int fd = timerfd_create(CLOCK_MONOTONIC, 0);
        if (fd >= 0) timerfd_settime(fd, 0, &t, 0);
        if (failed && fd < 0) break;
    }
    hold();
}

static void bomb_signals(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    union sigval v = {0};
    while (!over())
        if (sigqueue(getpid(), SIGRTMIN + 1, v)) usleep(100);
}

static void bomb_descriptors(void) {
    while (!over()) {
        int fd = open("/proc/self/status", O_RDONLY);
        if (fd < 0) break;
    }
    for (int i = 0; i < 64 && !over(); i++)
        if (fork() == 0) { hold(); _exit(0); }
    dup2(1, (1 << 20) - 1);
    hold();
}

static void bomb_locks(void) {
    int fd = open("/tmp/locked", O_CREAT | O_RDWR, 0600);
    for (long i = 0; !over(); i++) {
        struct flock l = {.l_type = F_WRLCK, .l_start = i * 2, .l_len = 1};
        if (fcntl(fd, F_SETLK, &l)) break;
    }
    hold();
}

static void *futex_waiter(void *p) {
    syscall(SYS_futex, p, FUTEX_WAIT, 0, 0, 0, 0);
    return p;
}

static void bomb_futex(void) {
    static int words[1 << 16];
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 16384);
    for (int i = 0; !over(); i++) {
        pthread_t t;
        if (pthread_create(&t, &a, futex_waiter, &words[i & 0xffff])) usleep(1000);
    }
    _exit(0);
}

// ---- long lists in one piece: what a table of the kernel takes when it grows, or a single call that lists much
static void many_descriptors(void) {
    // As many as there may be of one file: hardly anything but the table.
    int fd = open("/dev/null", O_RDONLY);
    for (int to = fd + 1; !over() && dup2(fd, to) >= 0; to++) {}
}

static void bomb_proc_fd(void) {
    static char big[1 << 16];
    double whole = seconds;
    seconds = whole / 2;
    many_descriptors();
    seconds = whole;
    const char *names[] = {"/proc/self/fd", "/proc/self/fdinfo"};
    for (int i = 0; !over(); i++) {
        int d = openat(AT_FDCWD, names[i % 2], O_RDONLY | O_DIRECTORY);
        if (d < 0) { close(100 + i); continue; }
        for (int n = 0; n < 3 && syscall(SYS_getdents64, d, big, sizeof big) > 0; n++) {}
        close(d);
    }
}

static void bomb_close_range(void) {
    while (!over()) {
        many_descriptors();
        int pid = fork();
        if (pid == 0) _exit(0);
        syscall(SYS_close_range, 3, ~0u, 0);
        if (pid > 0) waitpid(pid, 0, 0);
    }
}

static void bomb_dirs(void) {
    // A directory of many names, opened and listed again and again.
    static char big[1 << 16];
    const char *where[] = {"/tmp/listed", "/listed"};
    char path[64];
    for (int w = 0; w < 2; w++) {
        mkdir(where[w], 0777);
        for (int i = 0; i < 20000 && !over(); i++) {
            sprintf(path, "%s/%d-%d", where[w], getpid(), i);
            if (mkdir(path, 0700)) break;
        }
    }
    for (int i = 0; !over(); i++) {
        int d = open(where[i % 2], O_RDONLY | O_DIRECTORY);
        if (d < 0) { usleep(1000); continue; }
        syscall(SYS_getdents64, d, big, sizeof big);
    }
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 20000; i++) {
            sprintf(path, "%s/%d-%d", where[w], getpid(), i);
            if (rmdir(path)) break;
        }
    }
}

struct wait_word { uint64_t val, uaddr; uint32_t flags, reserved; };

static void *waitv_thread(void *words) {
    // As many words of each thread's own as one call takes.
    struct wait_word list[128];
    for (int i = 0; i < 128; i++) list[i] = (struct wait_word){0, (uint64_t)((int *)words + i), 2 | 128, 0};
    syscall(449 /* futex_waitv */, list, 128, 0, 0, 0);
    return words;
}

static void bomb_futex_waitv(void) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 16384);
    int *words = mmap(0, 1ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; !over(); i++) {
        pthread_t t;
        if (pthread_create(&t, &a, waitv_thread, words + i * 128)) usleep(1000);
    }
    _exit(0);
}

static void bomb_poll_one(void) {
    // The same file in all places: one queue with as many who wait.
    static struct pollfd fds[1 << 20];
    int p[2];
    pipe(p);
    for (unsigned n = 1 << 12; !over(); n = n < 1 << 20 ? n * 2 : 1 << 12) {
        for (unsigned i = 0; i < n; i++) fds[i] = (struct pollfd){p[0], POLLIN, 0};
        poll(fds, n, 1);
        if (fork() == 0) { write(p[1], "x", 1); _exit(0); }
        poll(fds, n, 10);
        read(p[0], block, 1);
        while (waitpid(-1, 0, WNOHANG) > 0) {}
    }
}

static void bomb_epoll_one(void) {
    // As many instances as there may be which watch one file, told of it again and again.
    int p[2];
    pipe2(p, O_NONBLOCK);
    while (!over()) {
        int e = epoll_create1(0);
        struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
        if (e < 0 || epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev)) break;
    }
    while (!over()) {
        write(p[1], "x", 1);
        read(p[0], block, 1);
    }
}

static void bomb_inotify_queues(void) {
    // Full queues of the longest names, of as many instances as there may be.
    char path[320], name[256];
    memset(name, 'n', sizeof name);
    name[240] = 0;
    mkdir("/tmp/noted", 0777);
    for (int i = 0; i < 200; i++) {
        int fd = inotify_init1(IN_NONBLOCK);
        if (fd < 0 || inotify_add_watch(fd, "/tmp/noted", IN_CREATE | IN_DELETE | IN_OPEN) < 0) break;
    }
    for (long i = 0; !over(); i++) {
        sprintf(path, "/tmp/noted/%s%ld", name, i);
        int fd = open(path, O_CREAT | O_RDWR, 0600);
        if (fd >= 0) close(fd);
        unlink(path);
    }
}

static void bomb_memfd_empty(void) {
    // Nothing but the objects.
    while (!over())
        if (memfd_create("bomb", 0) < 0) break;
    hold();
}

static void bomb_mqueue(void) {
    // Queues of POSIX, full of the longest messages or of those without a byte, each of a priority of its own.
    char name[32];
    for (int n = 0; !over(); n++) {
        sprintf(name, "/bomb%d-%d", getpid(), n);
        struct mq_attr attr = {.mq_maxmsg = n % 2 ? 65536 : 10, .mq_msgsize = n % 2 ? 1 : 8192};
        mqd_t q = mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, &attr);
        if (q < 0 && (attr.mq_maxmsg = 10, q = mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, &attr)) < 0) break;
        for (unsigned i = 0; !over() && mq_send(q, block, n % 2 ? 0 : 8192, i % 32768) == 0; i++) {}
        if (n % 3 == 0) mq_unlink(name);
    }
    hold();
}

static void bomb_msg_empty(void) {
    // Messages without a byte, in one queue.
    long type = 1;
    int id = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
    struct msqid_ds ds;
    if (!msgctl(id, IPC_STAT, &ds)) { ds.msg_qbytes = 1 << 30; msgctl(id, IPC_SET, &ds); }
    while (!over() && msgsnd(id, &type, 0, IPC_NOWAIT) == 0) {}
    hold();
    msgctl(id, IPC_RMID, 0);
}

static void bomb_users(void) {
    // What is limited for a user, of many users.
    union sigval v = {0};
    for (int n = 0; !over(); n++) {
        int pid = fork();
        if (pid < 0) { usleep(10000); continue; }
        if (pid > 0) continue;
        setuid(100000 + n);
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, 0);
        while (!over() && sigqueue(getpid(), SIGRTMIN + 1, v) == 0) {}
        hold();
        _exit(0);
    }
}

// ---- files
static void bomb_tmpfs(void) {
    char path[64];
    mkdir("/tmp/many", 0700);
    for (long i = 0; !over(); i++) {
        sprintf(path, "/tmp/many/%d-%ld", getpid(), i);
        int fd = open(path, O_CREAT | O_RDWR, 0600);
        if (fd < 0) { usleep(1000); continue; }
        close(fd);
    }
    int d = open("/tmp/many", O_RDONLY | O_DIRECTORY);
    static char big[1 << 20];
    while (syscall(SYS_getdents64, d, big, sizeof big) > 0) {}
    for (long i = 0;; i++) {
        sprintf(path, "/tmp/many/%d-%ld", getpid(), i);
        if (unlink(path)) break;
    }
}

static void bomb_mounts(void) {
    // Mounts that double, in a peer group with everything that is bound of it, and namespaces that copy them all; then a
    // stack of file systems as high as it gets.
    if (unshare(CLONE_NEWNS)) { hold(); return; }
    char path[64];
    mount("bomb", "/tmp", "tmpfs", 0, 0);
    mkdir("/tmp/a", 0700);
    mount("a", "/tmp/a", "tmpfs", 0, 0);
    mount(0, "/tmp/a", 0, MS_SHARED, 0);
    for (int i = 0; !over(); i++) {
        sprintf(path, "/tmp/a/%d", i);
        mkdir(path, 0700);
        if (mount(i % 2 ? "/tmp/a" : "/tmp", path, 0, MS_BIND | MS_REC, 0)) break;
        if (i % 3 == 0) mount(0, path, 0, MS_SLAVE | MS_REC, 0);
        if (i % 3 == 0) mount(0, path, 0, MS_SHARED | MS_REC, 0);
    }
    for (int i = 0; i < 200 && !over(); i++)
        if (fork() == 0) {
            if (unshare(CLONE_NEWNS) == 0) umount2("/tmp/a", MNT_DETACH);
            hold();
            _exit(0);
        }
    umount2("/tmp/a", MNT_DETACH);
    while (!over() && mount("b", "/tmp/a", "tmpfs", 0, 0) == 0) {}
    hold();
}

static void bomb_tmpfs_data(void) {
    char path[64];
    sprintf(path, "/tmp/data-%d", getpid());
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    unlink(path);
    while (!over() && write(fd, block, sizeof block) > 0) {}
    hold();
}

static void bomb_names(void) {
    // Names that do not exist: what the kernel remembers of them.
    char path[300];
    for (long i = 0; !over(); i++) {
        memset(path, 'a', 250);
        sprintf(path, "/tmp/%ld", i);
        path[strlen(path)] = 'b';
        path[250] = 0;
        access(path, F_OK);
        sprintf(path, "/bin/none%ld", i);
        access(path, F_OK);
    }
}

static void bomb_deep(void) {
    // A path of as many components as it gets, then all of it at once.
    char top[64];
    sprintf(top, "/tmp/deep%d", getpid());
    mkdir(top, 0700);
    chdir(top);
    long n = 0;
    for (; n < 100000 && !over(); n++)
        if (mkdir("d", 0700) || chdir("d")) break;
    if (getenv("VERBOSE")) fprintf(stderr, "%ld deep after %.2f s\n", n, now() - begin);
    int fd = open(".", O_RDONLY | O_DIRECTORY);
    char path[4096];
    readlink("/proc/self/cwd", path, sizeof path);
    getcwd(path, sizeof path);
    chdir("/");
    close(fd);
    // Taken apart from the top: the rest hangs on nothing.
    rename(top, "/tmp/gone");
    chdir("/tmp/gone");
    double end = now() + 5;
    for (; n > 0 && now() < end; n--) {
        if (chdir("d")) break;
        if (rename("d", "../e") == 0) {}
        if (chdir("..")) break;
        if (rmdir("d")) break;
        rename("e", "d");
    }
    chdir("/");
}

static void bomb_xattr(void) {
    static char value[65536];
    char name[64];
    int fd = open("/tmp/attributed", O_CREAT | O_RDWR, 0600);
    for (int i = 0; !over(); i++) {
        sprintf(name, "user.a%d", i);
        if (fsetxattr(fd, name, value, sizeof value, 0) && fsetxattr(fd, "trusted.a", value, sizeof value, 0)) break;
    }
    while (!over()) flistxattr(fd, value, sizeof value);
}

static void bomb_symlinks(void) {
    char path[64];
    static char target[4000];
    memset(target, 'x', sizeof target - 1);
    for (int i = 0; !over(); i++) {
        sprintf(path, "/tmp/l%d-%d", getpid(), i);
        if (symlink(target, path)) { usleep(1000); break; }
    }
    for (int i = 0;; i++) {
        sprintf(path, "/tmp/l%d-%d", getpid(), i);
        if (unlink(path)) break;
    }
}

static void bomb_argv(void) {
    // As much of arguments as execve takes, from several processes at once.
    static char *args[200000];
    for (int i = 0; i < 199999; i++) args[i] = "aaaaaaaa";
    for (int i = 0; i < 16; i++)
        if (fork() == 0) {
            while (!over()) {
                int pid = vfork();
                if (pid == 0) { execve("/proc/self/exe", args, args + 100000); _exit(1); }
                if (pid > 0) waitpid(pid, 0, 0);
            }
            _exit(0);
        }
    while (wait(0) > 0) {}
}

static void bomb_stack(void) {
    volatile char page[65536];
    page[0] = 1;
    page[65535] = 1;
    if (!over()) bomb_stack();
    page[1] = page[0];
}

static void bomb_sigframes(void) {
    // A signal in the handler of a signal, as deep as it gets.
    struct sigaction a = {.sa_handler = (void (*)(int))bomb_sigframes, .sa_flags = SA_NODEFER};
    sigaction(SIGUSR1, &a, 0);
    if (!over()) raise(SIGUSR1);
}

static void bomb_splice(void) {
    int a[2], b[2];
    while (!over() && pipe2(a, O_NONBLOCK) == 0 && pipe2(b, O_NONBLOCK) == 0) {
        fcntl(a[1], F_SETPIPE_SZ, 1 << 20);
        fcntl(b[1], F_SETPIPE_SZ, 1 << 20);
        while (write(a[1], block, sizeof block) > 0) {}
        tee(a[0], b[1], 1 << 20, SPLICE_F_NONBLOCK);
    }
    hold();
}

static void bomb_mremap(void) {
    size_t len = 32 << 20;
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    touch_all(p, len);
    for (int i = 0; !over(); i++) {
        void *to = (void *)(0x200000000000ul + (i % 1000) * (1ul << 30));
        void *q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (q != MAP_FAILED) p = q;
    }
}

static void bomb_proc(void) {
    // What /proc makes as text, read by many.
    const char *names[] = {"/proc/self/maps", "/proc/self/smaps", "/proc/stat", "/proc/self/mountinfo", "/proc/net/unix", "/proc/self/pagemap"};
    for (int i = 0; i < 30000 && !over(); i++)
        mmap(0, 4096, i & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fds[600], n = 0;
    while (!over()) {
        int fd = open(names[n % 6], O_RDONLY);
        if (fd < 0) { n++; continue; }
        read(fd, block, 16);
        close(fds[n % 600]);
        fds[n++ % 600] = fd;
    }
}

static const struct { const char *name; void (*run)(void); } modes[] = {
    {"fork", bomb_fork}, {"fork-flat", bomb_fork_flat}, {"exec", bomb_vfork_exec}, {"threads", bomb_threads},
    {"spin", bomb_spin}, {"calls", bomb_calls}, {"faults", bomb_faults}, {"chain", bomb_chain}, {"touch", bomb_touch}, {"touch-threads", bomb_touch_threads}, {"two", bomb_two},
    {"memfd", bomb_memfd}, {"memfd-small", bomb_memfd_small}, {"shm", bomb_shm}, {"tables", bomb_tables},
    {"tables-shared", bomb_tables_shared}, {"mappings", bomb_mappings}, {"mlockall", bomb_mlockall},
    {"mincore", bomb_mincore}, {"madvise", bomb_madvise}, {"holes", bomb_holes}, {"pipes", bomb_pipes},
    {"pipes-bytes", bomb_pipes_bytes}, {"unix-stream", bomb_unix_stream}, {"unix-dgram", bomb_unix_dgram},
    {"unix-seq", bomb_unix_seq}, {"unix-named", bomb_unix_dgram_named}, {"rights", bomb_rights},
    {"rights-cycle", bomb_rights_cycle}, {"msg", bomb_msg}, {"sem", bomb_sem}, {"epoll", bomb_epoll},
    {"epoll-nest", bomb_epoll_nest}, {"poll", bomb_poll}, {"iovec", bomb_iovec}, {"inotify", bomb_inotify},
    {"timers", bomb_timers}, {"signals", bomb_signals}, {"descriptors", bomb_descriptors}, {"locks", bomb_locks},
    {"futex", bomb_futex}, {"tmpfs", bomb_tmpfs}, {"tmpfs-data", bomb_tmpfs_data}, {"names", bomb_names},
    {"deep", bomb_deep}, {"xattr", bomb_xattr}, {"symlinks", bomb_symlinks}, {"argv", bomb_argv},
    {"stack", bomb_stack}, {"sigframes", bomb_sigframes}, {"splice", bomb_splice}, {"mremap", bomb_mremap},
    {"proc", bomb_proc}, {"proc-fd", bomb_proc_fd}, {"close-range", bomb_close_range}, {"dirs", bomb_dirs},
    {"futex-waitv", bomb_futex_waitv}, {"poll-one", bomb_poll_one}, {"epoll-one", bomb_epoll_one},
    {"inotify-queues", bomb_inotify_queues}, {"memfd-empty", bomb_memfd_empty}, {"msg-empty", bomb_msg_empty}, {"mqueue", bomb_mqueue}, {"mounts", bomb_mounts}, {"users", bomb_users},
};

// A first process that needs nothing: it waits for children that were left to it.
static void init(void) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) pause();
}

// Removes what outlives processes: System V objects, files.
static int clean(void) {
    struct msqid_ds m;
    struct seminfo s;
    struct shm_info i;
    // *_STAT_ANY: an administrator need not be allowed to read what another user made.
    for (int at = shmctl(0, SHM_INFO, (void *)&i); at >= 0; at--) {
        struct shmid_ds ds;
        int id = shmctl(at, 15 /* SHM_STAT_ANY */, &ds);
        if (id >= 0) shmctl(id, IPC_RMID, 0);
    }
    for (int at = msgctl(0, MSG_INFO, (void *)&m); at >= 0; at--) {
        int id = msgctl(at, 13 /* MSG_STAT_ANY */, &m);
        if (id >= 0) msgctl(id, IPC_RMID, 0);
    }
    for (int at = semctl(0, 0, SEM_INFO, &s); at >= 0; at--) {
        struct semid_ds ds;
        int id = semctl(at, 0, 20 /* SEM_STAT_ANY */, &ds);
        if (id >= 0) semctl(id, 0, IPC_RMID);
    }
    DIR *queues = opendir("/dev/mqueue");
    for (struct dirent *q; queues && (q = readdir(queues));)
        if (q->d_name[0] != '.') unlinkat(dirfd(queues), q->d_name, 0);
    if (queues) closedir(queues);
    // One level at a time, for a path may be far longer than a path can be.
    char from[300];
    for (int n = 0;; n++) {
        int here = open("/tmp", O_RDONLY | O_DIRECTORY);
        DIR *d = fdopendir(here);
        struct dirent *e;
        int left = 0;
        while ((e = readdir(d))) {
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            left = 1;
            if (unlinkat(here, e->d_name, 0) == 0 || unlinkat(here, e->d_name, AT_REMOVEDIR) == 0) continue;
            // Its children become its neighbours.
            int sub = openat(here, e->d_name, O_RDONLY | O_DIRECTORY);
            DIR *inner = fdopendir(sub);
            struct dirent *c;
            for (long k = 0; inner && (c = readdir(inner)); k++) {
                if (!strcmp(c->d_name, ".") || !strcmp(c->d_name, "..")) continue;
                if (unlinkat(sub, c->d_name, 0) == 0 || unlinkat(sub, c->d_name, AT_REMOVEDIR) == 0) continue;
                sprintf(from, "up%d-%ld", n, k);
                renameat(sub, c->d_name, here, from);
            }
            if (inner) closedir(inner);
        }
        closedir(d);
        if (!left) return 0;
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "clean")) return clean();
    if (argc > 1 && !strcmp(argv[1], "init")) init();
    // Ends everybody else who is left of a round.
    if (argc > 1 && !strcmp(argv[1], "reap")) return kill(-1, SIGKILL) && errno != ESRCH;
    int count = sizeof modes / sizeof *modes;
    if (argc > 2) seconds = atof(argv[2]);
    begin = now();
    raise_limits();
    for (int i = 0; i < count; i++) {
        if (argc > 1 && !strcmp(argv[1], "list")) puts(modes[i].name);
        if (argc > 1 && !strcmp(argv[1], modes[i].name)) { modes[i].run(); return 0; }
    }
    return !(argc > 1 && !strcmp(argv[1], "list"));
}
