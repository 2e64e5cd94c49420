// Has the kernel fill memory that was never touched, by one kind of system call, until there is none left:
//
//   hungry KIND [MB]
//   hungry sockets COUNT
//   hungry copies MB
//
// Of a container with less memory than MB (1024) it is killed, as by a page fault of its own: no call fails or gives less than it
// should. It prints what went wrong and ends with 1, or ends with 0 when there was memory for all of it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 48 << 10 };

static int from, to;
static char bytes[1 << 20];

static void die(const char *what, long result) {
    fprintf(stderr, "%s: %ld (%s)\n", what, result, result < 0 ? strerror(errno) : "too few");
    exit(1);
}

static void need(const char *what, long result, long wanted) {
    if (result != wanted) die(what, result);
}

// Each fills `size` bytes at `at`, or touches a page there; `size` is PIECE or what it says in `kinds`.
static void by_read(char *at, size_t size) { need("read", read(from, at, size), size); }
static void by_pread(char *at, size_t size) { need("pread", pread(from, at, size, 0), size); }
static void by_preadv(char *at, size_t size) {
    struct iovec parts[] = {{at, 100}, {at + 100, size - 100}};
    need("preadv", preadv(from, parts, 2, 0), size);
}
static void by_pipe(char *at, size_t size) {
    need("write", write(to, bytes, size), size);
    need("read of a pipe", read(from, at, size), size);
}
static void by_recv(char *at, size_t size) {
    need("send", send(to, bytes, size, 0), size);
    need("recv", recv(from, at, size, MSG_WAITALL), size);
}
static void by_getrandom(char *at, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t more = getrandom(at + done, size - done, 0);
        if (more <= 0) die("getrandom", more);
        done += more;
    }
}
static void by_stat(char *at, size_t size) { need("fstat", fstat(from, (void *)(at + 100)), 0); }
static void by_getdents(char *at, size_t size) {
    need("lseek", lseek(from, 0, SEEK_SET), 0);
    long got = syscall(SYS_getdents64, from, at, size);
    if (got <= 0) die("getdents64", got);
}
static void by_wait(char *at, size_t size) {
    pid_t child = fork();
    if (child < 0) die("fork", child);
    if (child == 0) _exit(3);
    need("wait4", waitpid(child, (int *)at, 0), child);
    // The child may be what is killed.
    if (WIFEXITED(*(int *)at)) need("its status", WEXITSTATUS(*(int *)at), 3);
}
static void by_clock(char *at, size_t size) {
    need("clock_getres", syscall(SYS_clock_getres, CLOCK_MONOTONIC, at), 0);
}
static void by_stack_of_signal(char *at, size_t size) {
    stack_t stack = {.ss_sp = at, .ss_size = size};
    need("sigaltstack", sigaltstack(&stack, NULL), 0);
    need("raise", raise(SIGUSR1), 0);
}
static void by_exec(char *at, size_t size) {
    memset(at, 1, size);
    pid_t child = vfork();
    if (child < 0) die("vfork", child);
    if (child == 0) {
        execl("/proc/self/exe", "hungry", "nothing", NULL);
        _exit(100);
    }
    int status;
    need("wait4", waitpid(child, &status, 0), child);
    // It may be what is killed, for the time being.
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) die("exec", -WEXITSTATUS(status));
}
static void on_signal(int signo) {}

static void with_file(void) {
    from = open("/tmp/hungry", O_RDWR | O_CREAT, 0600);
    if (from < 0) die("open", from);
    need("write", write(from, bytes, sizeof bytes), sizeof bytes);
}
static void with_host_file(void) {
    from = open("/data/hungry", O_RDWR | O_CREAT, 0600);
    if (from < 0) die("open", from);
    need("write", write(from, bytes, sizeof bytes), sizeof bytes);
}
static void with_zeros(void) { from = open("/dev/zero", O_RDONLY); }
static void with_directory(void) { from = open("/bin", O_RDONLY); }
static void with_pipe(void) {
    int ends[2];
    need("pipe", pipe(ends), 0);
    from = ends[0], to = ends[1];
}
static void with_pair(int type) {
    int ends[2];
    need("socketpair", socketpair(AF_UNIX, type, 0, ends), 0);
    from = ends[0], to = ends[1];
}
static void with_stream(void) { with_pair(SOCK_STREAM); }
static void with_messages(void) { with_pair(SOCK_SEQPACKET); }
static void with_inet(int type) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    from = socket(AF_INET, type, 0), to = socket(AF_INET, type, 0);
    need("bind", bind(from, (void *)&address, length), 0);
    need("getsockname", getsockname(from, (void *)&address, &length), 0);
    if (type == SOCK_STREAM) need("listen", listen(from, 1), 0);
    need("connect", connect(to, (void *)&address, length), 0);
    if (type == SOCK_STREAM) from = accept(from, NULL, NULL);
}
static void with_tcp(void) { with_inet(SOCK_STREAM); }
static void with_udp(void) { with_inet(SOCK_DGRAM); }
static void with_handler(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    need("sigaction", sigaction(SIGUSR1, &action, NULL), 0);
}

static const struct {
    const char *name;
    void (*set_up)(void);
    void (*fill)(char *, size_t);
    size_t size;
} kinds[] = {
    {"zeros", with_zeros, by_read, PIECE},
    {"zeros-long", with_zeros, by_read, 16 << 20},
    {"tmpfs", with_file, by_pread, PIECE},
    {"tmpfs-long", with_file, by_pread, 1 << 20},
    {"file", with_host_file, by_pread, PIECE},
    {"file-long", with_host_file, by_pread, 1 << 20},
    {"file-parts", with_host_file, by_preadv, PIECE},
    {"pipe", with_pipe, by_pipe, PIECE},
    {"stream", with_stream, by_recv, PIECE},
    {"message", with_messages, by_recv, PIECE},
    {"tcp", with_tcp, by_recv, PIECE},
    {"udp", with_udp, by_recv, PIECE},
    {"getrandom", NULL, by_getrandom, PIECE},
    {"stat", with_directory, by_stat, PAGE},
    {"getdents", with_directory, by_getdents, PAGE},
    {"wait", NULL, by_wait, 64 << 10},
    {"clock", NULL, by_clock, PAGE},
    {"signal", with_handler, by_stack_of_signal, 64 << 10},
    {"exec", NULL, by_exec, 256 << 10},
};

// As many sockets, of two families, and lists of all of them again and again: one fails for want of memory, or comes whole.
static int list_sockets(int count) {
    struct rlimit most;
    need("getrlimit", getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    need("setrlimit", setrlimit(RLIMIT_NOFILE, &most), 0);
    for (int i = 0; i < count; i++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        snprintf(name.sun_path + 1, 107, "%0106d", i);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0) die("socket", fd);
        need("bind", bind(fd, (void *)&name, sizeof name), 0);
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (i % 4 == 0) need("bind", bind(socket(AF_INET, SOCK_DGRAM, 0), (void *)&any, sizeof any), 0);
    }
    struct {
        struct nlmsghdr head;
        struct unix_diag_req r;
    } q = {{.nlmsg_len = sizeof q, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP}, {.sdiag_family = AF_UNIX, .udiag_states = -1, .udiag_show = -1}};
    for (int i = 0; i < 20; i++) {
        int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
        if (fd < 0) die("socket", fd);
        need("send", send(fd, &q, sizeof q, 0), sizeof q);
        static const char *const files[] = {"unix", "udp", "sockstat"};
        for (size_t n = 0; n < sizeof files / sizeof *files; n++) {
            char path[32];
            snprintf(path, sizeof path, "/proc/net/%s", files[n]);
            int file = open(path, O_RDONLY);
            if (file < 0) die(path, file);
            if (read(file, bytes, sizeof bytes) < 0 && errno != ENOMEM) die(path, -1);
            // It stays open every other time, with what it holds.
            if (i % 2) close(file);
        }
        if (i % 4) close(fd);
    }
    puts("listed");
    return 0;
}

// A long message (kernel.msgmax and kernel.msgmnb allow for it) is copied again and again while memory is used up: a copy fails for
// want of memory, or it is killed as for any other page.
static void copy_message(size_t size) {
    int queue = msgget(IPC_PRIVATE, 0600);
    struct {
        long kind;
        char text[1];
    } *message = mmap(NULL, size + sizeof(long), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (message == MAP_FAILED) die("mmap", -1);
    message->kind = 1;
    need("msgsnd", msgsnd(queue, message, size, IPC_NOWAIT), 0);
    for (;;) {
        char *more = mmap(NULL, 4 * sizeof bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) die("mmap", -1);
        memset(more, 1, 4 * sizeof bytes);
        need("madvise", madvise(message, size + sizeof(long), MADV_DONTNEED), 0);
        long got = msgrcv(queue, message, size, 0, MSG_COPY | IPC_NOWAIT);
        if (got != (long)size && errno != ENOMEM && errno != EFAULT) die("msgrcv", got);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "copies") == 0) copy_message((size_t)atoi(argv[2]) << 20);
    if (argc > 1 && strcmp(argv[1], "nothing") == 0) return 0;
    if (argc > 2 && strcmp(argv[1], "sockets") == 0) return list_sockets(atoi(argv[2]));
    size_t all = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (argc < 2 || strcmp(argv[1], kinds[i].name) != 0) continue;
        if (kinds[i].set_up) kinds[i].set_up();
        char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) die("mmap", -1);
        for (size_t at = 0; at + kinds[i].size <= all; at += kinds[i].size) kinds[i].fill(memory + at, kinds[i].size);
        return 0;
    }
    fprintf(stderr, "usage: hungry KIND [MB]\n");
    return 2;
}
