// Memory policies and the places of pages (numa(7)), as a machine with one node has them.
#include "harness.h"
#include <linux/mempolicy.h>

static unsigned long mask;
static int mode;

static void one_node(void) {
    char online[32] = "";
    int fd = open("/sys/devices/system/node/online", O_RDONLY);
    if (fd >= 0 && read(fd, online, sizeof online - 1) > 0 && strcmp(online, "0\n") != 0) skip_case("more than one node");
    if (fd >= 0) close(fd);
    if (syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0) == -1 && errno == ENOSYS) skip_case("a kernel without NUMA");
}

static long set(int wanted, unsigned long nodes) { return syscall(SYS_set_mempolicy, wanted, &nodes, 64); }

static long bind(void *at, size_t len, int wanted, unsigned long nodes, unsigned flags) {
    return syscall(SYS_mbind, at, len, wanted, &nodes, 64, flags);
}

static long get(void *at, unsigned long flags) {
    mode = -1;
    mask = -1;
    return syscall(SYS_get_mempolicy, &mode, &mask, 64, at, flags);
}

static void expect(void *at, unsigned long flags, int wanted, unsigned long nodes) {
    OK(get(at, flags));
    EQ(mode, wanted);
    EQ(mask, nodes);
}

static char *pages(int count) {
    return OK(mmap(NULL, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

CASE(policy_of_the_thread) {
    one_node();
    expect(NULL, 0, MPOL_DEFAULT, 0);
    expect(NULL, MPOL_F_MEMS_ALLOWED, 0, 1);
    OK(set(MPOL_PREFERRED, 1));
    expect(NULL, 0, MPOL_PREFERRED, 1);
    OK(set(MPOL_PREFERRED, 3));
    expect(NULL, 0, MPOL_PREFERRED, 1);
    OK(set(MPOL_PREFERRED, 0));
    expect(NULL, 0, 4 /* MPOL_LOCAL */, 0);
    OK(set(MPOL_BIND, 1));
    expect(NULL, 0, MPOL_BIND, 1);
    ERR(get(NULL, MPOL_F_NODE), EINVAL);
    OK(set(MPOL_INTERLEAVE, 1));
    OK(get(NULL, MPOL_F_NODE));
    EQ(mode, 0);
    OK(set(MPOL_BIND | MPOL_F_STATIC_NODES, 1));
    expect(NULL, 0, MPOL_BIND | MPOL_F_STATIC_NODES, 1);
    OK(set(MPOL_BIND | MPOL_F_RELATIVE_NODES, 2));
    expect(NULL, 0, MPOL_BIND | MPOL_F_RELATIVE_NODES, 2);
    // Children and what they execute have it.
    pid_t pid = OK(fork());
    if (pid == 0) {
        expect(NULL, 0, MPOL_BIND | MPOL_F_RELATIVE_NODES, 2);
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
    expect(NULL, 0, MPOL_DEFAULT, 0);
}

CASE(policies_that_cannot_be) {
    one_node();
    ERR(set(MPOL_DEFAULT, 1), EINVAL);
    ERR(set(MPOL_PREFERRED, 2), EINVAL);
    ERR(set(MPOL_BIND, 0), EINVAL);
    ERR(set(MPOL_BIND, 2), EINVAL);
    ERR(set(4 /* MPOL_LOCAL */, 1), EINVAL);
    ERR(set(99, 1), EINVAL);
    ERR(set(MPOL_PREFERRED | MPOL_F_STATIC_NODES, 0), EINVAL);
    ERR(set(MPOL_BIND | MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES, 1), EINVAL);
    ERR(set(MPOL_INTERLEAVE | 1 << 13 /* MPOL_F_NUMA_BALANCING */, 1), EINVAL);
    unsigned long one = 1;
    ERR(syscall(SYS_set_mempolicy, MPOL_BIND, NULL, 0), EINVAL);
    ERR(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 1), EINVAL);
    OK(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 2));
    ERR(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 100000), EINVAL);
    ERR(syscall(SYS_set_mempolicy, MPOL_BIND, 8, 64), EFAULT);
    ERR(get(NULL, 8), EINVAL);
    ERR(get(NULL, MPOL_F_MEMS_ALLOWED | MPOL_F_NODE), EINVAL);
    ERR(get(&one, 0), EINVAL);
    ERR(get(NULL, MPOL_F_ADDR), EFAULT);
    ERR(syscall(SYS_get_mempolicy, &mode, &mask, 0, NULL, 0), EINVAL);
    ERR(syscall(SYS_get_mempolicy, 8, NULL, 0, NULL, 0), EFAULT);
}

CASE(policy_of_a_range) {
    one_node();
    char *p = pages(4);
    OK(bind(p + 4096, 8192, MPOL_BIND, 1, 0));
    expect(p, MPOL_F_ADDR, MPOL_DEFAULT, 0);
    expect(p + 4096, MPOL_F_ADDR, MPOL_BIND, 1);
    expect(p + 8195, MPOL_F_ADDR, MPOL_BIND, 1);
    expect(p + 12288, MPOL_F_ADDR, MPOL_DEFAULT, 0);
    // Which node a page is on: it is made for that.
    OK(get(p, MPOL_F_NODE | MPOL_F_ADDR));
    EQ(mode, 0);
    OK(bind(p, 4096, MPOL_BIND, 1, MPOL_MF_STRICT | MPOL_MF_MOVE));
    OK(bind(p, 0, MPOL_BIND, 1, 0));
    ERR(bind(p + 1, 4096, MPOL_BIND, 1, 0), EINVAL);
    ERR(bind(p, -4096L, MPOL_BIND, 1, 0), EINVAL);
    ERR(bind(p, 4096, MPOL_BIND, 2, 0), EINVAL);
    ERR(bind(p, 4096, MPOL_BIND, 1, 8), EINVAL);
    AS_NOBODY(ERR(bind(p, 4096, MPOL_BIND, 1, MPOL_MF_MOVE_ALL), EPERM));
    OK(munmap(p + 8192, 4096));
    ERR(bind(p, 4 * 4096, MPOL_BIND, 1, 0), EFAULT);
    OK(bind(p, 8192, MPOL_DEFAULT, 0, 0));
    expect(p + 4096, MPOL_F_ADDR, MPOL_DEFAULT, 0);
}

CASE(home_node) {
    one_node();
    char *p = pages(2);
    if (syscall(450, p, 0, 0, 0) == -1 && errno == ENOSYS) skip_case("no set_mempolicy_home_node");
    ERR(syscall(450, p, 8192, 0, 0), ENOENT);
    OK(bind(p, 8192, MPOL_BIND, 1, 0));
    OK(syscall(450, p, 8192, 0, 0));
    ERR(syscall(450, p, 8192, 1, 0), EINVAL);
    ERR(syscall(450, p, 8192, 0, 1), EINVAL);
    ERR(syscall(450, p + 1, 8192, 0, 0), EINVAL);
    OK(bind(p, 8192, MPOL_INTERLEAVE, 1, 0));
    ERR(syscall(450, p, 8192, 0, 0), EOPNOTSUPP);
}

CASE(places_of_pages) {
    one_node();
    // A page of a file that nobody touched: of anonymous ones Linux says EFAULT before 6.2, and ENOENT since.
    int file = OK(memfd_create("untouched", 0));
    OK(ftruncate(file, 4096));
    char *p = pages(1), *none = OK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0));
    *p = 1;
    void *at[] = {p + 5, none, (void *)0x10000};
    int status[] = {9, 9, 9}, nodes[] = {0, 0, 0}, bad[] = {0, 1, 0};
    OK(syscall(SYS_move_pages, 0, 3, at, NULL, status, 0));
    EQ(status[0], 0);
    EQ(status[1], -ENOENT);
    EQ(status[2], -EFAULT);
    memset(status, 9, sizeof status);
    OK(syscall(SYS_move_pages, getpid(), 3, at, nodes, status, MPOL_MF_MOVE));
    EQ(status[0], 0);
    EQ(status[2], -EFAULT);
    ERR(syscall(SYS_move_pages, 0, 3, at, bad, status, MPOL_MF_MOVE), ENODEV);
    OK(syscall(SYS_move_pages, 0, 0, NULL, NULL, NULL, 0));
    ERR(syscall(SYS_move_pages, 0, 1, 8, NULL, status, 0), EFAULT);
    ERR(syscall(SYS_move_pages, 0, 1, at, NULL, 8, 0), EFAULT);
    ERR(syscall(SYS_move_pages, 0, 1, at, NULL, status, 1), EINVAL);
    ERR(syscall(SYS_move_pages, 4000000, 1, at, NULL, status, 0), ESRCH);
    AS_NOBODY({
        ERR(syscall(SYS_move_pages, 0, 1, at, NULL, status, MPOL_MF_MOVE_ALL), EPERM);
        ERR(syscall(SYS_move_pages, getppid(), 1, at, NULL, status, 0), EPERM);
    });
}

static long migrate(int pid, unsigned long from, unsigned long to) { return syscall(SYS_migrate_pages, pid, 64, &from, &to); }

CASE(migration) {
    one_node();
    EQ(migrate(0, 1, 1), 0);
    EQ(migrate(0, 2, 1), 0);
    EQ(migrate(getpid(), 1, 3), 0);
    ERR(migrate(0, 1, 2), EINVAL);
    ERR(migrate(0, 1, 0), EINVAL);
    ERR(migrate(4000000, 1, 1), ESRCH);
    ERR(syscall(SYS_migrate_pages, 0, 64, 8, 8), EFAULT);
    AS_NOBODY({
        ERR(migrate(getppid(), 1, 1), EPERM);
        ERR(migrate(0, 1, 3), EPERM);
    });
}

// The line of /proc/self/numa_maps about what begins at an address.
static const char *line_of(void *at) {
    static char text[1 << 18], line[512];
    char start[32];
    snprintf(start, sizeof start, "%08lx ", (unsigned long)at);
    read_file("/proc/self/numa_maps", text, sizeof text);
    char *found = strstr(text, start);
    CHECK(found);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(found, "\n"), found);
    return line;
}

CASE(numa_maps) {
    one_node();
    char *p = OK(mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    OK(bind(p, 1 << 16, MPOL_BIND | MPOL_F_STATIC_NODES, 1, 0));
    CHECK(strstr(line_of(p), " bind=static:0"));
    CHECK(!strstr(line_of(p), "N0="));
    *p = 1;
    CHECK(strstr(line_of(p), " anon=") && strstr(line_of(p), " N0="));
    OK(bind(p, 1 << 16, MPOL_PREFERRED, 0, 0));
    CHECK(strstr(line_of(p), " local"));
    OK(bind(p, 1 << 16, MPOL_INTERLEAVE, 1, 0));
    CHECK(strstr(line_of(p), " interleave:0"));
    char path[PATH_MAX + 8], text[1 << 14];
    snprintf(path, sizeof path, "file=%s", self_path);
    read_file("/proc/self/numa_maps", text, sizeof text);
    CHECK(strstr(text, path) && strstr(text, " stack"));
}
