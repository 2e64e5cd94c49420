// Mount namespaces and how mounts propagate between them (mount_namespaces(7)), pivot_root(2). On Linux itself everything
// happens in a mount namespace of its own.
#include "harness.h"

#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/syscall.h>

static char base[PATH_MAX];

// The case's own directory, which is a private mount.
static void needs_mounts(void) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("here", 0755));
    if (mount("here", "here", "tmpfs", 0, NULL) == -1 && errno == EPERM) skip_case("may not mount");
    OK(chdir("here"));
    CHECK(getcwd(base, sizeof base) != NULL);
    if (unshare(CLONE_NEWNS) == -1 && errno == EPERM) skip_case("may not make namespaces");
}

// On one processor namespaces are numbered in the order in which they are made, which says what may be bound where.
static void stay_on_one_processor(void) {
    cpu_set_t all, one;
    OK(sched_getaffinity(0, sizeof all, &all));
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    OK(sched_setaffinity(0, sizeof one, &one));
}

static void leave(void) { OK(chdir("/")); }

static void new_mount(const char *at) {
    OK(mkdir(at, 0755));
    OK(mount(at, at, "tmpfs", 0, "size=64k"));
}

static int pivot_root(const char *new_root, const char *put_old) { return (int)syscall(SYS_pivot_root, new_root, put_old); }

// How many mounts a process sees below the base, which is one.
static int count_of(pid_t pid) {
    char path[64];
    static char text[1 << 20];
    snprintf(path, sizeof path, "/proc/%d/mountinfo", pid);
    read_file(path, text, sizeof text);
    int count = 0;
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n")) {
        char point[512];
        if (sscanf(at, "%*s %*s %*s %*s %511s", point) != 1) FAIL("%s", at);
        count += strncmp(point, base, strlen(base)) == 0;
    }
    return count;
}

// What the mount at `name` in the base says of propagation, with the numbers of groups as given: "shared:A master:B".
static const char *kinds_of(const char *name) {
    static char out[256];
    static char text[1 << 20];
    char wanted[PATH_MAX + 64];
    snprintf(wanted, sizeof wanted, "%s%s%s", base, *name ? "/" : "", name);
    read_file("/proc/self/mountinfo", text, sizeof text);
    out[0] = 0;
    int found = 0;
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n")) {
        char point[512];
        int used = 0;
        if (sscanf(at, "%*s %*s %*s %*s %511s %*s %n", point, &used) != 1 || strcmp(point, wanted)) continue;
        char *end = strstr(at + used, "- ");
        CHECK(end != NULL);
        *end = 0;
        snprintf(out, sizeof out, "%s", at + used);
        size_t length = strlen(out);
        if (length) out[length - 1] = 0;
        found = 1;
    }
    if (!found) FAIL("no mount at %s", wanted);
    return out;
}

static int number_in(const char *name, const char *kind) {
    const char *at = strstr(kinds_of(name), kind);
    if (!at) FAIL("%s has no %s", name, kind);
    return atoi(at + strlen(kind));
}

// A child that stops in `begin`, and is ended by `end`.
static int told[2];
static pid_t begin(void) {
    OK(pipe(told));
    pid_t pid = OK(fork());
    return pid;
}
static void ready(void) {
    EQ(write(told[1], "", 1), 1);
    pause();
    _exit(0);
}
static void wait_ready(void) {
    char byte;
    OK(close(told[1]));
    EQ(read(told[0], &byte, 1), 1);
    OK(close(told[0]));
}
static void end(pid_t pid) {
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

static int open_ns(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
    return OK(open(path, O_RDONLY | O_CLOEXEC));
}

CASE(what_is_mounted_inside_is_not_outside) {
    needs_mounts();
    new_mount("both");
    OK(mkdir("inside", 0755));
    pid_t pid = begin();
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        // The working directory is in the new one.
        OK(mount("none", "inside", "tmpfs", 0, NULL));
        write_file("inside/file", "");
        OK(access("inside/file", F_OK));
        OK(umount2("both", 0));
        ready();
    }
    wait_ready();
    ERR(access("inside/file", F_OK), ENOENT);
    EQ(count_of(getpid()), 2);
    EQ(count_of(pid), 2);
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "/proc/%d/root%s/inside/file", pid, base);
    OK(access(path, F_OK));
    snprintf(path, sizeof path, "/proc/%d/cwd/inside/file", pid);
    OK(access(path, F_OK));
    end(pid);
    OK(umount2("both", 0));
    leave();
}

CASE(clone_makes_one) {
    needs_mounts();
    OK(mkdir("inside", 0755));
    pid_t pid = OK((pid_t)syscall(SYS_clone, CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        OK(mount("none", "inside", "tmpfs", 0, NULL));
        write_file("inside/file", "");
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(access("inside/file", F_OK), ENOENT);
    EQ(count_of(getpid()), 1);
    leave();
}

CASE(who_is_in_a_chroot_stays_there) {
    needs_mounts();
    new_mount("jail");
    OK(mkdir("jail/in", 0755));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(chroot("jail"));
        OK(chdir("/in"));
        OK(unshare(CLONE_NEWNS));
        char path[64];
        CHECK(getcwd(path, sizeof path) != NULL);
        STR_EQ(path, "/in");
        OK(mount("none", ".", "tmpfs", 0, NULL));
        OK(mkdir("/in/x", 0755));
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(access("jail/in/x", F_OK), ENOENT);
    leave();
}

CASE(setns_goes_to_the_root_of_the_other) {
    needs_mounts();
    OK(mkdir("inside", 0755));
    pid_t pid = begin();
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        OK(mount("none", "inside", "tmpfs", 0, NULL));
        write_file("inside/file", "");
        ready();
    }
    wait_ready();
    int own = open_ns(getpid()), theirs = open_ns(pid);
    end(pid);
    OK(setns(theirs, CLONE_NEWNS));
    char path[PATH_MAX + 64];
    CHECK(getcwd(path, sizeof path) != NULL);
    STR_EQ(path, "/");
    snprintf(path, sizeof path, "%s/inside/file", base);
    OK(access(path, F_OK));
    EQ(count_of(getpid()), 2);
    OK(setns(own, 0));
    ERR(access(path, F_OK), ENOENT);
    leave();
}

static int shares_fs(void *fd) {
    ERR(setns(*(int *)fd, CLONE_NEWNS), EINVAL);
    return 0;
}

CASE(setns_is_for_who_shares_no_root) {
    needs_mounts();
    int own = open_ns(getpid());
    static char stack[65536];
    pid_t pid = OK(clone(shares_fs, stack + sizeof stack, CLONE_FS | SIGCHLD, &own));
    expect_exit(pid, 0);
    OK(setns(own, CLONE_NEWNS));
    leave();
}

CASE(setns_needs_the_right_to_chroot) {
    needs_mounts();
    int own = open_ns(getpid());
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct data[2];
        OK(syscall(SYS_capget, &header, data));
        data[0].effective &= ~(1u << CAP_SYS_CHROOT);
        OK(syscall(SYS_capset, &header, data));
        ERR(setns(own, CLONE_NEWNS), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

CASE(mounts_of_others_are_left_alone) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/in", 0755));
    OK(mkdir("to", 0755));
    pid_t pid = begin();
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        ready();
    }
    wait_ready();
    char path[PATH_MAX + 64], inner[PATH_MAX + 64];
    snprintf(path, sizeof path, "/proc/%d/root%s/a", pid, base);
    snprintf(inner, sizeof inner, "%s/in", path);
    ERR(mount("none", inner, "tmpfs", 0, NULL), EINVAL);
    ERR(mount("to", inner, NULL, MS_BIND, NULL), EINVAL);
    ERR(mount(path, "to", NULL, MS_BIND, NULL), EINVAL);
    ERR(mount(path, "to", NULL, MS_MOVE, NULL), EINVAL);
    ERR(mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), EINVAL);
    ERR(umount2(path, 0), EINVAL);
    ERR(umount2(path, MNT_DETACH), EINVAL);
    end(pid);
    leave();
}

// More in all than there may be at a time: what ends gives back what it had.
CASE(the_end_of_one_gives_its_mounts_back) {
    needs_mounts();
    new_mount("a");
    for (int i = 0; i < 2000; i++) OK(mount("a", "a", NULL, MS_BIND, NULL));
    for (int i = 0; i < 60; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            OK(unshare(CLONE_NEWNS));
            EQ(count_of(getpid()), 2002);
            _exit(0);
        }
        expect_exit(pid, 0);
    }
    while (umount2("a", MNT_DETACH) == 0) {}
    EQ(count_of(getpid()), 1);
    leave();
}

CASE(bound_files_keep_namespaces) {
    stay_on_one_processor();
    needs_mounts();
    write_file("uts", "");
    write_file("mnt", "");
    OK(mkdir("inside", 0755));
    OK(mkdir("directory", 0755));
    pid_t pid = begin();
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS | CLONE_NEWUTS));
        OK(sethostname("kept", 4));
        OK(mount("none", "inside", "tmpfs", 0, NULL));
        write_file("inside/file", "");
        // An older one, or its own, would hold itself.
        int mine = open_ns(getppid());
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", mine);
        ERR(mount(path, "mnt", NULL, MS_BIND, NULL), EINVAL);
        ERR(mount("/proc/self/ns/mnt", "mnt", NULL, MS_BIND, NULL), EINVAL);
        ready();
    }
    wait_ready();
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "/proc/%d/ns/uts", pid);
    ERR(mount(path, "directory", NULL, MS_BIND, NULL), ENOTDIR);
    OK(mount(path, "uts", NULL, MS_BIND, NULL));
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
    OK(mount(path, "mnt", NULL, MS_BIND, NULL));
    // A copy has the one, and not the other, which could be its own.
    pid_t other = OK(fork());
    if (other == 0) {
        OK(unshare(CLONE_NEWNS));
        EQ(count_of(getpid()), 2);
        _exit(0);
    }
    expect_exit(other, 0);
    end(pid);
    int own = open_ns(getpid()), fd = OK(open("uts", O_RDONLY));
    OK(setns(fd, CLONE_NEWUTS));
    char name[16];
    OK(gethostname(name, sizeof name));
    STR_EQ(name, "kept");
    OK(close(fd));
    fd = OK(open("mnt", O_RDONLY));
    OK(setns(fd, CLONE_NEWNS));
    OK(close(fd));
    snprintf(path, sizeof path, "%s/inside/file", base);
    OK(access(path, F_OK));
    OK(setns(own, 0));
    OK(chdir(base));
    OK(umount2("mnt", 0));
    OK(umount2("uts", 0));
    leave();
}

CASE(a_namespace_in_a_namespace_in_a_namespace) {
    stay_on_one_processor();
    needs_mounts();
    enum { DEPTH = 300 };
    int first = open_ns(getpid());
    // Each of them holds the next, by the file that it has bound; all end with the first.
    char path[64];
    for (int i = 0; i < DEPTH; i++) {
        OK(chdir(base));
        close(create("file"));
        pid_t pid = begin();
        if (pid == 0) {
            OK(unshare(CLONE_NEWNS));
            ready();
        }
        wait_ready();
        snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
        OK(mount(path, "file", NULL, MS_BIND, NULL));
        int next = open_ns(pid);
        end(pid);
        OK(setns(next, CLONE_NEWNS));
        OK(close(next));
    }
    OK(setns(first, CLONE_NEWNS));
    OK(chdir(base));
    EQ(count_of(getpid()), 2);
    OK(umount2("file", 0));
    leave();
}

CASE(shared_mounts_propagate) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/x", 0755));
    OK(mkdir("b", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    EQ(number_in("a", "shared:"), number_in("b", "shared:"));
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    EQ(count_of(getpid()), 5);
    write_file("b/x/file", "");
    OK(access("a/x/file", F_OK));
    EQ(number_in("a/x", "shared:"), number_in("b/x", "shared:"));
    CHECK(number_in("a/x", "shared:") != number_in("a", "shared:"));
    // Its copy in another place is in use.
    int fd = OK(open("b/x/file", O_RDONLY));
    ERR(umount2("a/x", 0), EBUSY);
    OK(close(fd));
    OK(umount2("b/x", 0));
    EQ(count_of(getpid()), 3);
    leave();
}

CASE(slaves_receive_and_do_not_send) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/x", 0755));
    OK(mkdir("a/y", 0755));
    OK(mkdir("b", 0755));
    OK(mkdir("c", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mount(NULL, "b", NULL, MS_SLAVE, NULL));
    EQ(number_in("b", "master:"), number_in("a", "shared:"));
    CHECK(strstr(kinds_of("b"), "shared") == NULL);
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    EQ(count_of(getpid()), 5);
    OK(mount("t", "b/y", "tmpfs", 0, NULL));
    EQ(count_of(getpid()), 6);
    // Shared on its own account, it hands on.
    OK(mount(NULL, "b", NULL, MS_SHARED, NULL));
    EQ(number_in("b", "master:"), number_in("a", "shared:"));
    OK(mount("b", "c", NULL, MS_BIND, NULL));
    EQ(number_in("c", "master:"), number_in("a", "shared:"));
    OK(umount2("a/x", 0));
    ERR(umount2("b/x", 0), EINVAL);
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    OK(umount2("c/x", 0));
    ERR(umount2("b/x", 0), EINVAL);
    OK(umount2("a/x", 0));
    // A group that ends leaves its slaves to its master: here to nobody.
    OK(mount(NULL, "a", NULL, MS_PRIVATE, NULL));
    CHECK(strstr(kinds_of("b"), "master") == NULL);
    leave();
}

CASE(copies_of_namespaces_are_peers) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/x", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    pid_t pid = begin();
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        int group = number_in("a", "shared:");
        OK(mount(NULL, "a", NULL, MS_SLAVE, NULL));
        EQ(number_in("a", "master:"), group);
        ready();
    }
    wait_ready();
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    EQ(count_of(pid), 3);
    OK(umount2("a/x", 0));
    EQ(count_of(pid), 2);
    end(pid);
    leave();
}

// The group that a mount receives from has no mount here: the nearest above that has one is named.
CASE(the_nearest_that_is_seen) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("b", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mount(NULL, "b", NULL, MS_SLAVE, NULL));
    OK(mount(NULL, "b", NULL, MS_SHARED, NULL));
    int above = number_in("a", "shared:"), between = number_in("b", "shared:");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        OK(mount(NULL, "b", NULL, MS_SLAVE, NULL));
        EQ(number_in("b", "master:"), between);
        EQ(number_in("b", "propagate_from:"), above);
        OK(umount2("a", 0));
        CHECK(strstr(kinds_of("b"), "propagate_from") == NULL);
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

CASE(what_is_shared_keeps_its_mounts) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/x", 0755));
    OK(mkdir("to", 0755));
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    ERR(mount("a/x", "to", NULL, MS_MOVE, NULL), EINVAL);
    OK(mount(NULL, "a", NULL, MS_PRIVATE, NULL));
    OK(mount("a/x", "to", NULL, MS_MOVE, NULL));
    // And takes none that may not be copied.
    OK(mount(NULL, "to", NULL, MS_UNBINDABLE, NULL));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    ERR(mount("to", "a/x", NULL, MS_MOVE, NULL), EINVAL);
    // What comes to lie on it is shared.
    OK(mount(NULL, "to", NULL, MS_PRIVATE, NULL));
    OK(mount("to", "a/x", NULL, MS_MOVE, NULL));
    number_in("a/x", "shared:");
    leave();
}

CASE(kinds_are_changed_one_at_a_time) {
    needs_mounts();
    new_mount("a");
    new_mount("a/x");
    ERR(mount(NULL, "a", NULL, MS_SHARED | MS_PRIVATE, NULL), EINVAL);
    ERR(mount(NULL, "a", NULL, MS_SHARED | MS_RDONLY, NULL), EINVAL);
    OK(mkdir("plain", 0755));
    ERR(mount(NULL, "plain", NULL, MS_SHARED, NULL), EINVAL);
    OK(mount(NULL, "a", NULL, MS_SHARED | MS_REC | MS_SILENT, NULL));
    number_in("a/x", "shared:");
    OK(mount(NULL, "a", NULL, MS_PRIVATE, NULL));
    STR_EQ(kinds_of("a"), "");
    number_in("a/x", "shared:");
    OK(mount(NULL, "a", NULL, MS_UNBINDABLE | MS_REC, NULL));
    STR_EQ(kinds_of("a/x"), "unbindable");
    OK(mount(NULL, "a", NULL, MS_SLAVE | MS_REC, NULL));
    STR_EQ(kinds_of("a/x"), "unbindable");
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    CHECK(strstr(kinds_of("a"), "unbindable") == NULL);
    AS_NOBODY({ ERR(mount(NULL, "/", NULL, MS_PRIVATE, NULL), EPERM); });
    leave();
}

CASE(lazy_umount_takes_all_copies) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("b", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    new_mount("a/x");
    new_mount("a/x/y");
    EQ(count_of(getpid()), 7);
    write_file("b/x/y/file", "text");
    int fd = OK(open("b/x/y/file", O_RDONLY));
    OK(umount2("a/x", MNT_DETACH));
    EQ(count_of(getpid()), 3);
    char text[8];
    EQ(read(fd, text, sizeof text), 4);
    OK(close(fd));
    leave();
}

// A mount that covers one which goes stays, and lies where that did.
CASE(what_covers_a_copy_stays) {
    needs_mounts();
    new_mount("a");
    OK(mkdir("a/x", 0755));
    OK(mkdir("b", 0755));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mount("t", "a/x", "tmpfs", 0, NULL));
    OK(mount(NULL, "b/x", NULL, MS_PRIVATE, NULL));
    OK(mount("cover", "b/x", "tmpfs", 0, NULL));
    write_file("b/x/cover", "");
    OK(umount2("a/x", 0));
    OK(access("b/x/cover", F_OK));
    EQ(count_of(getpid()), 4);
    OK(umount2("b/x", 0));
    ERR(umount2("b/x", 0), EINVAL);
    leave();
}

CASE(pivot_root_refuses) {
    needs_mounts();
    new_mount("new");
    OK(mkdir("new/old", 0755));
    OK(mkdir("plain", 0755));
    write_file("file", "");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(chroot("."));
        OK(chdir("/"));
        ERR(pivot_root("/new", "/none"), ENOENT);
        ERR(pivot_root("/file", "/new"), ENOTDIR);
        ERR(pivot_root("/", "/new"), EBUSY);
        ERR(pivot_root("/new", "/plain"), EBUSY);
        ERR(pivot_root("/plain", "/plain"), EBUSY);
        OK(mkdir("new/sub", 0755));
        ERR(pivot_root("/new/sub", "/new/old"), EINVAL);
        // What is put away must lie below the new root.
        new_mount("other");
        ERR(pivot_root("/new", "/other"), EINVAL);
        // Nothing of it is shared.
        OK(mount(NULL, "/new", NULL, MS_SHARED, NULL));
        ERR(pivot_root("/new", "/new/old"), EINVAL);
        OK(mount(NULL, "/new", NULL, MS_PRIVATE, NULL));
        OK(mount(NULL, "/", NULL, MS_SHARED, NULL));
        ERR(pivot_root("/new", "/new/old"), EINVAL);
        OK(mount(NULL, "/", NULL, MS_PRIVATE, NULL));
        AS_NOBODY({ ERR(pivot_root("/new", "/new/old"), EPERM); });
        // The root is no mount.
        OK(chroot("/plain"));
        OK(chdir("/"));
        ERR(pivot_root("/", "/"), EBUSY);
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

CASE(pivot_root_exchanges) {
    needs_mounts();
    new_mount("new");
    OK(mkdir("new/old", 0755));
    write_file("new/in", "");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        int ready[2], go[2];
        OK(pipe(ready));
        OK(pipe(go));
        pid_t other = OK(fork());
        char byte;
        if (other == 0) {
            // One that works at the old root, in the same namespace.
            OK(chdir("/"));
            EQ(write(ready[1], "", 1), 1);
            EQ(read(go[0], &byte, 1), 1);
            OK(access("/in", F_OK));
            OK(access("in", F_OK));
            _exit(0);
        }
        EQ(read(ready[0], &byte, 1), 1);
        OK(chdir("new"));
        OK(pivot_root(".", "old"));
        OK(access("/in", F_OK));
        char path[PATH_MAX + 16];
        CHECK(getcwd(path, sizeof path) != NULL);
        STR_EQ(path, "/");
        snprintf(path, sizeof path, "/old%s", base);
        OK(access(path, F_OK));
        EQ(write(go[1], "", 1), 1);
        expect_exit(other, 0);
        OK(umount2("/old", MNT_DETACH));
        ERR(access(path, F_OK), ENOENT);
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

// As container runtimes do it: the old root comes to lie on the new one, and goes.
CASE(pivot_root_without_a_place_for_the_old) {
    needs_mounts();
    new_mount("new");
    write_file("new/in", "");
    OK(mkdir("new/proc", 0755));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWNS));
        OK(mount("/proc", "new/proc", NULL, MS_BIND | MS_REC, NULL));
        int old = OK(open("/", O_DIRECTORY | O_RDONLY)), new = OK(open("new", O_DIRECTORY | O_RDONLY));
        OK(fchdir(new));
        OK(pivot_root(".", "."));
        OK(fchdir(old));
        OK(mount("", ".", "", MS_SLAVE | MS_REC, NULL));
        OK(umount2(".", MNT_DETACH));
        OK(chdir("/"));
        OK(access("/in", F_OK));
        static char text[65536];
        read_file("/proc/self/mountinfo", text, sizeof text);
        int lines = 0;
        for (char *at = text; *at; at++) lines += *at == '\n';
        char *line = strtok(text, "\n"), point[512];
        CHECK(line && sscanf(line, "%*s %*s %*s %*s %511s", point) == 1);
        STR_EQ(point, "/");
        CHECK(lines >= 2);
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

// ---- ".." ----

// A root that is covered after chroot(2) is still as far as ".." leads.
CASE(a_covered_root_holds) {
    needs_mounts();
    OK(mkdir("jail", 0755));
    OK(mkdir("jail/sub", 0755));
    write_file("outside", "");
    int out = OK(open(".", O_PATH));
    OK(chroot("jail"));
    OK(chdir("/sub"));
    OK(fchdir(out));
    OK(mount("none", "jail", "tmpfs", 0, NULL));
    OK(chdir("/"));
    ERR(access("../outside", F_OK), ENOENT);
    ERR(access("../../outside", F_OK), ENOENT);
    OK(chdir("/.."));
    ERR(access("../outside", F_OK), ENOENT);
    ERR(access("../../../outside", F_OK), ENOENT);
}

// What is moved out of the part that is mounted is out of reach, and nothing leads from it upwards.
CASE(moved_out_of_a_bound_directory) {
    needs_mounts();
    OK(mkdir("data", 0755));
    OK(mkdir("data/part", 0755));
    OK(mkdir("data/part/sub", 0755));
    OK(mkdir("jail", 0755));
    OK(mount("data/part", "jail", NULL, MS_BIND, NULL));
    int in = OK(open("jail/sub", O_PATH | O_DIRECTORY));
    OK(rename("data/part/sub", "data/sub"));
    OK(fchdir(in));
    ERR(access("..", F_OK), ENOENT);
    ERR(access("../part", F_OK), ENOENT);
    OK(access(".", F_OK));
}
