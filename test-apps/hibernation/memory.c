// Fills memory of every kind with patterns, in a tree of processes, and verifies every byte on request.
//
//   memory [--tcp PORT] [--udp PORT] [--mb N]
//
// Requests are lines on standard input or a TCP connection, or datagrams; each is answered with one line:
//   verify       every byte in every process: "ok BYTES" or "BAD process PID segment NAME …"
//   peek         a small part of it only (a working set): "ok BYTES"
//   part A B M   pages A/M to B/M of the private memory of the first process: "ok BYTES"
//   shared       what processes share (memory, files in memory), in every process: "ok BYTES"
//   change       writes new patterns to a third of the pages, in every process: "ok"
//   slow MS      sleeps in the middle of the request: "slept"
//   corrupt      flips one bit, so that the next verify must complain: "ok"
//   signals      how many SIGUSR1 have come: "N"
//   ping         "pong"
//   quit         ends everything
// At start it prints "ready" when all is filled.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 3, CHILDREN = 2 };

// What a page of a segment holds: chosen by its number, so that kinds of pages lie next to each other.
enum kind { UNTOUCHED, ZERO, SAME, PATTERN };

struct segment {
    const char *name;
    char *base;
    size_t pages, stride;  // stride: pages from one used page to the next
    uint64_t seed;
    int plain;             // every page holds a pattern
    int protection;        // to put back after looking at it
};

static struct segment segments[32];
static int segment_count;
static int thread_go[THREADS][2], thread_done[THREADS][2];
static int kept_pipe[2], kept_pair[2], kept_event, kept_file, kept_tmpfs;
static volatile sig_atomic_t signals_seen;
static size_t verified;
static char complaint[256];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static enum kind kind_of(const struct segment *s, size_t page) {
    if (s->plain) return PATTERN;
    switch (mix(s->seed * 31 + page) % 8) {
        case 0: return UNTOUCHED;
        case 1: return ZERO;
        case 2: return SAME;
        default: return PATTERN;
    }
}

static bool shared_with_others(const struct segment *s) {
    return !strcmp(s->name, "shared") || !strcmp(s->name, "file-shared") || !strcmp(s->name, "tmpfs") || !strncmp(s->name, "memfd", 5) || !strcmp(s->name, "shm");
}

// Which generation a page is in: "change" moves a third of the pages on. Each process has its generation; what they share has one
// that they share.
static uint64_t generation, *shared_generation;
static uint64_t page_seed(const struct segment *s, size_t page) {
    uint64_t g = page % 3 == 0 ? (shared_with_others(s) ? *shared_generation : generation) : 0;
    return mix(s->seed ^ (uint64_t)page << 20 ^ g << 50);
}

static void fill_page(const struct segment *s, size_t page) {
    uint64_t *p = (uint64_t *)(s->base + page * s->stride * PAGE), seed = page_seed(s, page);
    switch (kind_of(s, page)) {
        case UNTOUCHED: break;
        case ZERO: memset(p, 0, PAGE); break;
        case SAME: memset(p, (int)(seed & 0xff), PAGE); break;
        case PATTERN:
            for (int i = 0; i < WORDS; i++) p[i] = seed + (uint64_t)i * 0x0101010101010101;
    }
}

static bool check_page(const struct segment *s, size_t page) {
    const uint64_t *p = (const uint64_t *)(s->base + page * s->stride * PAGE);
    uint64_t seed = page_seed(s, page);
    enum kind kind = kind_of(s, page);
    for (int i = 0; i < WORDS; i++) {
        uint64_t expected = kind == PATTERN ? seed + (uint64_t)i * 0x0101010101010101
                            : kind == SAME  ? (seed & 0xff) * 0x0101010101010101
                                            : 0;
        if (p[i] != expected) {
            snprintf(complaint, sizeof complaint, "BAD process %d segment %s page %zu word %d is %llx, expected %llx", getpid(),
                     s->name, page, i, (unsigned long long)p[i], (unsigned long long)expected);
            return false;
        }
    }
    verified += PAGE;
    return true;
}

static struct segment *add(const char *name, char *base, size_t pages, size_t stride, int plain, int protection) {
    if (base == MAP_FAILED) die(name);
    struct segment *s = &segments[segment_count];
    *s = (struct segment){name, base, pages, stride, mix((uint64_t)segment_count + 1000), plain, protection};
    segment_count++;
    return s;
}

static void fill(const struct segment *s) {
    for (size_t i = 0; i < s->pages; i++) fill_page(s, i);
}

static char *anonymous(size_t bytes, int flags) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
}

static int temporary_file(size_t pages, const struct segment *like) {
    char path[] = "/tmp/quark-memory-XXXXXX";
    int fd = mkstemp(path);
    if (fd == -1) die(path);
    unlink(path);
    if (ftruncate(fd, (off_t)pages * PAGE) == -1) die("ftruncate");
    if (like) {
        // The file's contents are what the segment would hold.
        char page[PAGE];
        struct segment one = *like;
        for (size_t i = 0; i < pages; i++) {
            uint64_t seed = page_seed(&one, i);
            for (int w = 0; w < WORDS; w++) ((uint64_t *)page)[w] = seed + (uint64_t)w * 0x0101010101010101;
            if (pwrite(fd, page, PAGE, (off_t)i * PAGE) != PAGE) die("pwrite");
        }
    }
    return fd;
}

// A file in memory that is not mapped.
enum { TMPFS_PAGES = 150 };
static const struct segment tmpfs = {.name = "tmpfs", .seed = 4711, .plain = 1, .stride = 1};

static void fill_tmpfs(size_t step) {
    static uint64_t page[WORDS];
    struct segment one = tmpfs;
    for (size_t i = 0; i < TMPFS_PAGES; i += step) {
        one.base = (char *)page - i * PAGE;
        fill_page(&one, i);
        if (pwrite(kept_tmpfs, page, PAGE, (off_t)i * PAGE) != PAGE) die("write to /dev/shm");
    }
}

static bool check_tmpfs(void) {
    static uint64_t page[WORDS];
    struct segment one = tmpfs;
    for (size_t i = 0; i < TMPFS_PAGES; i++) {
        one.base = (char *)page - i * PAGE;
        if (pread(kept_tmpfs, page, PAGE, (off_t)i * PAGE) != PAGE) die("read from /dev/shm");
        if (!check_page(&one, i)) return false;
    }
    return true;
}

static void make_segments(size_t mb) {
    shared_generation = (uint64_t *)anonymous(PAGE, MAP_SHARED);
    if (shared_generation == MAP_FAILED) die("mmap");
    size_t pages = mb * 256;
    fill(add("private", anonymous(pages * PAGE, MAP_PRIVATE), pages, 1, 0, 0));
    fill(add("shared", anonymous(512 * PAGE, MAP_SHARED), 512, 1, 1, 0));
    fill(add("sparse", anonymous(4ul << 30, MAP_PRIVATE | MAP_NORESERVE), 64, (64ul << 20) / PAGE, 1, 0));
    char *heap = malloc(300 * PAGE);  // above malloc's threshold: its own mapping
    if (!heap) die("malloc");
    fill(add("heap", (char *)(((uintptr_t)heap + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), 299, 1, 0, 0));
    char *brk = sbrk(200 * PAGE);
    fill(add("brk", (char *)(((uintptr_t)brk + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), 199, 1, 0, 0));

    // A file mapped privately (a third of it written over) and one mapped shared.
    struct segment *s = &segments[segment_count];
    struct segment like = {.name = "file-private", .seed = mix((uint64_t)segment_count + 1000), .plain = 1};
    int fd = temporary_file(300, &like);
    s = add("file-private", mmap(NULL, 300 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0), 300, 1, 1, 0);
    for (size_t i = 0; i < 300; i += 3) fill_page(s, i);
    fd = temporary_file(200, NULL);
    fill(add("file-shared", mmap(NULL, 200 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 200, 1, 1, 0));

    fd = memfd_create("pattern", 0);
    if (fd == -1 || ftruncate(fd, 100 * PAGE) == -1) die("memfd");
    fill(add("memfd", mmap(NULL, 100 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 100, 1, 1, 0));
    s = add("memfd-again", mmap(NULL, 100 * PAGE, PROT_READ, MAP_SHARED, fd, 0), 100, 1, 1, 0);
    s->seed = segments[segment_count - 2].seed;
    char path[] = "/dev/shm/quark-memory-XXXXXX";
    kept_tmpfs = mkstemp(path);
    if (kept_tmpfs == -1) die(path);
    unlink(path);
    fill_tmpfs(1);

    // Removed at once: it lives as long as it is attached.
    int id = shmget(IPC_PRIVATE, 100 * PAGE, 0600);
    if (id == -1) die("shmget");
    char *attached = shmat(id, NULL, 0);
    if (attached == (char *)-1 || shmctl(id, IPC_RMID, NULL) == -1) die("shmat");
    fill(add("shm", attached, 100, 1, 1, 0));

    s = add("read-only", anonymous(64 * PAGE, MAP_PRIVATE), 64, 1, 0, PROT_READ);
    fill(s);
    mprotect(s->base, 64 * PAGE, PROT_READ);
    s = add("no-access", anonymous(64 * PAGE, MAP_PRIVATE), 64, 1, 0, PROT_NONE);
    fill(s);
    mprotect(s->base, 64 * PAGE, PROT_NONE);
    s = add("holes", anonymous(128 * PAGE, MAP_PRIVATE), 64, 2, 1, 0);
    fill(s);
    for (size_t i = 1; i < 128; i += 2) munmap(s->base + i * PAGE, PAGE);

    // Bytes that lie in the kernel.
    static unsigned char block[16384];
    for (size_t i = 0; i < sizeof block; i++) block[i] = (unsigned char)(i * 7);
    if (pipe(kept_pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, kept_pair)) die("pipe");
    if (write(kept_pipe[1], block, sizeof block) != sizeof block) die("pipe write");
    if (write(kept_pair[0], block, sizeof block) != sizeof block) die("socket write");
    kept_event = eventfd(4711, 0);
    kept_file = temporary_file(1, NULL);
    if (lseek(kept_file, 1234, SEEK_SET) != 1234) die("lseek");
}

static bool check_kernel_bytes(void) {
    static unsigned char block[16384];
    int ends[2][2] = {{kept_pipe[0], kept_pipe[1]}, {kept_pair[1], kept_pair[0]}};
    for (int e = 0; e < 2; e++) {
        if (read(ends[e][0], block, sizeof block) != sizeof block) goto bad;
        for (size_t i = 0; i < sizeof block; i++)
            if (block[i] != (unsigned char)(i * 7)) goto bad;
        if (write(ends[e][1], block, sizeof block) != sizeof block) goto bad;
        verified += sizeof block;
    }
    uint64_t value;
    if (read(kept_event, &value, 8) != 8 || value != 4711 || write(kept_event, &value, 8) != 8) goto bad;
    if (lseek(kept_file, 0, SEEK_CUR) != 1234) goto bad;
    return true;
bad:
    snprintf(complaint, sizeof complaint, "BAD process %d: bytes in a pipe, socket, eventfd or a file's offset", getpid());
    return false;
}

// Threads keep a pattern on their own stacks.
static void *thread_main(void *argument) {
    long me = (long)argument;
    volatile uint64_t words[24 * 1024];  // 192 KiB
    for (size_t i = 0; i < sizeof words / 8; i++) words[i] = mix((uint64_t)me << 32 | i);
    char c;
    while (read(thread_go[me][0], &c, 1) == 1) {
        c = 'y';
        for (size_t i = 0; i < sizeof words / 8; i++)
            if (words[i] != mix((uint64_t)me << 32 | i)) c = 'n';
        if (write(thread_done[me][1], &c, 1) != 1) break;
    }
    return NULL;
}

static void start_threads(void) {
    for (long i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pipe(thread_go[i]) || pipe(thread_done[i])) die("pipe");
        if (pthread_create(&t, NULL, thread_main, (void *)i) != 0) die("pthread_create");
    }
}

static bool check_threads(void) {
    for (int i = 0; i < THREADS; i++) {
        char c = 'v';
        if (write(thread_go[i][1], &c, 1) != 1 || read(thread_done[i][0], &c, 1) != 1 || c != 'y') {
            snprintf(complaint, sizeof complaint, "BAD process %d: stack of thread %d", getpid(), i);
            return false;
        }
        verified += 192 * 1024;
    }
    return true;
}

static struct child {
    int request, answer;
} children[CHILDREN];
static int child_count;

// Asks each child; false with its complaint when one has any.
static bool ask_children(char request) {
    for (int i = 0; i < child_count; i++) {
        char b[256];
        if (write(children[i].request, &request, 1) != 1) goto dead;
        size_t used = 0;
        do {
            ssize_t n = read(children[i].answer, b + used, sizeof b - 1 - used);
            if (n == -1 && errno == EINTR) continue;
            if (n <= 0) goto dead;
            used += (size_t)n;
        } while (b[used - 1] != '\n' && used < sizeof b - 1);
        b[used - 1] = 0;
        if (strncmp(b, "ok", 2) != 0) {
            memcpy(complaint, b, sizeof b);
            return false;
        }
        verified += strtoul(b + 2, NULL, 10);
    }
    return true;
dead:
    snprintf(complaint, sizeof complaint, "BAD process %d: a child is gone", getpid());
    return false;
}

static bool verify_shared(void) {
    verified = 0;
    for (int i = 0; i < segment_count; i++)
        for (size_t p = 0; shared_with_others(&segments[i]) && p < segments[i].pages; p++)
            if (!check_page(&segments[i], p)) return false;
    return check_tmpfs() && ask_children('s');
}

static bool verify(bool top, bool with_threads) {
    verified = 0;
    for (int i = 0; i < segment_count; i++) {
        struct segment *s = &segments[i];
        if (s->protection == PROT_NONE && !strcmp(s->name, "no-access")) mprotect(s->base, s->pages * PAGE, PROT_READ);
        for (size_t p = 0; p < s->pages; p++)
            if (!check_page(s, p)) return false;
        if (s->protection == PROT_NONE && !strcmp(s->name, "no-access")) mprotect(s->base, s->pages * PAGE, PROT_NONE);
    }
    if (!check_tmpfs()) return false;
    if (top && !check_kernel_bytes()) return false;
    if (with_threads && !check_threads()) return false;
    return ask_children('v');
}

static bool change(bool top) {
    generation++;
    if (top) {
        ++*shared_generation;
        fill_tmpfs(3);
    }
    for (int i = 0; i < segment_count; i++) {
        struct segment *s = &segments[i];
        if (!strcmp(s->name, "memfd-again") || (!top && shared_with_others(s))) continue;
        if (s->protection || !strcmp(s->name, "read-only") || !strcmp(s->name, "no-access"))
            mprotect(s->base, s->pages * PAGE, PROT_READ | PROT_WRITE);
        for (size_t p = 0; p < s->pages; p += 3) fill_page(s, p);
        if (!strcmp(s->name, "read-only") || !strcmp(s->name, "no-access")) mprotect(s->base, s->pages * PAGE, s->protection);
    }
    return ask_children('c');
}

static bool peek(void) {
    verified = 0;
    const struct segment *s = &segments[0];
    for (size_t p = 0; p < s->pages; p += 16)
        if (!check_page(s, p)) return false;
    return true;
}

// Part `from` to `to` of `whole` of the private memory.
static bool verify_part(size_t from, size_t to, size_t whole) {
    verified = 0;
    const struct segment *s = &segments[0];
    for (size_t p = s->pages * from / whole; p < s->pages * to / whole; p++)
        if (!check_page(s, p)) return false;
    return true;
}

// A child: its copy of the memory, a part of it written over; it has a child of its own while depth is left.
static void make_child(int depth) {
    int request[2], answer[2];
    if (pipe(request) || pipe(answer)) die("pipe");
    pid_t pid = fork();
    if (pid == -1) die("fork");
    if (pid > 0) {
        close(request[0]), close(answer[1]);
        children[child_count++] = (struct child){request[1], answer[0]};
        char ready;
        if (read(answer[0], &ready, 1) != 1) die("child");
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(request[1]), close(answer[0]);
    child_count = 0;
    generation += 100;
    for (int i = 0; i < segment_count; i++) {
        struct segment *s = &segments[i];
        if (shared_with_others(s) || s->protection || !strcmp(s->name, "no-access")) continue;
        for (size_t p = 0; p < s->pages; p += 3) fill_page(s, p);
    }
    // The protected ones keep the old generation: give them the new one as well.
    for (int i = 0; i < segment_count; i++) {
        struct segment *s = &segments[i];
        if (strcmp(s->name, "no-access") != 0 && strcmp(s->name, "read-only") != 0) continue;
        mprotect(s->base, s->pages * PAGE, PROT_READ | PROT_WRITE);
        for (size_t p = 0; p < s->pages; p += 3) fill_page(s, p);
        mprotect(s->base, s->pages * PAGE, s->protection);
    }
    if (depth > 0) make_child(depth - 1);
    char c = 'r';
    if (write(answer[1], &c, 1) != 1) _exit(1);
    while (read(request[0], &c, 1) == 1) {
        char b[300];
        bool good = c == 'v' ? verify(false, false) : c == 's' ? verify_shared() : change(false);
        int n = good ? snprintf(b, sizeof b, "ok %zu\n", verified) : snprintf(b, sizeof b, "%s\n", complaint);
        if (write(answer[1], b, (size_t)n) != n) break;
    }
    _exit(0);
}

static int answer_to(char *line, char *out, size_t size) {
    line[strcspn(line, "\r\n")] = 0;
    bool good = true;
    size_t from, to, whole;
    if (!strcmp(line, "ping")) return snprintf(out, size, "pong\n");
    if (!strcmp(line, "signals")) return snprintf(out, size, "%d\n", (int)signals_seen);
    if (!strncmp(line, "slow ", 5)) {
        long ms = atol(line + 5);
        struct timespec t = {ms / 1000, ms % 1000 * 1000000};
        while (nanosleep(&t, &t) == -1 && errno == EINTR) {
        }
        return snprintf(out, size, "slept\n");
    }
    if (!strcmp(line, "corrupt")) {
        segments[0].base[segments[0].pages / 2 * PAGE + 77] ^= 4;
        return snprintf(out, size, "ok\n");
    }
    if (!strcmp(line, "quit")) return -1;
    if (!strcmp(line, "verify")) good = verify(true, true);
    else if (!strcmp(line, "peek")) good = peek();
    else if (!strcmp(line, "shared")) good = verify_shared();
    else if (sscanf(line, "part %zu %zu %zu", &from, &to, &whole) == 3 && from <= to && to <= whole && whole)
        good = verify_part(from, to, whole);
    else if (!strcmp(line, "change")) {
        good = change(true);
        verified = 0;
    } else return snprintf(out, size, "BAD request %s\n", line);
    return good ? snprintf(out, size, "ok %zu\n", verified) : snprintf(out, size, "%s\n", complaint);
}

static void on_user_signal(int signo) { signals_seen++; }

// Serves requests on descriptors until told to quit.
static void serve(int tcp, int udp) {
    struct pollfd fds[20] = {{0, POLLIN, 0}, {tcp, POLLIN, 0}, {udp, POLLIN, 0}};
    static char lines[20][256];
    size_t have[20] = {0};
    int count = 3;
    char out[300];
    for (;;) {
        if (poll(fds, (nfds_t)count, -1) == -1) {
            if (errno == EINTR) continue;
            die("poll");
        }
        if (tcp >= 0 && fds[1].revents & POLLIN) {
            int c = accept(tcp, NULL, NULL), one = 1;
            if (c >= 0 && count == 20) close(c);
            else if (c >= 0) {
                setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                have[count] = 0;
                fds[count++] = (struct pollfd){c, POLLIN, 0};
            }
        }
        if (udp >= 0 && fds[2].revents & POLLIN) {
            struct sockaddr_in from;
            socklen_t length = sizeof from;
            ssize_t n = recvfrom(udp, lines[2], sizeof lines[2] - 1, 0, (struct sockaddr *)&from, &length);
            if (n >= 0) {
                lines[2][n] = 0;
                int size = answer_to(lines[2], out, sizeof out);
                if (size < 0) exit(0);
                sendto(udp, out, (size_t)size, 0, (struct sockaddr *)&from, length);
            }
        }
        for (int i = 0; i < count; i++) {
            if (i == 1 || i == 2 || !(fds[i].revents & (POLLIN | POLLHUP | POLLERR))) continue;
            ssize_t n = read(fds[i].fd, lines[i] + have[i], sizeof lines[i] - 1 - have[i]);
            if (n == -1 && (errno == EINTR || errno == EAGAIN)) continue;
            if (n <= 0) {
                if (i == 0) fds[0].fd = -1;
                else {
                    close(fds[i].fd);
                    count--;
                    fds[i] = fds[count], have[i] = have[count];
                    memcpy(lines[i], lines[count], sizeof lines[i]);
                    i--;
                }
                continue;
            }
            have[i] += (size_t)n;
            char *end;
            while ((end = memchr(lines[i], '\n', have[i]))) {
                char line[256];
                size_t length = (size_t)(end - lines[i]) + 1;
                memcpy(line, lines[i], length);
                line[length - 1] = 0;
                memmove(lines[i], end + 1, have[i] - length);
                have[i] -= length;
                int size = answer_to(line, out, sizeof out);
                if (size < 0) exit(0);
                if (write(i == 0 ? 1 : fds[i].fd, out, (size_t)size) != size) break;
            }
            if (have[i] == sizeof lines[i] - 1) have[i] = 0;
        }
    }
}

static int bound(int type, int port) {
    int fd = socket(AF_INET, type, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd == -1 || bind(fd, (struct sockaddr *)&a, sizeof a) == -1) die("bind");
    if (type == SOCK_STREAM && listen(fd, 16) == -1) die("listen");
    return fd;
}

int main(int argc, char **argv) {
    int tcp = -1, udp = -1;
    size_t mb = 16;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--tcp")) tcp = bound(SOCK_STREAM, atoi(argv[i + 1]));
        else if (!strcmp(argv[i], "--udp")) udp = bound(SOCK_DGRAM, atoi(argv[i + 1]));
        else if (!strcmp(argv[i], "--mb")) mb = strtoul(argv[i + 1], NULL, 10);
    }
    struct sigaction a = {.sa_handler = on_user_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    // The main stack counts too.
    volatile uint64_t stack[32 * 1024];
    for (size_t i = 0; i < sizeof stack / 8; i++) stack[i] = mix(i);
    make_segments(mb);
    for (int i = 0; i < CHILDREN; i++) make_child(i);  // the second one has a child of its own
    start_threads();
    if (!verify(true, true)) {
        puts(complaint);
        return 1;
    }
    puts("ready");
    fflush(stdout);
    serve(tcp, udp);
    for (size_t i = 0; i < sizeof stack / 8; i++)
        if (stack[i] != mix(i)) return 3;
    return 0;
}
