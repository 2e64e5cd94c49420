// What programs forbid themselves: landlock(7), by version 2 of its interface.
#include "harness.h"

#include <linux/landlock.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    EXECUTE = LANDLOCK_ACCESS_FS_EXECUTE,
    WRITE_FILE = LANDLOCK_ACCESS_FS_WRITE_FILE,
    READ_FILE = LANDLOCK_ACCESS_FS_READ_FILE,
    READ_DIR = LANDLOCK_ACCESS_FS_READ_DIR,
    REMOVE_DIR = LANDLOCK_ACCESS_FS_REMOVE_DIR,
    REMOVE_FILE = LANDLOCK_ACCESS_FS_REMOVE_FILE,
    MAKE_CHAR = LANDLOCK_ACCESS_FS_MAKE_CHAR,
    MAKE_DIR = LANDLOCK_ACCESS_FS_MAKE_DIR,
    MAKE_REG = LANDLOCK_ACCESS_FS_MAKE_REG,
    MAKE_SOCK = LANDLOCK_ACCESS_FS_MAKE_SOCK,
    MAKE_FIFO = LANDLOCK_ACCESS_FS_MAKE_FIFO,
    MAKE_BLOCK = LANDLOCK_ACCESS_FS_MAKE_BLOCK,
    MAKE_SYM = LANDLOCK_ACCESS_FS_MAKE_SYM,
    REFER = 1 << 13,
    ALL = (1 << 14) - 1,
    MAKES = MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM,
};

static int create_ruleset(const void *attr, size_t size, uint32_t flags) {
    return (int)syscall(SYS_landlock_create_ruleset, attr, size, flags);
}
static int add_rule(int ruleset, int type, const void *attr, uint32_t flags) {
    return (int)syscall(SYS_landlock_add_rule, ruleset, type, attr, flags);
}
static int restrict_self(int ruleset, uint32_t flags) {
    return (int)syscall(SYS_landlock_restrict_self, ruleset, flags);
}

static int new_ruleset(uint64_t handled) {
    if (create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 2) skip_case("the kernel has no Landlock here");
    return OK(create_ruleset(&handled, sizeof handled, 0));
}

static int add(int ruleset, const char *path, uint64_t allowed) {
    int fd = OK(open(path, O_PATH | O_CLOEXEC));
    struct landlock_path_beneath_attr rule = {.allowed_access = allowed, .parent_fd = fd};
    int added = add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), error = errno;
    close(fd);
    errno = error;
    return added;
}

static void enter(int ruleset) {
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK(restrict_self(ruleset, 0));
    OK(close(ruleset));
}

// Forbids `handled` but for `allowed` below `path`.
static void only(uint64_t handled, const char *path, uint64_t allowed) {
    int ruleset = new_ruleset(handled);
    OK(add(ruleset, path, allowed));
    enter(ruleset);
}

static int openable(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}

static void directories(void) {
    OK(mkdir("in", 0700));
    OK(mkdir("in/deep", 0700));
    OK(mkdir("out", 0700));
    write_file("in/f", "f");
    write_file("in/deep/g", "g");
    write_file("out/h", "h");
}

CASE(rulesets) {
    int version = create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 2) skip_case("the kernel has no Landlock here");
    uint64_t attr[8] = {READ_FILE};
    ERR(create_ruleset(attr, 8, LANDLOCK_CREATE_RULESET_VERSION), EINVAL);
    ERR(create_ruleset(NULL, 8, LANDLOCK_CREATE_RULESET_VERSION), EINVAL);
    ERR(create_ruleset(NULL, 0, 1u << 31), EINVAL);
    ERR(create_ruleset(attr, 4, 0), EINVAL);
    ERR(create_ruleset(attr, 5000, 0), E2BIG);
    ERR(create_ruleset(NULL, 8, 0), EFAULT);
    int fd = OK(create_ruleset(attr, sizeof attr, 0));
    EQ(OK(fcntl(fd, F_GETFD)), FD_CLOEXEC);
    char link[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(readlink(path, link, sizeof link - 1));
    STR_EQ(link, "anon_inode:[landlock-ruleset]");
    ERR(read(fd, link, 1), EINVAL);
    attr[7] = 1;
    ERR(create_ruleset(attr, sizeof attr, 0), E2BIG);
    attr[0] = 0;
    ERR(create_ruleset(attr, 8, 0), ENOMSG);
    attr[0] = 1ull << 40;
    ERR(create_ruleset(attr, 8, 0), EINVAL);
}

CASE(rules) {
    int ruleset = new_ruleset(READ_FILE | READ_DIR), here = OK(open(".", O_RDONLY)), file = create("f");
    struct landlock_path_beneath_attr rule = {.allowed_access = READ_FILE, .parent_fd = here};
    ERR(add_rule(-1, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EBADF);
    ERR(add_rule(here, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EBADFD);
    ERR(add_rule(ruleset, 99, &rule, 0), EINVAL);
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 1), EINVAL);
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, NULL, 0), EFAULT);
    OK(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0));
    rule.allowed_access = 0;
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), ENOMSG);
    rule.allowed_access = WRITE_FILE;
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EINVAL);
    rule = (struct landlock_path_beneath_attr){.allowed_access = READ_DIR, .parent_fd = file};
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EINVAL);
    rule.allowed_access = READ_FILE;
    OK(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0));
    rule.parent_fd = ruleset;
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EBADFD);
    int pipes[2];
    OK(pipe(pipes));
    rule.parent_fd = pipes[0];
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EBADFD);
    rule.parent_fd = 999;
    ERR(add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), EBADF);
}

CASE(who_may_restrict_itself) {
    int ruleset = new_ruleset(READ_FILE);
    OK(add(ruleset, "/", READ_FILE));
    AS_NOBODY({
        ERR(restrict_self(ruleset, 0), EPERM);
        ERR(restrict_self(-1, 1u << 31), EPERM);
        OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        ERR(restrict_self(ruleset, 1u << 31), EINVAL);
        ERR(restrict_self(-1, 0), EBADF);
        int file = OK(open("/", O_RDONLY));
        ERR(restrict_self(file, 0), EBADFD);
        OK(restrict_self(ruleset, 0));
    });
    // Root needs no promise.
    EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
    OK(restrict_self(ruleset, 0));
}

CASE(reading_and_writing) {
    directories();
    int before = OK(open("out/h", O_RDWR));
    int ruleset = new_ruleset(READ_FILE | WRITE_FILE | READ_DIR);
    OK(add(ruleset, "in", READ_FILE | READ_DIR));
    OK(add(ruleset, "in/deep", WRITE_FILE));
    enter(ruleset);
    OK(openable("in/f", O_RDONLY));
    OK(openable("in", O_RDONLY | O_DIRECTORY));
    OK(openable("in/deep", O_RDONLY));
    ERR(openable("in/f", O_WRONLY), EACCES);
    ERR(openable("in/f", O_RDWR), EACCES);
    OK(openable("in/deep/g", O_RDWR));
    ERR(openable("out/h", O_RDONLY), EACCES);
    ERR(openable("out", O_RDONLY), EACCES);
    ERR(openable(".", O_RDONLY), EACCES);
    ERR(openable("in/../out/h", O_RDONLY), EACCES);
    // What is not opened to be read or written.
    OK(openable("out/h", O_PATH));
    struct stat status;
    OK(stat("out/h", &status));
    OK(chmod("out/h", 0640));
    OK(chdir("out"));
    ERR(openable("h", O_RDONLY), EACCES);
    OK(chdir(".."));
    // What was open stays so, but is not opened once more.
    EQ(write(before, "x", 1), 1);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", before);
    ERR(openable(path, O_RDONLY), EACCES);
    // What it does not handle.
    OK(mkdir("out/new", 0700));
    OK(unlink("out/h"));
}

CASE(rules_follow_what_they_are_about) {
    directories();
    int ruleset = new_ruleset(READ_FILE);
    OK(add(ruleset, "in/deep", READ_FILE));
    OK(add(ruleset, "in/f", READ_FILE));
    enter(ruleset);
    OK(openable("in/f", O_RDONLY));
    OK(openable("in/deep/g", O_RDONLY));
    pid_t pid = OK(fork());
    if (pid == 0) {
        ERR(openable("out/h", O_RDONLY), EACCES);
        OK(rename("in/f", "in/other"));
        OK(openable("in/other", O_RDONLY));
        write_file("in/new", "");
        ERR(openable("in/new", O_RDONLY), EACCES);
        OK(rename("in/deep", "in/deeper"));
        OK(openable("in/deeper/g", O_RDONLY));
        OK(mkdir("in/deep", 0700));
        write_file("in/deep/g", "");
        ERR(openable("in/deep/g", O_RDONLY), EACCES);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(many_names_later_rules_hold) {
    OK(mkdir("in", 0700));
    write_file("in/f", "");
    int ruleset = new_ruleset(READ_FILE);
    OK(add(ruleset, "in/f", READ_FILE));
    enter(ruleset);
    char name[32];
    for (int i = 0; i < 6000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(close(OK(open(name, O_CREAT | O_WRONLY, 0600))));
    }
    OK(openable("in/f", O_RDONLY));
    ERR(openable("n5", O_RDONLY), EACCES);
    for (int i = 0; i < 6000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(unlink(name));
    }
}

CASE(making_and_removing) {
    directories();
    OK(mkdir("in/empty", 0700));
    OK(mkdir("out/empty", 0700));
    only(MAKES | REMOVE_DIR | REMOVE_FILE | WRITE_FILE, "in", MAKE_DIR | MAKE_REG | REMOVE_FILE | WRITE_FILE);
    OK(openable("in/new", O_CREAT | O_EXCL | O_WRONLY));
    OK(mkdir("in/dir", 0700));
    OK(unlink("in/f"));
    ERR(rmdir("in/empty"), EACCES);
    ERR(symlink("x", "in/link"), EACCES);
    ERR(mknod("in/fifo", S_IFIFO | 0600, 0), EACCES);
    OK(mknod("in/reg", S_IFREG | 0600, 0));
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "in/socket"};
    ERR(bind(fd, (struct sockaddr *)&name, sizeof name), EACCES);
    ERR(openable("out/new", O_CREAT | O_EXCL | O_WRONLY), EACCES);
    ERR(mkdir("out/dir", 0700), EACCES);
    ERR(unlink("out/h"), EACCES);
    ERR(rmdir("out/empty"), EACCES);
    ERR(openable("out/h", O_CREAT | O_WRONLY), EACCES);
    OK(openable("out/h", O_CREAT | O_RDONLY));
    struct stat status;
    ERR(stat("out/new", &status), ENOENT);
    // Errors that come first on Linux, too.
    ERR(mkdir("out/empty", 0700), EEXIST);
    ERR(unlink("out/none"), ENOENT);
}

CASE(every_kind_of_thing) {
    directories();
    only(MAKES, "in", MAKE_SYM | MAKE_FIFO | MAKE_SOCK);
    OK(symlink("x", "in/link"));
    OK(mkfifo("in/fifo", 0600));
    OK(mknod("in/socket", S_IFSOCK | 0600, 0));
    ERR(mkdir("in/dir", 0700), EACCES);
    ERR(mknod("in/null", S_IFCHR | 0600, 0x103), EACCES);
    ERR(mknod("in/loop", S_IFBLK | 0600, 0x700), EACCES);
    ERR(openable("in/new", O_CREAT | O_WRONLY), EACCES);
    ERR(symlink("x", "out/link"), EACCES);
    ERR(mkfifo("out/fifo", 0600), EACCES);
}

CASE(a_file_that_is_made_may_not_be_open) {
    directories();
    only(MAKE_REG | WRITE_FILE | READ_FILE, "in", MAKE_REG | WRITE_FILE);
    OK(openable("in/new", O_CREAT | O_WRONLY));
    ERR(openable("in/both", O_CREAT | O_RDWR), EACCES);
    // It is there all the same.
    OK(access("in/both", F_OK));
    int fd = open("in", O_TMPFILE | O_WRONLY, 0600);
    if (fd < 0) EQ(errno, EOPNOTSUPP);
    CHECK(open("in", O_TMPFILE | O_RDWR, 0600) == -1);
    CHECK(open("out", O_TMPFILE | O_WRONLY, 0600) == -1);
}

CASE(files_without_names_are_of_their_directory) {
    OK(mkdir("in", 0700));
    OK(mkdir("out", 0700));
    int probe = open("in", O_TMPFILE | O_RDWR, 0600);
    if (probe < 0) skip_case("no O_TMPFILE here");
    int secret = OK(open("out", O_TMPFILE | O_RDWR, 0600));
    EQ(write(secret, "secret", 6), 6);
    int ruleset = new_ruleset(READ_FILE | WRITE_FILE | MAKE_REG);
    OK(add(ruleset, "in", READ_FILE | WRITE_FILE | MAKE_REG));
    enter(ruleset);
    char own[64], other[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", probe);
    snprintf(other, sizeof other, "/proc/self/fd/%d", secret);
    OK(openable(own, O_RDWR));
    ERR(openable(other, O_RDONLY), EACCES);
    ERR(linkat(AT_FDCWD, other, AT_FDCWD, "in/got", AT_SYMLINK_FOLLOW), EXDEV);
    OK(linkat(AT_FDCWD, own, AT_FDCWD, "in/named", AT_SYMLINK_FOLLOW));
    OK(openable("in/named", O_RDONLY));
}

CASE(names_in_one_directory) {
    directories();
    write_file("in/second", "2");
    only(MAKES | REMOVE_DIR | REMOVE_FILE, "in", MAKE_REG | REMOVE_FILE);
    OK(rename("in/f", "in/renamed"));
    OK(rename("in/renamed", "in/second"));
    OK(link("in/second", "in/linked"));
    ERR(rename("in/deep", "in/deeper"), EACCES);
    ERR(rename("out/h", "out/i"), EACCES);
    ERR(link("out/h", "out/i"), EACCES);
    ERR(renameat2(AT_FDCWD, "in/deep", AT_FDCWD, "in/linked", RENAME_EXCHANGE), EACCES);
    OK(renameat2(AT_FDCWD, "in/second", AT_FDCWD, "in/linked", RENAME_EXCHANGE));
}

CASE(names_get_no_other_parents_unless_allowed) {
    directories();
    // Not even by who handles something else.
    only(READ_FILE, ".", READ_FILE);
    ERR(rename("in/f", "out/f"), EXDEV);
    ERR(link("in/f", "out/f"), EXDEV);
    ERR(rename("in/deep", "out/deep"), EXDEV);
    OK(rename("in/f", "in/i"));
    OK(openable("in/i", O_RDONLY));
}

CASE(names_get_other_parents_if_allowed) {
    directories();
    OK(mkdir("in/place", 0700));
    int ruleset = new_ruleset(REFER | MAKE_REG | MAKE_DIR | REMOVE_FILE | REMOVE_DIR);
    OK(add(ruleset, "in", REFER | MAKE_REG | REMOVE_FILE));
    OK(add(ruleset, "out", REFER));
    enter(ruleset);
    OK(rename("in/f", "in/place/f"));
    OK(link("in/place/f", "in/deep/linked"));
    ERR(rename("in/deep", "in/place/deep"), EACCES);
    ERR(rename("in/place/f", "out/f"), EACCES);
    ERR(link("in/place/f", "out/f"), EACCES);
    ERR(rename("out/h", "in/h"), EACCES);
    OK(link("out/h", "in/h"));
}

CASE(no_file_is_moved_to_where_it_may_be_used_more) {
    directories();
    int ruleset = new_ruleset(REFER | READ_FILE | WRITE_FILE);
    OK(add(ruleset, "in", REFER | READ_FILE));
    OK(add(ruleset, "out", REFER | READ_FILE | WRITE_FILE));
    enter(ruleset);
    ERR(rename("in/f", "out/f"), EXDEV);
    ERR(link("in/f", "out/f"), EXDEV);
    ERR(renameat2(AT_FDCWD, "in/f", AT_FDCWD, "out/h", RENAME_EXCHANGE), EXDEV);
    OK(link("out/h", "in/linked"));
    OK(rename("out/h", "in/h"));
    OK(openable("in/h", O_RDONLY));
    ERR(openable("in/h", O_WRONLY), EACCES);
    ERR(rename("in/h", "out/h"), EXDEV);
}

CASE(each_ruleset_has_to_allow_it) {
    directories();
    only(READ_FILE | WRITE_FILE, "in", READ_FILE | WRITE_FILE);
    only(WRITE_FILE, "in/deep", WRITE_FILE);
    OK(openable("in/deep/g", O_RDWR));
    OK(openable("in/f", O_RDONLY));
    ERR(openable("in/f", O_WRONLY), EACCES);
    ERR(openable("out/h", O_RDONLY), EACCES);
    // Nothing comes back.
    only(READ_FILE | WRITE_FILE, "out", READ_FILE | WRITE_FILE);
    ERR(openable("out/h", O_RDONLY), EACCES);
    ERR(openable("in/deep/g", O_RDONLY), EACCES);
}

CASE(sixteen_rulesets) {
    int ruleset = new_ruleset(MAKE_FIFO);
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    for (int i = 0; i < 16; i++) OK(restrict_self(ruleset, 0));
    ERR(restrict_self(ruleset, 0), E2BIG);
    ERR(mkfifo("f", 0600), EACCES);
    OK(mkdir("d", 0700));
}

CASE(later_rules_are_for_later) {
    directories();
    int ruleset = new_ruleset(READ_FILE);
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(restrict_self(ruleset, 0));
        OK(add(ruleset, "in", READ_FILE));
        ERR(openable("in/f", O_RDONLY), EACCES);
        _exit(0);
    }
    expect_exit(pid, 0);
    // The rule was added to what both have.
    OK(restrict_self(ruleset, 0));
    OK(openable("in/f", O_RDONLY));
    ERR(openable("out/h", O_RDONLY), EACCES);
}

static void *read_in(void *path) { return (void *)(intptr_t)(openable(path, O_RDONLY) == 0 ? 0 : errno); }

CASE(threads_and_children) {
    directories();
    int ruleset = new_ruleset(READ_FILE);
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    pthread_t thread;
    void *error;
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(restrict_self(ruleset, 0));
        ZERO(pthread_create(&thread, NULL, read_in, "in/f"));
        ZERO(pthread_join(thread, &error));
        EQ((intptr_t)error, EACCES);
        pid_t child = OK(fork());
        if (child == 0) {
            ERR(openable("in/f", O_RDONLY), EACCES);
            _exit(0);
        }
        expect_exit(child, 0);
        OK(setuid(1000));
        ERR(openable("in/f", O_RDONLY), EACCES);
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(openable("in/f", O_RDONLY));
}

int helper_main(int argc, char **argv) {
    if (argc < 3 || strcmp(argv[1], "--read") != 0) return -1;
    return openable(argv[2], O_RDONLY) == 0 ? 0 : errno;
}

static int run_reader(const char *program, const char *path) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        execl(program, program, "--read", path, NULL);
        _exit(200 + (errno == EACCES));
    }
    int status;
    OK(waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CASE(executing) {
    directories();
    int from = OK(open(self_path, O_RDONLY)), to = OK(open("in/program", O_CREAT | O_WRONLY, 0700));
    char bytes[4096];
    for (ssize_t n; (n = OK(read(from, bytes, sizeof bytes))) > 0;) EQ(write(to, bytes, n), n);
    OK(close(to));
    OK(link("in/program", "out/program"));
    int ruleset = new_ruleset(EXECUTE | READ_FILE);
    OK(add(ruleset, "in", EXECUTE | READ_FILE));
    OK(add(ruleset, "out", READ_FILE));
    // Where the loader and its libraries are, if it has some.
    const char *libraries[] = {"/lib", "/lib64", "/usr/lib"};
    for (int i = 0; i < 3; i++)
        if (access(libraries[i], F_OK) == 0) OK(add(ruleset, libraries[i], EXECUTE | READ_FILE));
    enter(ruleset);
    EQ(run_reader("in/program", "in/f"), 0);
    EQ(run_reader("in/program", "/etc/passwd"), EACCES);
    EQ(run_reader("out/program", "in/f"), 201);
}

CASE(mounts_stay_as_they_are) {
    own_mounts();
    OK(mkdir("m", 0700));
    OK(mount("none", "m", "tmpfs", 0, NULL));
    int ruleset = new_ruleset(MAKE_FIFO);
    OK(restrict_self(ruleset, 0));
    ERR(mount("none", "m", "tmpfs", 0, NULL), EPERM);
    ERR(mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL), EPERM);
    ERR(mount("m", "m", NULL, MS_BIND, NULL), EPERM);
    ERR(umount("m"), EPERM);
    ERR(umount2("m", MNT_DETACH), EPERM);
}

CASE(what_is_mounted_is_below_its_place) {
    own_mounts();
    directories();
    OK(mount("none", "in/deep", "tmpfs", 0, NULL));
    write_file("in/deep/t", "t");
    OK(mount("in", "out", NULL, MS_BIND, NULL));
    int ruleset = new_ruleset(READ_FILE);
    OK(add(ruleset, "in", READ_FILE));
    enter(ruleset);
    OK(openable("in/deep/t", O_RDONLY));
    OK(openable("in/f", O_RDONLY));
    // The same directory under another name.
    OK(openable("out/f", O_RDONLY));
}

CASE(what_has_no_place_is_free) {
    int memfd = OK(memfd_create("m", 0)), pipes[2];
    OK(pipe(pipes));
    int ruleset = new_ruleset(ALL);
    int proc = OK(open("/proc/self/fd", O_RDONLY | O_DIRECTORY));
    OK(add(ruleset, "/proc", READ_FILE | READ_DIR));
    enter(ruleset);
    char name[16];
    snprintf(name, sizeof name, "%d", memfd);
    OK(close(OK(openat(proc, name, O_RDWR))));
    snprintf(name, sizeof name, "%d", pipes[0]);
    OK(close(OK(openat(proc, name, O_RDONLY))));
    ERR(openable(".", O_RDONLY), EACCES);
}

CASE(chroot_is_no_way_out) {
    directories();
    OK(mkdir("in/root", 0700));
    write_file("in/root/f", "");
    int ruleset = new_ruleset(READ_FILE);
    OK(add(ruleset, "in", READ_FILE));
    enter(ruleset);
    int above = OK(open(".", O_PATH));
    OK(chroot("in/root"));
    OK(openable("/f", O_RDONLY));
    ERR(openat(above, "out/h", O_RDONLY), EACCES);
}

CASE(others_are_looked_into_from_above_only) {
    int ruleset = new_ruleset(MAKE_FIFO), ready[2];
    OK(pipe(ready));
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        OK(restrict_self(ruleset, 0));
        ERR(ptrace(PTRACE_ATTACH, parent, 0, 0), EPERM);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", parent);
        CHECK(open(path, O_RDONLY) == -1);
        EQ(write(ready[1], "x", 1), 1);
        pause();
    }
    char byte;
    EQ(read(ready[0], &byte, 1), 1);
    OK(ptrace(PTRACE_ATTACH, pid, 0, 0));
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSTOPPED(status));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    // Who would be traced by somebody with less.
    int asks[2], answers[2];
    OK(pipe(asks));
    OK(pipe(answers));
    pid = OK(fork());
    if (pid == 0) {
        EQ(read(asks[0], &byte, 1), 1);
        ERR(ptrace(PTRACE_TRACEME, 0, 0, 0), EPERM);
        _exit(0);
    }
    OK(restrict_self(ruleset, 0));
    EQ(write(asks[1], "x", 1), 1);
    expect_exit(pid, 0);
}
