// Random system calls with hostile arguments: every number of the table, none left out. Usage, as the first process of a container:
//   fuzz SEED RING
// RING is a file to which the last calls of each thread are written, for whoever looks after the sandbox (run.py).
//
// Three levels keep it going. Pid 1 is an init that no signal from inside reaches: it only continues and replaces the supervisor, which
// starts workers, and after some seconds kills all there is and begins anew. A worker and its threads make the calls; what ends or
// damages it (exit, execve, munmap, a signal to everybody) is as good a call as any other.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 3, THREADS = 3, ROUND_MS = 3000, RING_ENTRIES = 64, SLOTS = 64, PAGE = 4096, ARENA = 64 * PAGE, FDS = 200 };

struct entry {
    uint64_t nr, args[6], result;
};
// One thread's last calls; the entry being made has the result PENDING.
struct slot {
    uint64_t pid, tid, seed, count;
    struct entry entries[RING_ENTRIES];
};
#define PENDING 0x646e6570ull

// Slots, and behind them one whose entries count how often each number was called.
static struct slot *ring;
static volatile uint64_t *beat;  // shared between init and supervisor

static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static __thread uint64_t state;
static uint64_t any(void) { return mix(&state); }
static uint64_t below(uint64_t n) { return any() % n; }
static bool one_in(uint64_t n) { return below(n) == 0; }

// What each argument of a call is, for those where it helps to get past the first check:
//   f descriptor  p buffer  s path or string  l length  g flags  n small number  P process  m mode  o offset  a address to map at
//   t time  v iovec  S socket address  k signal  h message  F pair of descriptors  x anything
static const char *const kinds[512] = {
    [0] = "fpl", [1] = "fpl", [2] = "sgm", [3] = "f", [4] = "sp", [5] = "fp", [6] = "sp", [7] = "pnn", [8] = "fon", [9] = "algGfo",
    [10] = "alg", [11] = "al", [12] = "a", [13] = "kppn", [14] = "nppn", [15] = "", [16] = "fip", [17] = "fplo", [18] = "fplo",
    [19] = "fvn", [20] = "fvn", [21] = "sm", [22] = "p", [23] = "npppt", [25] = "allga", [26] = "alg", [27] = "alp", [28] = "aln",
    [29] = "nlg", [30] = "nag", [31] = "nnp", [32] = "f", [33] = "ff", [35] = "tp", [36] = "np", [37] = "n", [38] = "npp",
    [40] = "ffpl", [41] = "nnn", [42] = "fSn", [43] = "fSp", [44] = "fplgSn", [45] = "fplgSp", [46] = "fhg", [47] = "fhg",
    [48] = "fn", [49] = "fSn", [50] = "fn", [51] = "fpp", [52] = "fpp", [53] = "nnnp", [54] = "fnnpn", [55] = "fnnpp",
    [56] = "gpppp", [59] = "spp", [60] = "n", [61] = "Ppgp", [62] = "Pk", [64] = "nng", [65] = "npn", [66] = "nnnp", [67] = "a",
    [68] = "ng", [69] = "npng", [70] = "npnng", [71] = "nnp", [72] = "fnx", [73] = "fn", [74] = "f", [75] = "f", [76] = "so",
    [77] = "fo", [78] = "fpl", [79] = "pl", [80] = "s", [81] = "f", [82] = "ss", [83] = "sm", [84] = "s", [85] = "sm", [86] = "ss",
    [87] = "s", [88] = "ss", [89] = "spl", [90] = "sm", [91] = "fm", [92] = "snn", [93] = "fnn", [94] = "snn", [97] = "np",
    [98] = "np", [105] = "n", [109] = "PP", [113] = "nn", [115] = "np", [116] = "np", [117] = "nnn", [121] = "P", [125] = "pp",
    [126] = "pp", [128] = "pptn", [129] = "Pkp", [130] = "pn", [131] = "pp", [132] = "sp", [133] = "smx", [137] = "sp", [138] = "fp",
    [140] = "nP", [141] = "nPn", [142] = "Pp", [144] = "Pnp", [149] = "al", [150] = "al", [151] = "g", [157] = "nxxxx",
    [158] = "nx", [160] = "np", [161] = "s", [165] = "sssgs", [166] = "sg", [170] = "sl", [187] = "fol", [188] = "sspln",
    [190] = "fspln", [191] = "sspl", [193] = "fspl", [194] = "spl", [196] = "fpl", [197] = "ss", [199] = "fs", [200] = "Pk",
    [202] = "pnnppn", [203] = "Plp", [204] = "Plp", [213] = "n", [217] = "fpl", [220] = "npnt", [221] = "folN", [222] = "npp",
    [223] = "ngpp", [224] = "np", [226] = "n", [227] = "np", [228] = "np", [230] = "ngtp", [231] = "n", [232] = "fpnn",
    [233] = "fnfp", [234] = "PPk", [235] = "sp", [247] = "nPpgp", [251] = "nPn", [254] = "fsg", [255] = "fn", [257] = "fsgm",
    [258] = "fsm", [259] = "fsmx", [260] = "fsnng", [261] = "fsp", [262] = "fspg", [263] = "fsg", [264] = "fsfs", [265] = "fsfsg",
    [266] = "sfs", [267] = "fspl", [268] = "fsm", [269] = "fsm", [270] = "npppt", [271] = "pntpn", [272] = "g", [273] = "pn",
    [274] = "Ppp", [275] = "fpfplg", [276] = "fflg", [277] = "folg", [278] = "fvng", [280] = "fspg", [281] = "fpnnpn",
    [282] = "fpn", [283] = "ng", [285] = "fgol", [286] = "fgpp", [288] = "fSpg", [289] = "fpng", [291] = "g", [292] = "ffg",
    [293] = "pg", [294] = "g", [295] = "fvno", [296] = "fvno", [297] = "PPkp", [299] = "fhngt", [302] = "Pnpp", [303] = "fsppg",
    [306] = "f", [307] = "fhng", [308] = "fg", [310] = "Pvnvng", [311] = "Pvnvng", [314] = "Ppg", [316] = "fsfsg", [318] = "plg",
    [319] = "sg", [322] = "fsppg", [324] = "ngn", [325] = "alg", [326] = "fpfplg", [327] = "fvnong", [328] = "fvnong",
    [332] = "fsggp", [334] = "pngx", [424] = "fkpg", [434] = "Pg", [435] = "pn", [436] = "ffg", [437] = "fspn", [438] = "ffg",
    [439] = "fsmg", [441] = "fpntpn", [449] = "pngtn", [452] = "fsmg",
};

static char *arena;        // PROT_READ | PROT_WRITE, then PROT_NONE
static char *read_only, *shared;
static int fds[FDS], fd_count;

static uint64_t address(void) {
    switch (below(24)) {
        case 0: return 0;
        case 1: return below(PAGE);
        case 2: return (uint64_t)arena + ARENA - below(64);                       // runs into nothing
        case 3: return (uint64_t)arena + ARENA;
        case 4: return (uint64_t)read_only + below(PAGE);
        case 5: return (uint64_t)shared + below(4 * PAGE);
        case 6: return 0x7ee000000000 + below(1 << 20);                           // the stub
        case 7: return 0xffff800000000000 | any() >> 20;                          // the upper half
        case 8: return -below(PAGE);
        case 9: return 0x100000000000 + below(1ull << 32);                        // where the sandbox has guest memory
        case 10: return (uint64_t)&state & ~7ull;
        case 11: return (uint64_t)__builtin_frame_address(0) - below(1 << 24);
        case 12: return (uint64_t)address & ~0xfffull;
        case 13: return any();
        default: return (uint64_t)arena + (below(ARENA - PAGE) & ~(one_in(4) ? 0ull : 7ull));
    }
}

static uint64_t number(void) {
    switch (below(12)) {
        case 0: return any();
        case 1: return -below(8);
        case 2: return 1ull << below(64);
        case 3: return (1ull << below(64)) - 1;
        case 4: return (uint32_t)any();
        case 5: return below(1 << 16);
        default: return below(40);
    }
}

static uint64_t length(void) {
    switch (below(12)) {
        case 0: return any();
        case 1: return -below(PAGE);
        case 2: return 1ull << below(48);
        case 3: return 0;
        case 4: return below(1 << 24);
        default: return below(3 * PAGE);
    }
}

static uint64_t descriptor(void) {
    switch (below(16)) {
        case 0: return any();
        case 1: return -100;  // AT_FDCWD
        case 2: return -1;
        case 3: return below(1024);
        default: return fd_count ? fds[below(fd_count)] : 0;
    }
}

static const char *const words[] = {
    ".", "..", "/", "", "a", "b", "a/b", "d", "d/e", "d/../a", "./d/./e", "link", "loop", "loop/x", "fifo", "/tmp", "/tmp/x", "/dev/null",
    "/dev/zero", "/dev/full", "/dev/ptmx", "/dev/tty", "/dev/pts/0", "/dev/shm/s", "/dev/fd/3", "/proc/self/mem", "/proc/self/maps",
    "/proc/self/smaps", "/proc/self/fd/3", "/proc/self/fdinfo/4", "/proc/self/exe", "/proc/self/cwd", "/proc/self/root/tmp",
    "/proc/self/mountinfo", "/proc/self/task", "/proc/self/environ", "/proc/self/oom_score_adj", "/proc/self/comm", "/proc/1/status",
    "/proc/2/mem", "/proc/2/maps", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysvipc/shm",
    "/sys", "/sys/class/net", "/sys/fs/cgroup", "/bin/true", "/bin/busybox", "tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup2",
    "size=1m", "mode=777,size=50%", "user.x", "security.capability", "trusted.y", "system.posix_acl_access", "lo", "#!/bin/sh",
};

static uint64_t string(void) {
    char *at;
    switch (below(16)) {
        case 0: return address();
        case 1:  // as long as may be, or a byte more
            at = arena + below(8) * PAGE;
            memset(at, 'n', PAGE);
            at[255 + below(3)] = one_in(2) ? '/' : 0;
            at[PAGE - below(2)] = 0;
            return (uint64_t)at;
        case 2:  // without an end
            at = arena + ARENA - 1 - below(300);
            memset(at, 'u', arena + ARENA - at);
            return (uint64_t)at;
        case 3:  // random bytes
            at = arena + below(ARENA - 256);
            for (int i = 0; i < 16; i++) at[i] = (char)any();
            at[16] = 0;
            return (uint64_t)at;
        default:
            at = arena + below(ARENA - 256);
            strcpy(at, words[below(sizeof words / sizeof *words)]);
            if (one_in(6)) strcat(at, "/");
            if (one_in(6)) strcat(at, words[below(12)]);
            return (uint64_t)at;
    }
}

static pid_t own_pids[4];

static uint64_t process(void) {
    switch (below(16)) {
        case 0: return 0;
        case 1: return -1;
        case 2: return 1;
        case 3: return any();
        case 4: return -(int64_t)own_pids[0];
        case 5: return 2 + below(60);
        default: return own_pids[below(4)] + below(3);
    }
}

// A structure of unknown kind: small numbers, descriptors, addresses and noise.
static uint64_t structure(void) {
    if (one_in(5)) return address();
    char *at = arena + (below(ARENA - 1024) & ~7ull);
    int n = 1 + below(16);
    for (int i = 0; i < n; i++) {
        uint64_t value;
        switch (below(6)) {
            case 0: value = descriptor(); break;
            case 1: value = address(); break;
            case 2: value = any(); break;
            case 3: value = below(8) | below(8) << 32; break;
            case 4: value = length(); break;
            default: value = 0;
        }
        memcpy(at + 8 * i, &value, 8);
    }
    return (uint64_t)at;
}

static uint64_t iovec(void) {
    if (one_in(8)) return address();
    struct iovec *v = (struct iovec *)(arena + (below(ARENA - 1024) & ~7ull));
    for (int i = 0; i < 8; i++) v[i] = (struct iovec){(void *)address(), length()};
    return (uint64_t)v;
}

static uint64_t socket_address(void) {
    if (one_in(8)) return address();
    char *at = arena + (below(ARENA - 1024) & ~7ull);
    static const uint16_t families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_UNSPEC, 77};
    memcpy(at, &families[below(6)], 2);
    for (int i = 2; i < 28; i++) at[i] = one_in(3) ? (char)any() : 0;
    if (one_in(2)) memcpy(at + 4, (uint8_t[]){127, 0, 0, 1}, 4);
    return (uint64_t)at;
}

static uint64_t message(void) {
    if (one_in(8)) return address();
    struct msghdr *m = (struct msghdr *)(arena + (below(ARENA - 2048) & ~7ull));
    uint64_t control = (uint64_t)arena + (below(ARENA - 1024) & ~7ull);
    struct cmsghdr *c = (struct cmsghdr *)control;
    *c = (struct cmsghdr){.cmsg_len = one_in(4) ? length() : 24, .cmsg_level = SOL_SOCKET, .cmsg_type = (int)below(4)};
    ((int *)(c + 1))[0] = (int)descriptor();
    *m = (struct msghdr){.msg_name = (void *)(one_in(2) ? 0 : socket_address()), .msg_namelen = below(40), .msg_iov = (void *)iovec(),
                         .msg_iovlen = one_in(8) ? length() : below(8), .msg_control = (void *)(one_in(2) ? 0 : control),
                         .msg_controllen = one_in(4) ? length() : 24, .msg_flags = 0};
    return (uint64_t)m;
}

static uint64_t time_value(void) {
    if (one_in(6)) return one_in(2) ? 0 : address();
    struct timespec *t = (struct timespec *)(arena + (below(ARENA - 1024) & ~7ull));
    *t = (struct timespec){one_in(8) ? (time_t)any() : 0, one_in(8) ? (long)any() : (long)below(20000000)};
    return (uint64_t)t;
}

static uint64_t argument(char kind) {
    if (one_in(12)) kind = 'x';
    switch (kind) {
        case 'f': return descriptor();
        case 'p': return structure();
        case 's': return string();
        case 'l': return length();
        case 'g': return one_in(3) ? 0 : one_in(2) ? 1ull << below(32) | 1ull << below(32) : number();
        case 'G': return one_in(2) ? 0x22 : 1ull << below(20) | (one_in(2) ? 1 : 2);
        case 'n': return number();
        case 'i': return one_in(2) ? 0x5400 + below(0x60) : number();
        case 'P': return process();
        case 'm': return any() & 07777;
        case 'o': return one_in(3) ? any() : below(1 << 20);
        case 'a': return one_in(3) ? 0 : address() & (one_in(5) ? -1ull : ~0xfffull);
        case 't': return time_value();
        case 'v': return iovec();
        case 'S': return socket_address();
        case 'k': return below(70);
        case 'h': return message();
        default: return one_in(2) ? number() : one_in(2) ? address() : any();
    }
}

static bool ends_a_worker(uint64_t nr) {
    switch (nr) {
        case 15: case 59: case 60: case 62: case 129: case 200: case 231: case 234: case 297: case 322: case 424: return true;
        default: return false;
    }
}

static uint64_t choose(void) {
    for (;;) {
        uint64_t nr = one_in(200) ? any() : one_in(100) ? 0x40000000 | below(550) : below(470);
        // As likely that a worker lives for thousands of calls, but not left out.
        if (!ends_a_worker(nr) || one_in(40)) return nr;
    }
}

// Interrupts this thread again and again, so that nothing it waits for keeps it long.
static void start_timer(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    event._sigev_un._tid = gettid();
    struct itimerspec often = {{0, 2000000}, {0, 2000000}};
    int timer;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0) syscall(SYS_timer_settime, timer, 0, &often, NULL);
}

static struct slot *my_slot(void) {
    uint64_t index = __atomic_fetch_add(&ring[SLOTS].count, 1, __ATOMIC_RELAXED) % SLOTS;
    struct slot *slot = &ring[index];
    memset(slot, 0, sizeof *slot);
    slot->pid = getpid();
    slot->tid = gettid();
    slot->seed = state;
    return slot;
}

static void calls(struct slot *slot, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t nr = choose(), args[6];
        const char *kind = nr < 512 && kinds[nr] ? kinds[nr] : "";
        size_t known = strlen(kind);
        for (size_t a = 0; a < 6; a++) args[a] = argument(a < known ? kind[a] : nr < 512 && kinds[nr] ? 'x' : "fpslgnPx"[below(8)]);
        // Threads that nothing runs on would only crash at once: clone gives a stack, or a process.
        if (nr == 56 && !one_in(10)) args[0] = (args[0] & 0x7e000000) | SIGCHLD, args[1] = 0;
        uint64_t nothing = 0;
        if (one_in(3)) syscall(SYS_rt_sigprocmask, SIG_SETMASK, &nothing, NULL, 8);
        struct entry *entry = &slot->entries[slot->count % RING_ENTRIES];
        *entry = (struct entry){nr, {args[0], args[1], args[2], args[3], args[4], args[5]}, PENDING};
        __atomic_store_n(&slot->count, slot->count + 1, __ATOMIC_RELEASE);
        if (nr < 512) __atomic_fetch_add((uint64_t *)ring[SLOTS].entries + nr, 1, __ATOMIC_RELAXED);
        long result = syscall((long)nr, args[0], args[1], args[2], args[3], args[4], args[5]);
        if (gettid() != (pid_t)slot->tid) {
            // A child: some go on for a while, most do not.
            if (!one_in(4)) syscall(SYS_exit_group, 0);
            state ^= (uint64_t)gettid() * 0x9e3779b97f4a7c15ull;
            slot = my_slot();
            start_timer();
            count = i + 100;
        } else {
            entry->result = result == -1 ? -(uint64_t)errno : (uint64_t)result;
        }
        // Descriptors that came back are used from then on.
        if (result > 2 && result < 1024 && fd_count < FDS && one_in(3)) fds[fd_count++] = (int)result;
        if (fd_count > FDS - 20) fd_count = FDS / 2;
    }
}

static void *thread_main(void *seed) {
    state = (uint64_t)seed;
    start_timer();
    calls(my_slot(), 1 << 20);
    return NULL;
}

static void keep(int fd) {
    if (fd >= 0 && fd_count < FDS) fds[fd_count++] = fd;
}

static void on_signal(int signo) {}

static void prepare(int index) {
    char name[64];
    snprintf(name, sizeof name, "/tmp/w%d", index);
    mkdir(name, 0777);
    if (chdir(name) == -1 && chdir("/tmp") == -1) chdir("/");
    arena = mmap(NULL, ARENA + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(arena + ARENA, PAGE, PROT_NONE);
    read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mkdir("d", 0777);
    symlink("d/e", "link");
    symlink("loop", "loop");
    mkfifo("fifo", 0666);
    keep(open("a", O_RDWR | O_CREAT, 0666));
    keep(open("d", O_RDONLY | O_DIRECTORY));
    keep(open("/", O_PATH));
    keep(open("fifo", O_RDWR | O_NONBLOCK));
    static const char *const files[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/ptmx", "/proc/self/mem",
                                        "/proc/self/maps", "/proc", "/sys", "/proc/self/fd", "/bin/busybox"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_RDWR | O_NONBLOCK);
        keep(fd >= 0 ? fd : open(files[i], O_RDONLY | O_NONBLOCK));
    }
    int memory = memfd_create("m", MFD_ALLOW_SEALING);
    keep(memory);
    ftruncate(memory, 4 * PAGE);
    shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    int two[2];
    if (pipe(two) == 0) keep(two[0]), keep(two[1]);
    for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET; type++)
        if (socketpair(AF_UNIX, type, 0, two) == 0) keep(two[0]), keep(two[1]);
    keep(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    keep(socket(AF_INET, SOCK_DGRAM, 0));
    keep(socket(AF_INET6, SOCK_STREAM, 0));
    keep(socket(AF_UNIX, SOCK_STREAM, 0));
    keep(socket(AF_NETLINK, SOCK_RAW, 0));
    keep((int)syscall(SYS_eventfd2, 3, 0));
    keep((int)syscall(SYS_timerfd_create, 1, 0));
    keep((int)syscall(SYS_epoll_create1, 0));
    keep((int)syscall(SYS_inotify_init1, 0));
    keep((int)syscall(SYS_pidfd_open, getpid(), 0));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    keep((int)syscall(SYS_signalfd4, -1, &set, 8, 0));
}

static void worker(int index, uint64_t seed) {
    state = seed;
    for (int signo = 1; signo < 32; signo++) {
        struct sigaction action = {.sa_handler = on_signal};
        if (signo != SIGSEGV && signo != SIGBUS && signo != SIGILL && signo != SIGFPE) sigaction(signo, &action, NULL);
    }
    own_pids[0] = getpid();
    own_pids[1] = gettid();
    own_pids[2] = getppid();
    own_pids[3] = getpid() + 1;
    prepare(index);
    for (int i = 1; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, thread_main, (void *)any());
    }
    thread_main((void *)any());
    _exit(0);
}

static struct rlimit limits[RLIM_NLIMITS];

// Workers give limits to any process, and who has no address space for a worker makes no calls: what all began with comes back.
static void restore_limits(void) {
    for (int i = 0; i < RLIM_NLIMITS; i++) setrlimit(i, &limits[i]);
}

static void wait_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void ignore_all(void) {
    for (int signo = 1; signo <= 64; signo++) signal(signo, signo == SIGCHLD ? SIG_DFL : SIG_IGN);
}

// Rounds of workers; each has a seed of its own that follows from the first.
static _Noreturn void supervise(uint64_t seed) {
    uint64_t next = seed;
    ignore_all();
    setsid();
    pid_t pids[WORKERS] = {};
    for (;;) {
        int64_t left = ROUND_MS;
        while (left > 0) {
            for (int i = 0; i < WORKERS; i++) {
                if (pids[i] > 0) continue;
                uint64_t own = mix(&next);
                restore_limits();
                pids[i] = fork();
                if (pids[i] == 0) worker(i, own);
            }
            __atomic_fetch_add(beat, 1, __ATOMIC_RELAXED);
            wait_ms(20);
            left -= 20;
            for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
                for (int i = 0; i < WORKERS; i++)
                    if (pids[i] == pid) pids[i] = 0;
        }
        // All but pid 1 and this.
        kill(-1, SIGKILL);
        for (int i = 0; i < 200 && waitpid(-1, NULL, WNOHANG) >= 0; i++) wait_ms(5);
        memset(pids, 0, sizeof pids);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s SEED RING\n", argv[0]);
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 0);
    int fd = open(argv[2], O_RDWR | O_CREAT, 0600);
    size_t bytes = sizeof(struct slot) * (SLOTS + 1);
    if (fd == -1 || ftruncate(fd, (off_t)bytes) == -1) return perror(argv[2]), 1;
    ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    beat = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED || beat == MAP_FAILED) return perror("mmap"), 1;
    close(fd);
    for (int i = 0; i < RLIM_NLIMITS; i++) getrlimit(i, &limits[i]);
    pid_t supervisor = 0;
    uint64_t seen = 0;
    int quiet = 0;
    for (;;) {
        if (supervisor <= 0) {
            restore_limits();
            supervisor = fork();
            if (supervisor == 0) supervise(mix(&seed));
            quiet = 0;
        }
        wait_ms(200);
        // Somebody may have stopped it.
        if (supervisor > 0) kill(supervisor, SIGCONT);
        quiet = *beat == seen ? quiet + 1 : 0;
        seen = *beat;
        if (quiet > 100 && supervisor > 0) kill(supervisor, SIGKILL);
        for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
            if (pid == supervisor) supervisor = 0;
    }
}
