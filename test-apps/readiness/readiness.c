// Does random things with pipes, sockets, eventfds and epoll instances, and prints after each step what poll(2) and epoll_wait(2) say
// of all of them. One thread does it all, so Linux gives the same lines for the same seed each time: whoever runs this in a sandbox
// compares.
//   readiness SEED STEPS [SETTLE_US]     (waits so long after each step)
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILES = 14, SETS = 4, MOST = 64 };
enum kind { NONE, PIPE_READ, PIPE_WRITE, EVENT, UNIX_STREAM, UNIX_DGRAM, TCP, UDP, LISTENER, KINDS };
static const char *const names[] = {"-", "pipe<", "pipe>", "event", "stream", "dgram", "tcp", "udp", "listen"};

static uint64_t state;
static uint32_t any(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct file {
    enum kind kind;
    int fd;
} files[FILES];
static int sets[SETS];

static int free_place(int besides) {
    for (int i = 0; i < FILES; i++)
        if (files[i].kind == NONE && i != besides) return i;
    return -1;
}

static void put(int place, enum kind kind, int fd) {
    if (fd < 0) die(names[kind]);
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)) die("O_NONBLOCK");
    files[place] = (struct file){kind, fd};
}

static int listener(struct sockaddr_in *at) {
    socklen_t length = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (void *)at, sizeof *at) || listen(fd, 8) || getsockname(fd, (void *)at, &length)) die("listen");
    return fd;
}

static void make(void) {
    int a = free_place(-1), b = free_place(a), fds[2];
    enum kind kind = (enum kind)(1 + any(KINDS - 1));
    if (a < 0 || (b < 0 && kind != EVENT && kind != LISTENER)) return;
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    switch (kind) {
    case PIPE_READ:
    case PIPE_WRITE:
        if (pipe(fds)) die("pipe");
        put(a, PIPE_READ, fds[0]), put(b, PIPE_WRITE, fds[1]);
        break;
    case EVENT: put(a, EVENT, eventfd(any(2), any(2) ? EFD_SEMAPHORE : 0)); break;
    case UNIX_STREAM:
    case UNIX_DGRAM:
        if (socketpair(AF_UNIX, kind == UNIX_STREAM ? SOCK_STREAM : SOCK_DGRAM, 0, fds)) die("socketpair");
        put(a, kind, fds[0]), put(b, kind, fds[1]);
        break;
    case TCP: {
        int waiting = listener(&at), one = 1;
        put(a, TCP, socket(AF_INET, SOCK_STREAM, 0));
        // Without a wait: what epoll says of it must be true from the first moment on.
        if (connect(files[a].fd, (void *)&at, sizeof at) && errno != EINPROGRESS) die("connect");
        put(b, TCP, accept(waiting, NULL, NULL));
        setsockopt(files[a].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(files[b].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        close(waiting);
        break;
    }
    case UDP:
        for (int i = 0; i < 2; i++) {
            at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
            if (fds[i] < 0 || bind(fds[i], (void *)&at, sizeof at)) die("udp");
        }
        for (int i = 0; i < 2; i++)
            if (getsockname(fds[i], (void *)&at, &length) || connect(fds[1 - i], (void *)&at, length)) die("udp");
        put(a, UDP, fds[0]), put(b, UDP, fds[1]);
        break;
    case LISTENER: put(a, LISTENER, listener(&at)); break;
    default: break;
    }
    printf("make %s at %d and %d\n", names[kind], a, b);
}

// True if something can be written, of which an edge says no more than what was written. (On Linux a write that fails, or one that
// leaves a buffer of the socket free again, may be an edge too; and where the host has the socket, so may the room that is left.)
static bool is_writable(const struct file *file) {
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    struct pollfd now = {file->fd, POLLIN | POLLOUT, 0};
    if (poll(&now, 1, 0) < 0) die("poll");
    bool is_inet = file->kind == TCP || file->kind == UDP;
    bool is_socket = is_inet || file->kind == UNIX_STREAM || file->kind == UNIX_DGRAM;
    if (is_socket && getpeername(file->fd, (void *)&peer, &length)) return false;
    return now.revents == POLLOUT || (now.revents == (POLLIN | POLLOUT) && !is_inet);
}

static void transfer(int i) {
    static char buffer[300000];
    struct file *file = &files[i];
    size_t sizes[] = {1, 100, 5000, sizeof buffer};
    int reads = any(2);
    // Filling up shows how Linux counts the memory of its buffers: of pipes that is said, of sockets not.
    size_t size = file->kind == EVENT ? 8 : sizes[any(file->kind == PIPE_READ || file->kind == PIPE_WRITE ? 4 : 3)];
    if (file->kind == LISTENER) {
        int fd = accept(file->fd, NULL, NULL);
        printf("accept %d: %d\n", i, fd >= 0 ? 0 : errno);
        if (fd >= 0) close(fd);
        return;
    }
    uint64_t one = 1;
    ssize_t moved;
    if (!reads && file->kind != PIPE_READ && !is_writable(file)) return;
    if (reads && file->kind == PIPE_WRITE) return;
    if (reads)
        moved = read(file->fd, buffer, size);
    else
        moved = file->kind == EVENT ? write(file->fd, &one, 8) : write(file->fd, buffer, size);
    // How much fits, when it is not all, is nobody's business.
    if (moved > 5000) moved = 5001;
    printf("%s %d of %s: %zd %s\n", reads ? "read" : "write", i, names[file->kind], moved, moved < 0 ? strerrorname_np(errno) : "");
}

static uint32_t random_events(void) {
    static const uint32_t bits[] = {EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLPRI};
    static const uint32_t modes[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    uint32_t events = modes[any(4)];
    for (int i = 0; i < 4; i++) events |= any(3) ? bits[i] : 0;
    // Linux tells of room by an edge whenever a buffer of the socket is given back, also if there was room before.
    return events & EPOLLET ? events & ~(uint32_t)EPOLLOUT : events;
}

static void control(void) {
    static const char *const ops[] = {"", "add", "del", "mod"};
    int set = any(SETS), op = 1 + any(3), nested = any(6) == 0;
    int what = nested ? any(SETS) : any(FILES);
    int fd = nested ? sets[what] : files[what].fd;
    if (!nested && files[what].kind == NONE) return;
    struct epoll_event event = {random_events(), {.u32 = (uint32_t)(nested ? 100 + what : what)}};
    int result = epoll_ctl(sets[set], op, fd, &event);
    printf("%s %s%d in %d, %x: %s\n", ops[op], nested ? "set " : "", what, set, event.events, result ? strerrorname_np(errno) : "ok");
}

static int by_data(const void *a, const void *b) {
    const struct epoll_event *x = a, *y = b;
    return x->data.u32 < y->data.u32 ? -1 : x->data.u32 > y->data.u32;
}

static void take(int set) {
    struct epoll_event events[MOST];
    int count = epoll_wait(sets[set], events, MOST, 0);
    if (count < 0) die("epoll_wait");
    // In which order is not said anywhere.
    qsort(events, (size_t)count, sizeof events[0], by_data);
    printf("  set %d:", set);
    for (int i = 0; i < count; i++) printf(" %u=%x", events[i].data.u32, events[i].events);
    printf("\n");
}

static void look(void) {
    struct pollfd all[FILES + SETS];
    for (int i = 0; i < FILES; i++)
        all[i] = (struct pollfd){files[i].kind == NONE ? -1 : files[i].fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    for (int i = 0; i < SETS; i++) all[FILES + i] = (struct pollfd){sets[i], POLLIN | POLLOUT, 0};
    if (poll(all, FILES + SETS, 0) < 0) die("poll");
    printf("  poll:");
    for (int i = 0; i < FILES + SETS; i++)
        if (all[i].revents) printf(" %d=%x", i, all[i].revents);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: readiness SEED STEPS [SETTLE_US]");
    unsigned settle_us = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
    signal(SIGPIPE, SIG_IGN);
    state = strtoull(argv[1], NULL, 0);
    for (int i = 0; i < SETS; i++)
        if ((sets[i] = epoll_create1(0)) < 0) die("epoll_create1");
    for (long step = 0; step < atol(argv[2]); step++) {
        int i = any(FILES);
        printf("%ld ", step);
        switch (any(12)) {
        case 0: make(); break;
        case 1:
            if (files[i].kind != NONE && any(3) == 0) {
                printf("close %d\n", i);
                close(files[i].fd);
                files[i].kind = NONE;
            }
            break;
        case 2:
            if (files[i].kind == TCP || files[i].kind == UNIX_STREAM) {
                // What is lost with a connection that is reset depends on when.
                int how = files[i].kind == TCP ? SHUT_WR : (int)any(3);
                // One that fails may be an edge on Linux.
                if (!is_writable(&files[i])) break;
                printf("shutdown %d %d: %d\n", i, how, shutdown(files[i].fd, how) ? errno : 0);
            }
            break;
        case 3:
        case 4:
        case 5: control(); break;
        default:
            if (files[i].kind != NONE) transfer(i);
        }
        printf("\n");
        if (settle_us > 0) usleep(settle_us);
        // Each look may change what the next one sees: an edge is told once.
        if (any(3)) look();
        if (any(2)) take((int)any(SETS));
    }
    return 0;
}
