// Namespaces: clone(2), unshare(2), setns(2), and their files (namespaces(7), ioctl_ns(2)).
#include "harness.h"

#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static void needs_namespaces(void) {
    if (geteuid() != 0) skip_case("needs root");
    if (unshare(CLONE_NEWUTS) == -1 && errno == EPERM) skip_case("may not make namespaces");
}

static ino_t number_of(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, name);
    struct stat st;
    OK(stat(path, &st));
    return st.st_ino;
}

static void host_is(const char *expected) {
    struct utsname uts;
    OK(uname(&uts));
    STR_EQ(uts.nodename, expected);
    char text[128];
    read_file("/proc/sys/kernel/hostname", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    STR_EQ(text, expected);
}

CASE(every_kind_has_a_file) {
    static const struct { const char *name, *prefix; int flag; } kinds[] = {
        {"cgroup", "cgroup", CLONE_NEWCGROUP}, {"ipc", "ipc", CLONE_NEWIPC}, {"mnt", "mnt", CLONE_NEWNS},
        {"net", "net", CLONE_NEWNET}, {"pid", "pid", CLONE_NEWPID}, {"pid_for_children", "pid", CLONE_NEWPID},
        {"time", "time", CLONE_NEWTIME}, {"time_for_children", "time", CLONE_NEWTIME},
        {"user", "user", CLONE_NEWUSER}, {"uts", "uts", CLONE_NEWUTS},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[64], link[64] = "", expected[64];
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i].name);
        OK(readlink(path, link, sizeof link - 1));
        struct stat st;
        OK(stat(path, &st));
        snprintf(expected, sizeof expected, "%s:[%lu]", kinds[i].prefix, (unsigned long)st.st_ino);
        STR_EQ(link, expected);
        EQ(st.st_mode, S_IFREG | 0444);
        int fd = OK(open(path, O_RDONLY));
        EQ(OK(ioctl(fd, NS_GET_NSTYPE)), kinds[i].flag);
        struct stat same;
        OK(fstat(fd, &same));
        CHECK(same.st_ino == st.st_ino && same.st_dev == st.st_dev);
        char byte;
        ERR(read(fd, &byte, 1), EINVAL);
        OK(close(fd));
        ERR(open(path, O_RDWR), EPERM);
    }
}

CASE(a_child_has_those_of_its_parent) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        pause();
        _exit(0);
    }
    for (const char **name = (const char *[]){"ipc", "mnt", "net", "pid", "user", "uts", NULL}; *name; name++)
        EQ(number_of(pid, *name), number_of(getpid(), *name));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

CASE(a_host_name_of_its_own) {
    needs_namespaces();
    ino_t outer = number_of(getpid(), "uts");
    OK(sethostname("outer", 5));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWUTS));
        CHECK(number_of(getpid(), "uts") != outer);
        host_is("outer");
        OK(sethostname("inner", 5));
        host_is("inner");
        int fd = OK(open("/proc/sys/kernel/hostname", O_WRONLY));
        EQ(OK(write(fd, "written\n", 8)), 8);
        host_is("written");
        _exit(0);
    }
    expect_exit(pid, 0);
    host_is("outer");
}

CASE(clone_makes_one) {
    needs_namespaces();
    OK(sethostname("outer", 5));
    pid_t pid = OK((pid_t)syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        OK(sethostname("inner", 5));
        _exit(0);
    }
    expect_exit(pid, 0);
    host_is("outer");
}

// Enters another process's, by its file and by its descriptor, though that has ended by then.
CASE(setns_enters) {
    needs_namespaces();
    OK(sethostname("outer", 5));
    int ready[2], own = OK(open("/proc/self/ns/uts", O_RDONLY));
    OK(pipe(ready));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWUTS));
        OK(sethostname("inner", 5));
        EQ(write(ready[1], "", 1), 1);
        pause();
        _exit(0);
    }
    char byte, path[64];
    EQ(OK(read(ready[0], &byte, 1)), 1);
    snprintf(path, sizeof path, "/proc/%d/ns/uts", pid);
    int theirs = OK(open(path, O_RDONLY | O_CLOEXEC));
    ERR(setns(theirs, CLONE_NEWNET), EINVAL);
    OK(setns(theirs, CLONE_NEWUTS));
    host_is("inner");
    OK(setns(own, 0));
    host_is("outer");
    int process = OK((int)syscall(SYS_pidfd_open, pid, 0));
    ERR(setns(process, 0), EINVAL);
    OK(setns(process, CLONE_NEWUTS));
    host_is("inner");
    OK(setns(own, CLONE_NEWUTS));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    ERR(setns(process, CLONE_NEWUTS), ESRCH);
    OK(setns(theirs, 0));
    host_is("inner");
}

CASE(what_is_no_namespace) {
    int fd = OK(open("/dev/null", O_RDONLY));
    ERR(setns(fd, 0), EINVAL);
    ERR(setns(-1, 0), EBADF);
    ERR(unshare(0x1), EINVAL);
    int user = OK(open("/proc/self/ns/user", O_RDONLY));
    ERR(setns(user, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_NEWIPC | CLONE_SYSVSEM | SIGCHLD, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_NEWNS | CLONE_FS | SIGCHLD, 0, 0, 0, 0), EINVAL);
}

CASE(only_administrators_make_and_enter_them) {
    if (geteuid() != 0) skip_case("needs root");
    int own = OK(open("/proc/self/ns/uts", O_RDONLY));
    AS_NOBODY({
        for (const int *flag = (const int[]){CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP, 0}; *flag; flag++) {
            ERR(unshare(*flag), EPERM);
            ERR(syscall(SYS_clone, *flag | SIGCHLD, 0, 0, 0, 0), EPERM);
        }
        ERR(setns(own, 0), EPERM);
    });
}

CASE(unshare_of_the_user_namespace_is_for_single_threads) {
    ERR(unshare(CLONE_NEWUSER | 0x2), EINVAL);
}
