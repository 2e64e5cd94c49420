// /proc, /sys and /dev as programs use them.
#include "harness.h"

#include <ctype.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

static char text[1 << 20];

// The number behind a "Name:" line; fails when there is none.
static long long field(const char *name) {
    char *line = strstr(text, name);
    while (line && line != text && line[-1] != '\n') line = strstr(line + 1, name);
    if (!line) FAIL("no %s", name);
    return strtoll(line + strlen(name), NULL, 0);
}

CASE(self_is_a_link_to_the_pid) {
    char b[64] = {0};
    CHECK(OK(readlink("/proc/self", b, sizeof b - 1)) > 0);
    EQ(atoi(b), getpid());
    OK(readlink("/proc/thread-self", b, sizeof b - 1));
    char expected[64];
    snprintf(expected, sizeof expected, "%d/task/%d", getpid(), gettid());
    b[strlen(expected)] = 0;
    STR_EQ(b, expected);
}

CASE(root_lists_processes) {
    DIR *d = opendir("/proc");
    CHECK(d);
    bool me = false, self = false, meminfo = false;
    for (struct dirent *e; (e = readdir(d));) {
        if (atoi(e->d_name) == getpid()) me = true;
        if (strcmp(e->d_name, "self") == 0) self = true;
        if (strcmp(e->d_name, "meminfo") == 0) meminfo = true;
    }
    CHECK(me && self && meminfo);
}

CASE(what_only_calls_make_is_not_opened_again) {
    int epoll = OK(epoll_create1(0)), event = OK(eventfd(0, 0)), pipes[2];
    OK(pipe(pipes));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", epoll);
    ERR(open(path, O_RDWR), ENXIO);
    snprintf(path, sizeof path, "/proc/self/fd/%d", event);
    ERR(open(path, O_RDWR), ENXIO);
    // A pipe is, any number of times, each by the one before.
    int last = pipes[0];
    for (int i = 0; i < 5000; i++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", last);
        int next = OK(open(path, O_RDONLY));
        if (last != pipes[0]) OK(close(last));
        last = next;
    }
    char byte;
    EQ(write(pipes[1], "x", 1), 1);
    EQ(read(last, &byte, 1), 1);
    OK(close(last));
}

CASE(self_exe) {
    char b[PATH_MAX] = {0};
    OK(readlink("/proc/self/exe", b, sizeof b - 1));
    STR_EQ(b, self_path);
    CHECK(strstr(b, "proc"));
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    char magic[4];
    EQ(read(fd, magic, 4), 4);
    CHECK(memcmp(magic, "\177ELF", 4) == 0);
}

CASE(self_cwd_and_root) {
    char b[PATH_MAX] = {0}, cwd[PATH_MAX];
    OK(readlink("/proc/self/cwd", b, sizeof b - 1));
    CHECK(getcwd(cwd, sizeof cwd));
    STR_EQ(b, cwd);
    memset(b, 0, sizeof b);
    OK(readlink("/proc/self/root", b, sizeof b - 1));
    STR_EQ(b, "/");
    write_file("f", "");
    OK(access("/proc/self/cwd/f", F_OK));
}

CASE(cmdline) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl("/bin/sleep", "sleep-name", "1000", NULL);
        _exit(100);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    WAIT_UNTIL(read_file(path, text, sizeof text) == 16);
    CHECK(memcmp(text, "sleep-name\0001000", 16) == 0);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(environ) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *argv[] = {"sleep", "1000", NULL}, *env[] = {"QUARK=test", NULL};
        execve("/bin/sleep", argv, env);
        _exit(100);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    WAIT_UNTIL(read_file(path, text, sizeof text) == 11);
    CHECK(memcmp(text, "QUARK=test", 11) == 0);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(comm) {
    read_file("/proc/self/comm", text, sizeof text);
    STR_EQ(text, "proc\n");
    int fd = OK(open("/proc/self/comm", O_WRONLY));
    EQ(write(fd, "renamed", 7), 7);
    read_file("/proc/self/comm", text, sizeof text);
    STR_EQ(text, "renamed\n");
}

CASE(stat_fields) {
    read_file("/proc/self/stat", text, sizeof text);
    int pid, ppid, pgrp, session;
    char state;
    char *rest = strrchr(text, ')');
    CHECK(rest);
    EQ(sscanf(text, "%d (", &pid), 1);
    EQ(sscanf(rest + 2, "%c %d %d %d", &state, &ppid, &pgrp, &session), 4);
    EQ(pid, getpid());
    EQ(state, 'R');
    EQ(ppid, getppid());
    EQ(pgrp, getpgrp());
    EQ(session, getsid(0));
    int fields = 0;
    for (char *p = rest + 1; *p; p++) fields += *p == ' ';
    EQ(fields, 50);
}

CASE(status_fields) {
    read_file("/proc/self/status", text, sizeof text);
    EQ(field("Pid:"), getpid());
    EQ(field("Tgid:"), getpid());
    EQ(field("PPid:"), getppid());
    EQ(field("Uid:"), getuid());
    EQ(field("Gid:"), getgid());
    EQ(field("Threads:"), 1);
    CHECK(field("VmSize:") > 0);
    CHECK(field("VmRSS:") > 0);
    CHECK(strstr(text, "Name:\tproc\n"));
    CHECK(strstr(text, "State:\tR"));
    CHECK(strstr(text, "SigBlk:") && strstr(text, "CapEff:") && strstr(text, "Seccomp:"));
}

CASE(statm) {
    read_file("/proc/self/statm", text, sizeof text);
    long size, resident, shared;
    EQ(sscanf(text, "%ld %ld %ld", &size, &resident, &shared), 3);
    CHECK(size > 0 && resident > 0 && resident <= size);
    size_t big = 64 << 20;
    char *p = OK(mmap(NULL, big, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    long after;
    read_file("/proc/self/statm", text, sizeof text);
    EQ(sscanf(text, "%ld", &after), 1);
    CHECK(after >= size + (long)(big / 4096));
    OK(munmap(p, big));
}

CASE(resident_set_follows_use) {
    size_t big = 16 << 20;
    char *p = OK(mmap(NULL, big, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    read_file("/proc/self/status", text, sizeof text);
    long long before = field("VmRSS:");
    memset(p, 1, big);
    read_file("/proc/self/status", text, sizeof text);
    CHECK(field("VmRSS:") >= before + (15 << 10));
}

// A row of /proc/PID/status in KiB.
static long kib_of(const char *row) {
    static char text[8192];
    read_file("/proc/self/status", text, sizeof text);
    const char *at = strstr(text, row);
    CHECK(at);
    return atol(at + strlen(row) + 1);
}

CASE(peaks_are_kept) {
    enum { MIB = 32, KIB = MIB << 10 };
    char *p = OK(mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(p, 1, MIB << 20);
    long size = kib_of("VmSize"), resident = kib_of("VmRSS");
    CHECK(resident >= KIB);
    OK(munmap(p, MIB << 20));
    CHECK(kib_of("VmSize") <= size - KIB);
    CHECK(kib_of("VmRSS") <= resident - KIB + 1024);
    CHECK(kib_of("VmPeak") >= size);
    long peak = kib_of("VmHWM");
    // Where a system is busy Linux counts some pages late.
    CHECK(peak >= resident - 1024 && peak <= resident + 4096);
    struct rusage usage;
    OK(getrusage(RUSAGE_SELF, &usage));
    CHECK(usage.ru_maxrss >= peak && usage.ru_maxrss <= peak + 1024);
    // A child begins with what it has.
    pid_t pid = OK(fork());
    if (pid == 0) {
        CHECK(kib_of("VmPeak") <= size - KIB + 1024);
        CHECK(kib_of("VmHWM") <= resident - KIB + 1024);
        _exit(7);
    }
    expect_exit(pid, 7);
    // Another program has peaks of its own; what was used before counts for its end.
    pid = OK(fork());
    if (pid == 0) {
        p = OK(mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        memset(p, 1, MIB << 20);
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    int status;
    EQ(wait4(pid, &status, 0, &usage), pid);
    EQ(status, 0);
    CHECK(usage.ru_maxrss >= KIB);
}

CASE(resident_memory_by_kind) {
    enum { MIB = 8, KIB = MIB << 10 };
    // A file's pages, which are shared memory on tmpfs. Linux before 6.2 counts up to 64 pages of a
    // thread late.
    int fd = create("mapped");
    OK(ftruncate(fd, MIB << 20));
    long before = kib_of("RssFile") + kib_of("RssShmem");
    char *text = OK(mmap(NULL, MIB << 20, PROT_READ, MAP_SHARED, fd, 0));
    for (long at = 0; at < MIB << 20; at += 4096) CHECK(text[at] == 0);
    CHECK(kib_of("RssFile") + kib_of("RssShmem") >= before + KIB - 512);
    long anonymous = kib_of("RssAnon"), shared = kib_of("RssShmem");
    char *p = OK(mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(p, 1, MIB << 20);
    CHECK(kib_of("RssAnon") >= anonymous + KIB - 1024);
    CHECK(kib_of("RssShmem") <= shared + 1024);
    char *q = OK(mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    memset(q, 1, MIB << 20);
    CHECK(kib_of("RssShmem") >= shared + KIB - 1024);
    CHECK(kib_of("RssAnon") <= anonymous + KIB + 1024);
    long sum = kib_of("RssAnon") + kib_of("RssFile") + kib_of("RssShmem");
    CHECK(labs(sum - kib_of("VmRSS")) <= 1024);
}

CASE(maps) {
    char *p = OK(mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(mprotect(p + 4096, 4096, PROT_READ | PROT_EXEC));
    int fd = OK(open("mapped", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, 8192));
    char *q = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096));
    read_file("/proc/self/maps", text, sizeof text);
    bool middle = false, file = false, stack = false, executable = false;
    uintptr_t last = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        uintptr_t from, to, offset;
        char rights[8], path[PATH_MAX] = "";
        unsigned major, minor;
        unsigned long inode;
        CHECK(sscanf(line, "%lx-%lx %7s %lx %x:%x %lu %4000[^\n]", &from, &to, rights, &offset, &major, &minor, &inode, path) >= 7);
        CHECK(from < to && from >= last);
        last = to;
        if (from == (uintptr_t)p + 4096 && to == from + 4096) middle = strcmp(rights, "r-xp") == 0;
        if (from == (uintptr_t)q) file = strcmp(rights, "rw-s") == 0 && offset == 4096 && strstr(path, "mapped") && inode != 0;
        if (strcmp(path, "[stack]") == 0) stack = from <= (uintptr_t)&fd && (uintptr_t)&fd < to;
        if (strcmp(path, self_path) == 0 && strcmp(rights, "r-xp") == 0) executable = true;
    }
    CHECK(middle);
    CHECK(file);
    CHECK(stack);
    CHECK(executable);
}

CASE(smaps) {
    char *p = OK(mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(p, 1, 16 * 4096);
    read_file("/proc/self/smaps", text, sizeof text);
    CHECK(strstr(text, "Rss:") && strstr(text, "Pss:") && strstr(text, "Private_Dirty:") && strstr(text, "VmFlags:"));
}

CASE(fd_directory) {
    int fd = OK(open("named", O_CREAT | O_RDWR, 0600)), p[2];
    OK(pipe(p));
    char path[64], b[PATH_MAX] = {0}, cwd[PATH_MAX], expected[PATH_MAX + 10];
    CHECK(getcwd(cwd, sizeof cwd));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(readlink(path, b, sizeof b - 1));
    snprintf(expected, sizeof expected, "%s/named", cwd);
    STR_EQ(b, expected);
    OK(unlink("named"));
    memset(b, 0, sizeof b);
    OK(readlink(path, b, sizeof b - 1));
    strcat(expected, " (deleted)");
    STR_EQ(b, expected);
    snprintf(path, sizeof path, "/proc/self/fd/%d", p[0]);
    memset(b, 0, sizeof b);
    OK(readlink(path, b, sizeof b - 1));
    CHECK(strncmp(b, "pipe:[", 6) == 0);
    bool seen = false;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));) seen |= atoi(e->d_name) == p[1];
    CHECK(seen);
    // Opening the link of a pipe gives the same pipe.
    int again = OK(open(path, O_RDONLY | O_NONBLOCK));
    EQ(write(p[1], "x", 1), 1);
    char c;
    EQ(read(again, &c, 1), 1);
    ERR(open("/proc/self/fd/12345", O_RDONLY), ENOENT);
}

CASE(fdinfo) {
    int fd = OK(open("f", O_CREAT | O_RDWR | O_APPEND, 0600));
    EQ(write(fd, "1234567", 7), 7);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    read_file(path, text, sizeof text);
    EQ(field("pos:"), 7);
    CHECK(strstr(text, "flags:"));
}

CASE(task_directory) {
    static volatile pid_t tid;
    static volatile int stop;
    void *entry(void *argument) {
        tid = gettid();
        while (!stop) sleep_ms(1);
        return NULL;
    }
    pthread_t t;
    ZERO(pthread_create(&t, NULL, entry, NULL));
    WAIT_UNTIL(tid != 0);
    int seen = 0, total = 0;
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));)
        if (atoi(e->d_name) > 0) total++, seen |= atoi(e->d_name) == tid ? 1 : atoi(e->d_name) == getpid() ? 2 : 4;
    EQ(total, 2);
    EQ(seen, 3);
    stop = 1;
    ZERO(pthread_join(t, NULL));
}

CASE(limits) {
    struct rlimit limit = {123, 456};
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    read_file("/proc/self/limits", text, sizeof text);
    char *line = strstr(text, "Max open files");
    CHECK(line);
    int soft, hard;
    EQ(sscanf(line + 14, "%d %d", &soft, &hard), 2);
    EQ(soft, 123);
    EQ(hard, 456);
}

CASE(mem_file) {
    static volatile long value = 0x1122334455667788;
    int fd = OK(open("/proc/self/mem", O_RDWR));
    long got;
    EQ(pread(fd, &got, sizeof got, (off_t)(uintptr_t)&value), sizeof got);
    EQ(got, value);
    got = 42;
    EQ(pwrite(fd, &got, sizeof got, (off_t)(uintptr_t)&value), sizeof got);
    EQ(value, 42);
    ERR(pread(fd, &got, sizeof got, 8), EIO);
}

CASE(auxv_file) {
    size_t n = read_file("/proc/self/auxv", text, sizeof text);
    CHECK(n >= 32 && n % 16 == 0);
    bool page_size = false;
    for (size_t i = 0; i < n; i += 16) {
        uint64_t kind, value;
        memcpy(&kind, text + i, 8);
        memcpy(&value, text + i + 8, 8);
        if (kind == 6) page_size = value == 4096;
    }
    CHECK(page_size);
}

CASE(meminfo) {
    read_file("/proc/meminfo", text, sizeof text);
    CHECK(field("MemTotal:") > 0);
    CHECK(field("MemFree:") > 0);
    CHECK(field("MemAvailable:") > 0);
    CHECK(field("MemFree:") <= field("MemTotal:"));
    field("Buffers:");
    field("Cached:");
    field("SwapTotal:");
}

CASE(cpuinfo) {
    read_file("/proc/cpuinfo", text, sizeof text);
    int processors = 0;
    for (char *p = text; (p = strstr(p, "processor\t:")); p++) processors++;
    EQ(processors, sysconf(_SC_NPROCESSORS_ONLN));
    CHECK(strstr(text, "flags\t") && strstr(text, "model name\t"));
}

CASE(system_files) {
    const char *files[] = {"/proc/loadavg", "/proc/uptime", "/proc/version", "/proc/stat", "/proc/mounts",
                           "/proc/filesystems", "/proc/cmdline", "/proc/self/mountinfo", "/proc/self/cgroup", "/proc/self/oom_score_adj"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (read_file(files[i], text, sizeof text) == 0) FAIL("%s is empty", files[i]);
    read_file("/proc/version", text, sizeof text);
    CHECK(strncmp(text, "Linux version ", 14) == 0);
    read_file("/proc/uptime", text, sizeof text);
    CHECK(atof(text) > 0);
    read_file("/proc/stat", text, sizeof text);
    CHECK(strncmp(text, "cpu ", 4) == 0 && strstr(text, "\nbtime "));
}

CASE(mounts) {
    read_file("/proc/self/mounts", text, sizeof text);
    CHECK(strstr(text, " / "));
    CHECK(strstr(text, " /proc proc "));
    read_file("/proc/self/mountinfo", text, sizeof text);
    CHECK(strstr(text, " / / ") || strstr(text, " / rw") || strstr(text, " / ro"));
}

CASE(sysctls) {
    const char *files[] = {"/proc/sys/kernel/pid_max", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/file-max",
                           "/proc/sys/net/core/somaxconn", "/proc/sys/kernel/ngroups_max"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        read_file(files[i], text, sizeof text);
        char *end;
        strtoll(text, &end, 10);
        if (end == text || *end != '\n') FAIL("%s is \"%s\"", files[i], text);
    }
    read_file("/proc/sys/kernel/ostype", text, sizeof text);
    STR_EQ(text, "Linux\n");
    read_file("/proc/sys/kernel/random/uuid", text, sizeof text);
    EQ(strlen(text), 37);
    read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
    EQ(strlen(text), 37);
}

CASE(net_files) {
    read_file("/proc/net/dev", text, sizeof text);
    CHECK(strstr(text, "lo:"));
    CHECK(read_file("/proc/net/tcp", text, sizeof text) > 0);
    read_file("/proc/net/unix", text, sizeof text);
}

CASE(missing_process) {
    ERR(open("/proc/99999999/stat", O_RDONLY), ENOENT);
    ERR(open("/proc/nothing-like-this", O_RDONLY), ENOENT);
    pid_t pid = OK(fork());
    if (pid == 0) _exit(0);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    int fd = OK(open(path, O_RDONLY));
    expect_exit(pid, 0);
    ERR(open(path, O_RDONLY), ENOENT);
    char b[16];
    ERR(read(fd, b, sizeof b), ESRCH);
}

CASE(small_reads_and_offsets) {
    char whole[8192];
    size_t n = read_file("/proc/self/limits", whole, sizeof whole);
    int fd = OK(open("/proc/self/limits", O_RDONLY));
    char c;
    for (size_t i = 0; i < n; i++) {
        EQ(read(fd, &c, 1), 1);
        EQ(c, whole[i]);
    }
    EQ(read(fd, &c, 1), 0);
    OK(lseek(fd, 4, SEEK_SET));
    EQ(read(fd, &c, 1), 1);
    EQ(c, whole[4]);
    EQ(pread(fd, &c, 1, 7), 1);
    EQ(c, whole[7]);
}

CASE(proc_is_not_writable_nor_creatable) {
    errno = 0;
    CHECK(open("/proc/new-file", O_CREAT | O_WRONLY, 0600) == -1);
    CHECK(errno == ENOENT || errno == EACCES || errno == EPERM || errno == EROFS);
    errno = 0;
    CHECK(mkdir("/proc/new-dir", 0700) == -1);
    struct statfs s;
    OK(statfs("/proc/self", &s));
    EQ(s.f_type, 0x9fa0);
}

CASE(sys_cpu) {
    read_file("/sys/devices/system/cpu/online", text, sizeof text);
    CHECK(text[0] == '0');
    CHECK(read_file("/sys/devices/system/cpu/possible", text, sizeof text) > 0);
    CHECK(sysconf(_SC_NPROCESSORS_CONF) >= 1);
}

CASE(sys_class_net) {
    struct stat st;
    if (stat("/sys/class/net", &st) == -1) FAIL("no /sys/class/net");
    OK(access("/sys/class/net/lo", F_OK));
}

CASE(dev_null) {
    int fd = OK(open("/dev/null", O_RDWR));
    char b[10];
    EQ(read(fd, b, 10), 0);
    EQ(write(fd, b, 10), 10);
    struct stat st;
    OK(fstat(fd, &st));
    CHECK(S_ISCHR(st.st_mode));
    EQ(st.st_rdev, makedev(1, 3));
}

CASE(dev_zero_full) {
    int z = OK(open("/dev/zero", O_RDWR)), f = OK(open("/dev/full", O_RDWR));
    char b[100];
    memset(b, 1, sizeof b);
    EQ(read(z, b, sizeof b), sizeof b);
    for (size_t i = 0; i < sizeof b; i++) EQ(b[i], 0);
    EQ(write(z, b, 10), 10);
    ERR(write(f, b, 1), ENOSPC);
    EQ(read(f, b, 10), 10);
}

CASE(dev_random) {
    const char *names[] = {"/dev/random", "/dev/urandom"};
    for (int n = 0; n < 2; n++) {
        int fd = OK(open(names[n], O_RDONLY));
        unsigned char a[64], b[64];
        EQ(read(fd, a, 64), 64);
        EQ(read(fd, b, 64), 64);
        CHECK(memcmp(a, b, 64) != 0);
    }
}

CASE(dev_links) {
    char b[64] = {0};
    OK(readlink("/dev/fd", b, sizeof b - 1));
    STR_EQ(b, "/proc/self/fd");
    memset(b, 0, sizeof b);
    OK(readlink("/dev/stdin", b, sizeof b - 1));
    STR_EQ(b, "/proc/self/fd/0");
    OK(access("/dev/ptmx", R_OK | W_OK));
    DIR *d = opendir("/dev/pts");
    CHECK(d);
    d = opendir("/dev/shm");
    CHECK(d);
    struct statfs s;
    OK(statfs("/dev/shm", &s));
    EQ(s.f_type, 0x01021994);
}

CASE(dev_fd_reopens) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    EQ(write(fd, "dev", 3), 3);
    char path[32], b[8] = {0};
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    int again = OK(open(path, O_RDONLY));
    EQ(read(again, b, 8), 3);
    STR_EQ(b, "dev");
}

CASE(oom_score_adj) {
    int fd = OK(open("/proc/self/oom_score_adj", O_RDWR));
    EQ(write(fd, "500", 3), 3);
    read_file("/proc/self/oom_score_adj", text, sizeof text);
    STR_EQ(text, "500\n");
    ERR(write(fd, "5000", 4), EINVAL);
    pid_t pid = OK(fork());
    if (pid == 0) {
        read_file("/proc/self/oom_score_adj", text, sizeof text);
        _exit(strcmp(text, "500\n") == 0 ? 0 : 1);
    }
    expect_exit(pid, 0);
}

CASE(links_of_descriptors_show_what_they_allow) {
    const struct { int flags; mode_t mode; } kinds[] = {{O_RDONLY, 0500}, {O_WRONLY, 0300}, {O_RDWR, 0700}};
    for (int i = 0; i < 3; i++) {
        int fd = OK(open("/dev/null", kinds[i].flags));
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        struct stat st;
        OK(lstat(path, &st));
        EQ(st.st_mode, S_IFLNK | kinds[i].mode);
    }
}

// Calls `on` with each number that a directory of /proc lists, a few at a time.
static void each_number(const char *path, void (*on)(int number)) {
    struct entry { uint64_t ino; int64_t off; uint16_t len; uint8_t type; char name[]; };
    int fd = OK(open(path, O_RDONLY | O_DIRECTORY));
    char buffer[128] __attribute__((aligned(8)));
    for (long got; (got = OK(syscall(SYS_getdents64, fd, buffer, sizeof buffer))) > 0;)
        for (long at = 0; at < got;) {
            struct entry *entry = (void *)(buffer + at);
            at += entry->len;
            if (isdigit(entry->name[0]) && atoi(entry->name) != fd) on(atoi(entry->name));
        }
    OK(close(fd));
}

// Programs close all descriptors like that before they execute another one.
CASE(descriptors_are_closed_as_they_are_listed) {
    void close_it(int fd) { if (fd > 2) close(fd); }
    for (int fd = 10; fd < 300; fd += 3) OK(dup2(0, fd));
    each_number("/proc/self/fd", close_it);
    for (int fd = 3; fd < 300; fd++) ERR(fcntl(fd, F_GETFD), EBADF);
}

CASE(processes_are_ended_as_they_are_listed) {
    enum { CHILDREN = 60 };
    static pid_t children[CHILDREN];
    static int ended;
    void end(int pid) {
        for (int i = 0; i < CHILDREN; i++)
            if (children[i] == pid) {
                OK(kill(pid, SIGKILL));
                OK(waitpid(pid, NULL, 0));
                ended++;
            }
    }
    for (int i = 0; i < CHILDREN; i++)
        if ((children[i] = OK(fork())) == 0) for (;;) pause();
    each_number("/proc", end);
    EQ(ended, CHILDREN);
}

// As lscpu(1) reads them.
CASE(topology_of_the_processors) {
    char path[128], list[256], mask[256];
    const char *sets[] = {"core_cpus", "core_siblings", "package_cpus", "thread_siblings"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/topology/%s", sets[i]);
        read_file(path, mask, sizeof mask);
        strcat(path, "_list");
        read_file(path, list, sizeof list);
        CHECK(strtoul(mask + (strrchr(mask, ',') ? strrchr(mask, ',') + 1 - mask : 0), NULL, 16) & 1);
        CHECK(list[0] == '0');
    }
}

// Who logged in: a thread's own, set once by whoever has no right to change it, and inherited. As pam_loginuid does it.
CASE(login_is_set_once) {
    if (access("/proc/self/loginuid", F_OK) == -1) skip_case("a kernel without audit");
    read_file("/proc/self/loginuid", text, sizeof text);
    if (strcmp(text, "4294967295") != 0) skip_case("somebody is logged in");
    read_file("/proc/self/sessionid", text, sizeof text);
    STR_EQ(text, "4294967295");
    char parent[64];
    snprintf(parent, sizeof parent, "/proc/%d/loginuid", getpid());
    pid_t pid = OK(fork());
    if (pid == 0) {
        int fd = OK(open("/proc/self/loginuid", O_RDWR | O_NOFOLLOW | O_CLOEXEC));
        ERR(write(fd, "x", 1), EINVAL);
        EQ(pwrite(fd, "1000", 4, 0), 4);
        read_file("/proc/self/loginuid", text, sizeof text);
        STR_EQ(text, "1000");
        read_file("/proc/self/sessionid", text, sizeof text);
        CHECK(strcmp(text, "4294967295") != 0);
        int other = OK(open(parent, O_WRONLY));
        ERR(write(other, "1000", 4), EPERM);
        pid_t child = OK(fork());
        if (child == 0) {
            read_file("/proc/self/loginuid", text, sizeof text);
            STR_EQ(text, "1000");
            _exit(0);
        }
        expect_exit(child, 0);
        // Without CAP_AUDIT_CONTROL, which goes with the user.
        if (geteuid() == 0) OK(setresuid(54321, 54321, 54321));
        ERR(pwrite(fd, "0", 1, 0), EPERM);
        ERR(pwrite(fd, "4294967295", 10, 0), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
    read_file("/proc/self/loginuid", text, sizeof text);
    STR_EQ(text, "4294967295");
}

// The number of this field of /proc/PID/stat, as proc_pid_stat(5) counts them.
static unsigned long stat_field(const char *path, int wanted) {
    read_file(path, text, sizeof text);
    char *at = strrchr(text, ')');
    CHECK(at);
    at += 2;
    for (int field = 3; field < wanted; field++) {
        at = strchr(at, ' ');
        CHECK(at);
        at++;
    }
    return strtoul(at, NULL, 10);
}

extern char **environ;

// Run by another case: writes a title over its arguments, as long as the second one says, and what its own /proc says of that.
static int retitle(int argc, char **argv) {
    size_t len = atoi(argv[2]), room = argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0];
    char *start = argv[0];
    EQ(stat_field("/proc/self/stat", 48), (uintptr_t)start);
    EQ(stat_field("/proc/self/stat", 49), (uintptr_t)start + room);
    EQ(stat_field("/proc/self/stat", 50), (uintptr_t)environ[0]);
    memset(start, 'a', len);
    if (len < room) memset(start + len, 0, room - len);
    else start[len] = 0;
    size_t got = read_file("/proc/self/cmdline", text, sizeof text);
    write(1, text, got);
    return 0;
}

int helper_main(int argc, char **argv) {
    return argc > 2 && strcmp(argv[1], "retitle") == 0 ? retitle(argc, argv) : -1;
}

// What a program that writes a title of `len` bytes over 40 bytes of arguments and as many of environment shows.
static ssize_t title(const char *len, char *out, size_t size) {
    int p[2];
    OK(pipe(p));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dup2(p[1], 1));
        char *argv[] = {"12345678901234567", "retitle", (char *)len, "12345678901", NULL};
        char *env[] = {"A=345678901234567890123456789012345678901234567890", NULL};
        execve(self_path, argv, env);
        _exit(100);
    }
    OK(close(p[1]));
    size_t all = 0;
    for (ssize_t n; (n = OK(read(p[0], out + all, size - all))) > 0;) all += n;
    expect_exit(pid, 0);
    return all;
}

CASE(cmdline_is_what_lies_there) {
    static char out[8192];
    // Shorter than the arguments: with what is left of them, zeros.
    EQ(title("010", out, sizeof out), 18 + 8 + 4 + 12);
    CHECK(memcmp(out, "aaaaaaaaaa\0\0", 12) == 0);
    // Longer: up to its end, in the environment.
    EQ(title("060", out, sizeof out), 61);
    CHECK(out[59] == 'a' && out[60] == 0);
}

CASE(environ_is_what_lies_there) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(stat_field("/proc/self/stat", 50), (uintptr_t)environ[0]);
        environ[0][0] = '!';
        read_file("/proc/self/environ", text, sizeof text);
        EQ(text[0], '!');
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(arguments_can_be_moved) {
    char *p = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    strcpy(p, "a new title");
    unsigned long env_end = stat_field("/proc/self/stat", 51);
    if (prctl(PR_SET_MM, PR_SET_MM_ENV_END, env_end, 0, 0) == -1) skip_case("no CAP_SYS_RESOURCE");
    ERR(prctl(PR_SET_MM, PR_SET_MM_ARG_START, p, 1, 0), EINVAL);
    ERR(prctl(PR_SET_MM, PR_SET_MM_ARG_START, p, 0, 1), EINVAL);
    ERR(prctl(PR_SET_MM, PR_SET_MM_ARG_START, 8, 0, 0), EINVAL);
    ERR(prctl(PR_SET_MM, PR_SET_MM_ARG_START, -4096L, 0, 0), EINVAL);
    ERR(prctl(PR_SET_MM, 99, p, 0, 0), EINVAL);
    // The beginning never comes behind the end.
    ERR(prctl(PR_SET_MM, PR_SET_MM_ENV_START, env_end + 1, 0, 0), EINVAL);
    OK(prctl(PR_SET_MM, PR_SET_MM_ARG_START, p, 0, 0));
    OK(prctl(PR_SET_MM, PR_SET_MM_ARG_END, p + 12, 0, 0));
    EQ(read_file("/proc/self/cmdline", text, sizeof text), 12);
    STR_EQ(text, "a new title");
    EQ(stat_field("/proc/self/stat", 48), (uintptr_t)p);
    AS_NOBODY(ERR(prctl(PR_SET_MM, PR_SET_MM_ARG_END, p + 11, 0, 0), EPERM));
}

CASE(coredump_filter) {
    read_file("/proc/self/coredump_filter", text, sizeof text);
    EQ(strlen(text), 9);
    int fd = OK(open("/proc/self/coredump_filter", O_RDWR));
    EQ(write(fd, "0x7f\n", 5), 5);
    read_file("/proc/self/coredump_filter", text, sizeof text);
    STR_EQ(text, "0000007f\n");
    ERR(write(fd, "zz", 2), EINVAL);
    ERR(write(fd, "-1", 2), EINVAL);
    // Children and the programs they execute have it too.
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "read a < /proc/self/coredump_filter && test $a = 0000007f", NULL);
        _exit(100);
    }
    expect_exit(pid, 0);
    EQ(pwrite(fd, "17", 2, 0), 2);
    read_file("/proc/self/coredump_filter", text, sizeof text);
    STR_EQ(text, "00000011\n");
}

CASE(softirqs) {
    read_file("/proc/softirqs", text, sizeof text);
    CHECK(strstr(text, "CPU0") && strstr(text, "      NET_RX:") && strstr(text, "         RCU:"));
}

CASE(pagemap) {
    char *p = OK(mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(madvise(p, 4 * 4096, MADV_NOHUGEPAGE));
    p[4096] = 1;
    char *q = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    q[0] = 1;
    char *r = OK(mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    uint64_t entries[4];
    const uint64_t present = 1ull << 63, swapped = 1ull << 62, of_file = 1ull << 61, frame = (1ull << 55) - 1;
    // As everybody may read it, no frames are told.
    pid_t pid = OK(fork());
    if (pid == 0) {
        p[4096] = q[0] = 1;
        OK(setuid(1000));
        OK(prctl(PR_SET_DUMPABLE, 1));
        int fd = OK(open("/proc/self/pagemap", O_RDONLY));
        EQ(pread(fd, entries, 32, (uintptr_t)p / 4096 * 8), 32);
        CHECK(entries[1] & present && !(entries[1] & (swapped | of_file | frame)));
        EQ(pread(fd, entries, 8, (uintptr_t)r / 4096 * 8), 8);
        EQ(entries[0] & (present | swapped | of_file | frame), 0);
        EQ(pread(fd, entries, 8, (uintptr_t)q / 4096 * 8), 8);
        CHECK(entries[0] & present && entries[0] & of_file && !(entries[0] & (swapped | frame)));
        ERR(pread(fd, entries, 8, 4), EINVAL);
        ERR(pread(fd, entries, 7, 0), EINVAL);
        EQ(pread(fd, entries, 8, 0), 8);
        EQ(entries[0], 0);
        EQ(pread(fd, entries, 8, 1l << 62), 0);
        _exit(0);
    }
    expect_exit(pid, 0);
    AS_NOBODY({
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/pagemap", getppid());
        ERR(open(path, O_RDONLY), EACCES);
    });
}

CASE(nothing_is_made_in_proc) {
    ERR(mkdir("/proc/new", 0700), ENOENT);
    ERR(open("/proc/new", O_CREAT | O_WRONLY, 0600), ENOENT);
    ERR(open("/proc/self/new", O_CREAT | O_WRONLY, 0600), ENOENT);
    ERR(symlink("a", "/proc/new"), ENOENT);
    ERR(mknod("/proc/new", S_IFIFO | 0600, 0), ENOENT);
    ERR(mkdir("/proc/self/fd/new", 0700), ENOENT);
    write_file("f", "");
    ERR(rename("f", "/proc/new"), EXDEV);
    ERR(link("f", "/proc/new"), ENOENT);
    ERR(unlink("/proc/new"), ENOENT);
    ERR(rmdir("/proc/new"), ENOENT);
    AS_NOBODY({
        ERR(mkdir("/proc/new", 0700), ENOENT);
        ERR(open("/proc/new", O_CREAT | O_WRONLY, 0600), ENOENT);
    });
}
CASE(files_that_are_mapped_are_linked) {
    write_file("mapped", "contents of it");
    int fd = OK(open("mapped", O_RDONLY));
    char *at = OK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    OK(close(fd));
    char name[64], target[PATH_MAX] = "", own[PATH_MAX];
    sprintf(name, "/proc/self/map_files/%lx-%lx", (long)at, (long)at + 4096);
    OK(readlink(name, target, sizeof target - 1));
    OK(realpath("mapped", own) ? 0 : -1);
    STR_EQ(target, own);
    char text[32];
    read_file(name, text, sizeof text);
    STR_EQ(text, "contents of it");
    OK(unlink("mapped"));
    fd = OK(open(name, O_RDONLY));
    EQ(read(fd, text, sizeof text), 14);
    DIR *all = opendir("/proc/self/map_files");
    CHECK(all);
    int seen = 0;
    for (struct dirent *one; (one = readdir(all));) seen += !strcmp(one->d_name, strrchr(name, '/') + 1);
    EQ(seen, 1);
    closedir(all);
    OK(munmap(at, 4096));
    ERR(readlink(name, target, sizeof target), ENOENT);
    ERR(open("/proc/self/map_files/0-1000", O_RDONLY), ENOENT);
    ERR(open("/proc/self/map_files/nonsense", O_RDONLY), ENOENT);
}
CASE(the_configuration_is_compressed) {
    unsigned char head[2];
    int fd = open("/proc/config.gz", O_RDONLY);
    if (fd < 0 && errno == ENOENT) skip_case("this kernel does not tell its configuration");
    OK(fd);
    EQ(read(fd, head, 2), 2);
    EQ(head[0], 0x1f);
    EQ(head[1], 0x8b);
    if (access("/bin/zcat", X_OK) == 0)
        EQ(system("zcat /proc/config.gz | grep -q '^CONFIG_USER_NS=y'"), 0);
}

static pid_t whose;

static void *looks_at_the_leader(void *unused) {
    WAIT_UNTIL(process_state(whose) == 'Z');
    char to[PATH_MAX];
    const char *gone[] = {"exe", "cwd", "root", "fd/0", "ns/mnt", "ns/net", "ns/uts", "ns/pid_for_children"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/%s", gone[i]);
        ERR(readlink(path, to, sizeof to), ENOENT);
        ERR(open(path, O_RDONLY), ENOENT);
        snprintf(path, sizeof path, "/proc/%d/%s", whose, gone[i]);
        ERR(readlink(path, to, sizeof to), ENOENT);
        // The thread has what it had.
        snprintf(path, sizeof path, "/proc/thread-self/%s", gone[i]);
        CHECK(readlink(path, to, sizeof to) > 0);
    }
    CHECK(readlink("/proc/self/ns/pid", to, sizeof to) > 0);
    CHECK(readlink("/proc/self/ns/user", to, sizeof to) > 0);
    DIR *descriptors = opendir("/proc/self/fd");
    CHECK(descriptors);
    for (struct dirent *entry; (entry = readdir(descriptors));) CHECK(entry->d_name[0] == '.');
    EQ(read_file("/proc/self/maps", to, sizeof to), 0);
    CHECK(read_file("/proc/thread-self/maps", to, sizeof to) > 0);
    _exit(3);
    return unused;
}

// Its first thread has ended, and is what its directory is about.
CASE(links_of_a_process_whose_leader_has_ended) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        whose = getpid();
        pthread_t thread;
        ZERO(pthread_create(&thread, NULL, looks_at_the_leader, NULL));
        syscall(SYS_exit, 0);
    }
    expect_exit(pid, 3);
    // Those of a zombie are nowhere either.
    pid = OK(fork());
    if (pid == 0) _exit(4);
    WAIT_UNTIL(process_state(pid) == 'Z');
    char path[64], to[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ERR(readlink(path, to, sizeof to), ENOENT);
    expect_exit(pid, 4);
}

static long switches_in(const char *path) {
    CHECK(read_file(path, text, sizeof text) > 0);
    char *line = strstr(text, "\nvoluntary_ctxt_switches:\t");
    CHECK(line && strstr(line, "\nnonvoluntary_ctxt_switches:\t"));
    return atol(strchr(line, '\t'));
}

static void *sleeps(void *before) {
    *(long *)before = switches_in("/proc/thread-self/status");
    // On a busy machine a millisecond may be over before it is slept.
    for (int i = 0; i < 60; i++) sleep_ms(1);
    *(long *)before = switches_in("/proc/thread-self/status") - *(long *)before;
    struct rusage used;
    OK(getrusage(RUSAGE_THREAD, &used));
    CHECK(used.ru_nvcsw >= 20);
    return NULL;
}

// A thread that sleeps gives its processor away.
CASE(switches_are_counted) {
    struct rusage before, after;
    OK(getrusage(RUSAGE_SELF, &before));
    long own = switches_in("/proc/self/status"), slept;
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, sleeps, &slept));
    ZERO(pthread_join(thread, NULL));
    CHECK(slept >= 20);
    // Each thread has its own count, the process the sum of all.
    CHECK(switches_in("/proc/self/status") - own < 20);
    OK(getrusage(RUSAGE_SELF, &after));
    CHECK(after.ru_nvcsw - before.ru_nvcsw >= 20);
    CHECK(after.ru_nivcsw >= before.ru_nivcsw);
    OK(getrusage(RUSAGE_CHILDREN, &before));
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 60; i++) poll(NULL, 0, 1);
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(getrusage(RUSAGE_CHILDREN, &after));
    CHECK(after.ru_nvcsw - before.ru_nvcsw >= 20);
}
