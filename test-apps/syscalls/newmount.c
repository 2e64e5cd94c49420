// Mounts by descriptors: fsopen(2), fsconfig(2), fsmount(2), fspick(2), open_tree(2), move_mount(2), mount_setattr(2),
// statmount(2), listmount(2). What they do is compared with what mount(2) does, as /proc/self/mountinfo shows it.
#include "harness.h"

#include <linux/mount.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x200000
#endif
enum { STATMOUNT = 457, LISTMOUNT = 458, SET_GROUP = 0x100, UNIQUE = 0x4000 };

static int fs_open(const char *type, unsigned flags) { return (int)syscall(SYS_fsopen, type, flags); }
static int fs_config(int fd, unsigned cmd, const char *key, const void *value, int aux) { return (int)syscall(SYS_fsconfig, fd, cmd, key, value, aux); }
static int fs_mount(int fd, unsigned flags, unsigned attributes) { return (int)syscall(SYS_fsmount, fd, flags, attributes); }
static int fs_pick(int dir, const char *path, unsigned flags) { return (int)syscall(SYS_fspick, dir, path, flags); }
static int tree(int dir, const char *path, unsigned flags) { return (int)syscall(SYS_open_tree, dir, path, flags); }
static int move(int from, const char *path, int to, const char *to_path, unsigned flags) { return (int)syscall(SYS_move_mount, from, path, to, to_path, flags); }
static int set_attributes(int dir, const char *path, unsigned flags, struct mount_attr attr) {
    return (int)syscall(SYS_mount_setattr, dir, path, flags, &attr, sizeof attr);
}
static int at(int mount, const char *path) { return move(mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH); }
static int set(int fd, const char *key, const char *value) { return fs_config(fd, value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, key, value, 0); }

static void begin(void) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
}

// A new tmpfs that lies nowhere.
static int tmpfs(unsigned attributes) {
    int fd = OK(fs_open("tmpfs", FSOPEN_CLOEXEC));
    OK(set(fd, "source", "new"));
    OK(set(fd, "size", "1m"));
    OK(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    int mount = OK(fs_mount(fd, FSMOUNT_CLOEXEC, attributes));
    close(fd);
    return mount;
}

// The line of mountinfo of what is mounted last at `path`, from the options on; its numbers of peer groups are not compared.
static bool line_of(const char *path, char *out, size_t size) {
    char line[4096], real[PATH_MAX];
    bool found = false;
    CHECK(realpath(path, real));
    FILE *all = fopen("/proc/self/mountinfo", "r");
    CHECK(all);
    while (fgets(line, sizeof line, all)) {
        char point[4096];
        int rest = 0;
        if (sscanf(line, "%*d %*d %*s %*s %4095s %n", point, &rest) == 1 && strcmp(point, real) == 0) {
            snprintf(out, size, "%s", line + rest);
            found = true;
        }
    }
    fclose(all);
    return found;
}

static void same_lines(const char *one, const char *other) {
    char a[4096] = "", b[4096] = "";
    CHECK(line_of(one, a, sizeof a));
    CHECK(line_of(other, b, sizeof b));
    STR_EQ(a, b);
}

CASE(a_tmpfs_piece_by_piece) {
    begin();
    int fd = OK(fs_open("tmpfs", 0));
    OK(set(fd, "source", "new"));
    OK(set(fd, "size", "64k"));
    OK(set(fd, "mode", "700"));
    OK(set(fd, "mode", "710"));
    OK(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    int mount = OK(fs_mount(fd, 0, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
    char line[4096];
    CHECK(!line_of("a", line, sizeof line));
    OK(at(mount, "a"));
    OK(syscall(SYS_mount, "new", "b", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=710"));
    same_lines("a", "b");
    struct statfs s;
    OK(statfs("a", &s));
    EQ(s.f_blocks * s.f_bsize, 65536);
    // Once is enough.
    ERR(fs_mount(fd, 0, 0), EBUSY);
}

CASE(attributes_of_a_new_mount) {
    begin();
    const struct {
        unsigned attributes;
        unsigned long flags;
    } all[] = {
        {0, 0},
        {MOUNT_ATTR_RDONLY, MS_RDONLY},
        {MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOATIME, MS_NOEXEC | MS_NOATIME},
        {MOUNT_ATTR_STRICTATIME | MOUNT_ATTR_NODIRATIME, MS_STRICTATIME | MS_NODIRATIME},
        {MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSYMFOLLOW, MS_NODEV | MS_NOSYMFOLLOW},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        int mount = tmpfs(all[i].attributes);
        OK(at(mount, "a"));
        close(mount);
        OK(syscall(SYS_mount, "new", "b", "tmpfs", all[i].flags & ~MS_RDONLY, "size=1m"));
        if (all[i].flags & MS_RDONLY) OK(syscall(SYS_mount, NULL, "b", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
        same_lines("a", "b");
        OK(umount("a"));
        OK(umount("b"));
    }
}

CASE(a_mount_that_lies_nowhere_is_used_by_its_descriptor) {
    begin();
    int mount = tmpfs(0);
    int file = OK(openat(mount, "f", O_RDWR | O_CREAT, 0644));
    OK(write(file, "there", 5));
    OK(mkdirat(mount, "d", 0755));
    ERR(read(mount, (char[1]){0}, 1), EBADF);
    int below = OK(openat(mount, "d", O_PATH));
    // Only its root can be moved, and nothing is mounted on it.
    ERR(at(below, "a"), EINVAL);
    OK(fchdir(mount));
    ERR(syscall(SYS_mount, "x", "d", "tmpfs", 0, NULL), EINVAL);
    ERR(umount2(".", MNT_DETACH), EINVAL);
    OK(chdir("d"));
    char here[PATH_MAX];
    OK(syscall(SYS_getcwd, here, sizeof here));
    STR_EQ(here, "(unreachable)/d");
    close(mount);
    // The file stays, as after umount(2).
    char text[6] = "";
    EQ(pread(file, text, 5, 0), 5);
    STR_EQ(text, "there");
}

CASE(a_mount_outlives_its_descriptor_once_it_lies_somewhere) {
    begin();
    int mount = tmpfs(0);
    int again = OK(dup(mount));
    OK(close(mount));
    int other = OK(openat(again, ".", O_PATH));
    close(OK(openat(again, "f", O_RDWR | O_CREAT, 0644)));
    // By another descriptor of the same place.
    OK(at(other, "a"));
    OK(close(again));
    OK(close(other));
    OK(access("a/f", F_OK));
    OK(umount("a"));
    ERR(access("a/f", F_OK), ENOENT);
}

CASE(a_descriptor_that_is_closed_takes_the_mount_along) {
    begin();
    OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    int lost = tmpfs(0), other = OK(openat(lost, ".", O_PATH));
    close(lost);
    ERR(at(other, "a"), EINVAL);
    int moved = tmpfs(0);
    OK(at(moved, "a"));
    // Now it is moved as others are.
    OK(mount("a", "b", NULL, MS_MOVE, NULL));
}

CASE(mounts_move_by_path) {
    begin();
    OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    OK(mount("new", "a", "tmpfs", 0, NULL));
    close(OK(open("a/f", O_RDWR | O_CREAT, 0644)));
    OK(move(AT_FDCWD, "a", AT_FDCWD, "b", 0));
    OK(access("b/f", F_OK));
    ERR(access("a/f", F_OK), ENOENT);
    ERR(move(AT_FDCWD, "a", AT_FDCWD, "b", 0), EINVAL);
    OK(mkdir("b/d", 0755));
    ERR(move(AT_FDCWD, "b", AT_FDCWD, "b/d", 0), ELOOP);
    ERR(move(AT_FDCWD, "b/f", AT_FDCWD, "a", 0), EINVAL);
    write_file("file", "");
    ERR(move(AT_FDCWD, "b", AT_FDCWD, "file", 0), EINVAL);
    ERR(move(AT_FDCWD, "none", AT_FDCWD, "a", 0), ENOENT);
    ERR(move(AT_FDCWD, "", AT_FDCWD, "a", 0), ENOENT);
    ERR(move(AT_FDCWD, "b", AT_FDCWD, "a", 0x8000), EINVAL);
    OK(symlink("b", "to_b"));
    ERR(move(AT_FDCWD, "to_b", AT_FDCWD, "a", 0), EINVAL);
    OK(move(AT_FDCWD, "to_b", AT_FDCWD, "a", MOVE_MOUNT_F_SYMLINKS));
    OK(access("a/f", F_OK));
    int to = OK(open("b", O_PATH));
    OK(move(AT_FDCWD, "a", to, "", MOVE_MOUNT_T_EMPTY_PATH));
    OK(access("b/f", F_OK));
}

CASE(trees_are_copied) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, NULL));
    OK(mkdir("a/in", 0755));
    OK(mount("inner", "a/in", "tmpfs", 0, NULL));
    close(OK(open("a/in/f", O_RDWR | O_CREAT, 0644)));
    int one = OK(tree(AT_FDCWD, "a", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    EQ(fcntl(one, F_GETFD), FD_CLOEXEC);
    ERR(faccessat(one, "in/f", F_OK, 0), ENOENT);
    int all = OK(tree(AT_FDCWD, "a", OPEN_TREE_CLONE | AT_RECURSIVE));
    OK(faccessat(all, "in/f", F_OK, 0));
    OK(at(all, "b"));
    close(all);
    OK(access("b/in/f", F_OK));
    OK(umount2("b", MNT_DETACH));
    OK(at(one, "b"));
    ERR(access("b/in/f", F_OK), ENOENT);
    OK(umount("a/in"));
    OK(umount("a"));
    OK(access("b/in", F_OK));
    // A copy of a part, and of a file.
    int part = OK(tree(AT_FDCWD, "b/in", OPEN_TREE_CLONE));
    OK(at(part, "a"));
    write_file("f", "one"), write_file("g", "other");
    int file = OK(tree(AT_FDCWD, "f", OPEN_TREE_CLONE));
    ERR(at(file, "a"), EINVAL);
    OK(at(file, "g"));
    char text[8] = "";
    read_file("g", text, sizeof text);
    STR_EQ(text, "one");
    OK(umount2("g", MNT_DETACH));
}

CASE(trees_that_are_not_copied) {
    begin();
    int plain = OK(tree(AT_FDCWD, "a", 0));
    EQ(fcntl(plain, F_GETFL) & O_PATH, O_PATH);
    ERR(at(plain, "b"), EINVAL);
    ERR(tree(AT_FDCWD, "a", AT_RECURSIVE), EINVAL);
    ERR(tree(AT_FDCWD, "a", 2), EINVAL);
    ERR(tree(AT_FDCWD, "none", OPEN_TREE_CLONE), ENOENT);
    ERR(tree(plain, "", OPEN_TREE_CLONE), ENOENT);
    close(OK(tree(plain, "", OPEN_TREE_CLONE | AT_EMPTY_PATH)));
    OK(mount("new", "a", "tmpfs", 0, NULL));
    OK(mount(NULL, "a", NULL, MS_UNBINDABLE, NULL));
    ERR(tree(AT_FDCWD, "a", OPEN_TREE_CLONE), EINVAL);
    OK(chmod(".", 0755));
    AS_NOBODY({
        ERR(tree(AT_FDCWD, "a", OPEN_TREE_CLONE), EPERM);
        close(OK(tree(AT_FDCWD, "a", 0)));
        ERR(fs_open("tmpfs", 0), EPERM);
        ERR(fs_pick(AT_FDCWD, "a", 0), EPERM);
        ERR(move(AT_FDCWD, "a", AT_FDCWD, "b", 0), EPERM);
        ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_set = MOUNT_ATTR_RDONLY}), EPERM);
    });
}

CASE(contexts_in_the_wrong_order) {
    begin();
    int fd = OK(fs_open("tmpfs", 0));
    ERR(fs_mount(fd, 0, 0), EINVAL);
    ERR(fs_config(fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0), EBUSY);
    OK(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    ERR(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBUSY);
    ERR(set(fd, "size", "1m"), EBUSY);
    ERR(fs_mount(fd, 2, 0), EINVAL);
    ERR(fs_mount(fd, 0, 0x30), EINVAL);
    ERR(fs_mount(fd, 0, 0x400), EINVAL);
    OK(fs_mount(fd, 0, 0));
    ERR(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBUSY);
    ERR(fs_open("no such type", 0), ENODEV);
    ERR(fs_open("tmpfs", 2), EINVAL);
    ERR(fs_open(NULL, 0), EFAULT);
    ERR(fs_mount(OK(open("a", O_RDONLY)), 0, 0), EINVAL);
    ERR(fs_mount(999, 0, 0), EBADF);
}

CASE(options_that_make_no_sense_are_told_of) {
    begin();
    int fd = OK(fs_open("tmpfs", 0));
    char text[256];
    ERR(read(fd, text, sizeof text), ENODATA);
    ERR(set(fd, "nonsense", "1"), EINVAL);
    ERR(read(fd, text, 3), EMSGSIZE);
    ssize_t n = OK(read(fd, text, sizeof text - 1));
    text[n] = 0;
    CHECK(strncmp(text, "e tmpfs: ", 9) == 0 && strstr(text, "nonsense"));
    ERR(read(fd, text, sizeof text), ENODATA);
    ERR(set(fd, "size", "much"), EINVAL);
    ERR(fs_config(fd, FSCONFIG_SET_FLAG, NULL, NULL, 0), EINVAL);
    ERR(fs_config(fd, FSCONFIG_SET_FLAG, "ro", "x", 0), EINVAL);
    ERR(fs_config(fd, FSCONFIG_SET_STRING, "size", NULL, 0), EINVAL);
    ERR(fs_config(fd, FSCONFIG_SET_STRING, "size", "1m", 1), EINVAL);
    ERR(fs_config(fd, FSCONFIG_SET_FD, "size", NULL, -1), EINVAL);
    ERR(fs_config(fd, FSCONFIG_CMD_CREATE, "x", NULL, 0), EINVAL);
    ERR(fs_config(fd, 99, NULL, NULL, 0), EOPNOTSUPP);
    ERR(fs_config(-1, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EINVAL);
    ERR(fs_config(999, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBADF);
    ERR(fs_config(OK(open("a", O_RDONLY)), FSCONFIG_CMD_CREATE, NULL, NULL, 0), EINVAL);
    char longer[300];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    ERR(set(fd, longer, NULL), EINVAL);
    OK(set(fd, "source", "one"));
    ERR(set(fd, "source", "two"), EINVAL);
    OK(set(fd, "size", "1m"));
    OK(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
}

CASE(file_systems_take_other_options) {
    begin();
    int mount = tmpfs(0);
    OK(at(mount, "a"));
    close(mount);
    int fd = OK(fs_pick(AT_FDCWD, "a", FSPICK_CLOEXEC));
    OK(set(fd, "size", "2m"));
    OK(fs_config(fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0));
    struct statfs s;
    OK(statfs("a", &s));
    EQ(s.f_blocks * s.f_bsize, 2 << 20);
    OK(set(fd, "ro", NULL));
    int writer = OK(open("a/f", O_RDWR | O_CREAT, 0644));
    ERR(fs_config(fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0), EBUSY);
    close(writer);
    ERR(fs_config(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0), EBUSY);
    int again = OK(fs_pick(AT_FDCWD, "a", 0));
    OK(set(again, "ro", NULL));
    OK(fs_config(again, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0));
    ERR(open("a/g", O_RDWR | O_CREAT, 0644), EROFS);
    char line[4096];
    CHECK(line_of("a", line, sizeof line));
    CHECK(strncmp(line, "rw", 2) == 0 && strstr(line, " ro"));
    ERR(fs_pick(AT_FDCWD, "b", 0), EINVAL);
    ERR(fs_pick(AT_FDCWD, "none", 0), ENOENT);
    ERR(fs_pick(AT_FDCWD, "a", 0x10), EINVAL);
}

CASE(attributes_change) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, "size=1m"));
    OK(mount("new", "b", "tmpfs", 0, "size=1m"));
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC}));
    OK(mount(NULL, "b", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOEXEC, NULL));
    same_lines("a", "b");
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR_RDONLY, .attr_set = MOUNT_ATTR_NODEV}));
    OK(mount(NULL, "b", NULL, MS_REMOUNT | MS_BIND | MS_NOEXEC | MS_NODEV, NULL));
    same_lines("a", "b");
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR__ATIME, .attr_set = MOUNT_ATTR_NOATIME}));
    OK(mount(NULL, "b", NULL, MS_REMOUNT | MS_BIND | MS_NOEXEC | MS_NODEV | MS_NOATIME, NULL));
    same_lines("a", "b");
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR__ATIME, .attr_set = MOUNT_ATTR_STRICTATIME}));
    char line[4096];
    CHECK(line_of("a", line, sizeof line));
    CHECK(!strstr(line, "atime"));
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR__ATIME | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV}));
    CHECK(line_of("a", line, sizeof line));
    CHECK(strstr(line, "relatime") && !strstr(line, "noexec"));
    int writer = OK(open("a/f", O_RDWR | O_CREAT, 0644));
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_set = MOUNT_ATTR_RDONLY}), EBUSY);
    close(writer);
}

CASE(attributes_change_in_all_of_a_tree_or_none) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, NULL));
    OK(mkdir("a/in", 0755));
    OK(mount("inner", "a/in", "tmpfs", 0, NULL));
    int writer = OK(open("a/in/f", O_RDWR | O_CREAT, 0644));
    struct mount_attr readonly = {.attr_set = MOUNT_ATTR_RDONLY};
    ERR(set_attributes(AT_FDCWD, "a", AT_RECURSIVE, readonly), EBUSY);
    close(OK(open("a/g", O_RDWR | O_CREAT, 0644)));
    close(writer);
    OK(set_attributes(AT_FDCWD, "a", AT_RECURSIVE, readonly));
    ERR(open("a/h", O_RDWR | O_CREAT, 0644), EROFS);
    ERR(open("a/in/h", O_RDWR | O_CREAT, 0644), EROFS);
    // Of a tree that lies nowhere, too.
    int fd = OK(tree(AT_FDCWD, "a", OPEN_TREE_CLONE | AT_RECURSIVE));
    OK(set_attributes(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, (struct mount_attr){.attr_clr = MOUNT_ATTR_RDONLY}));
    close(OK(openat(fd, "in/h", O_RDWR | O_CREAT, 0644)));
    ERR(open("a/in/i", O_RDWR | O_CREAT, 0644), EROFS);
}

CASE(attributes_that_make_no_sense) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, NULL));
    ERR(set_attributes(AT_FDCWD, "a", 1, (struct mount_attr){.attr_set = 1}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_set = 0x400}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_set = MOUNT_ATTR_NOATIME}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR_NOATIME}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.attr_clr = MOUNT_ATTR__ATIME, .attr_set = MOUNT_ATTR__ATIME}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.propagation = MS_SHARED | MS_SLAVE}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.propagation = MS_RDONLY}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "b", 0, (struct mount_attr){.attr_set = 1}), EINVAL);
    ERR(set_attributes(AT_FDCWD, "none", 0, (struct mount_attr){.attr_set = 1}), ENOENT);
    // Nothing is asked for, so nothing is looked for.
    OK(set_attributes(AT_FDCWD, "none", 0, (struct mount_attr){0}));
    struct {
        struct mount_attr known;
        uint64_t more;
    } longer = {{.attr_set = 1}, 1};
    ERR(syscall(SYS_mount_setattr, AT_FDCWD, "a", 0, &longer, sizeof longer), E2BIG);
    ERR(syscall(SYS_mount_setattr, AT_FDCWD, "a", 0, &longer, 31), EINVAL);
    longer.more = 0;
    OK(syscall(SYS_mount_setattr, AT_FDCWD, "a", 0, &longer, sizeof longer));
}

CASE(propagation_by_attributes) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, "size=1m"));
    OK(mount(NULL, "a", NULL, MS_PRIVATE, NULL));
    OK(set_attributes(AT_FDCWD, "a", 0, (struct mount_attr){.propagation = MS_SHARED}));
    char line[4096];
    CHECK(line_of("a", line, sizeof line) && strstr(line, "shared:"));
    // A copy of a shared mount is its peer.
    int fd = OK(tree(AT_FDCWD, "a", OPEN_TREE_CLONE));
    OK(at(fd, "b"));
    same_lines("a", "b");
    OK(mkdir("a/in", 0755));
    OK(mount("inner", "a/in", "tmpfs", 0, NULL));
    CHECK(line_of("b/in", line, sizeof line));
    OK(umount("a/in"));
    OK(set_attributes(AT_FDCWD, "b", 0, (struct mount_attr){.propagation = MS_SLAVE}));
    CHECK(line_of("b", line, sizeof line) && strstr(line, "master:") && !strstr(line, "shared:"));
    OK(set_attributes(AT_FDCWD, "b", 0, (struct mount_attr){.propagation = MS_UNBINDABLE}));
    ERR(tree(AT_FDCWD, "b", OPEN_TREE_CLONE), EINVAL);
    OK(set_attributes(AT_FDCWD, "b", 0, (struct mount_attr){.propagation = MS_PRIVATE}));
    CHECK(line_of("b", line, sizeof line) && !strstr(line, "unbindable"));
}

CASE(a_mount_gets_the_peers_of_another) {
    begin();
    OK(mount("new", "a", "tmpfs", 0, "size=1m"));
    OK(mount(NULL, "a", NULL, MS_PRIVATE, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mount(NULL, "b", NULL, MS_PRIVATE, NULL));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(move(AT_FDCWD, "a", AT_FDCWD, "b", SET_GROUP));
    same_lines("a", "b");
    // It is not private any more.
    ERR(move(AT_FDCWD, "a", AT_FDCWD, "b", SET_GROUP), EINVAL);
    OK(mkdir("c", 0755));
    OK(mount("other", "c", "tmpfs", 0, NULL));
    OK(mount(NULL, "c", NULL, MS_PRIVATE, NULL));
    ERR(move(AT_FDCWD, "a", AT_FDCWD, "c", SET_GROUP), EINVAL);
    OK(mkdir("d", 0755));
    ERR(move(AT_FDCWD, "d", AT_FDCWD, "c", SET_GROUP), EINVAL);
}

CASE(the_new_mount_is_propagated) {
    begin();
    OK(mount("base", "a", "tmpfs", 0, NULL));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mkdir("a/in", 0755));
    int mount = tmpfs(0);
    close(OK(openat(mount, "f", O_RDWR | O_CREAT, 0644)));
    OK(at(mount, "a/in"));
    OK(access("b/in/f", F_OK));
    close(mount);
    OK(umount("b/in"));
    ERR(access("a/in/f", F_OK), ENOENT);
}

CASE(mounts_come_and_go) {
    begin();
    for (int i = 0; i < 200; i++) {
        int one = tmpfs(0), other = OK(tree(one, "", AT_EMPTY_PATH));
        if (i % 3 == 0) OK(at(i % 2 ? one : other, "a"));
        close(one);
        close(other);
        if (i % 3 == 0) OK(umount("a"));
    }
}

// A child in a mount namespace of its own, as an ordinary user's root, that has mounted something on `file` and `dir`.
static pid_t mounter(const char *file, const char *dir) {
    int ready[2];
    char byte;
    OK(pipe(ready));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setgid(1000));
        OK(setuid(1000));
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) _exit(77);
        OK(mount("/dev/null", file, NULL, MS_BIND, NULL));
        OK(mount("t", dir, "tmpfs", 0, NULL));
        OK(write(ready[1], "", 1));
        for (;;) pause();
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) {
        expect_exit(pid, 77);
        skip_case("users may make no namespaces");
    }
    close(ready[0]);
    return pid;
}

CASE(mounts_of_others_keep_nobody_from_removing) {
    begin();
    OK(chmod(".", 0755));
    write_file("f", "old"), write_file("g", "new"), write_file("h", "");
    pid_t pid = mounter("f", "a");
    OK(rename("g", "f"));
    char text[8] = "";
    read_file("f", text, sizeof text);
    STR_EQ(text, "new");
    OK(rmdir("a"));
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
    pid = mounter("h", "b");
    OK(unlink("h"));
    // One's own stay.
    OK(mount("t", "b", "tmpfs", 0, NULL));
    ERR(rmdir("b"), EBUSY);
    OK(umount("b"));
    OK(rmdir("b"));
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
    // And of mounts that lie nowhere.
    OK(mkdir("c", 0755));
    OK(mount("t", "c", "tmpfs", 0, NULL));
    OK(mkdir("c/in", 0755));
    OK(mount("t", "c/in", "tmpfs", 0, NULL));
    int all = OK(tree(AT_FDCWD, "c", OPEN_TREE_CLONE | AT_RECURSIVE));
    OK(umount("c/in"));
    OK(rmdir("c/in"));
    close(all);
}

CASE(deep_trees_go_with_their_file_system) {
    begin();
    enum { DEPTH = 5000 };
    OK(mount("t", "a", "tmpfs", 0, "size=64m"));
    int top = OK(open(".", O_PATH));
    OK(chdir("a"));
    for (int i = 0; i < DEPTH; i++) {
        OK(mkdir("d", 0755));
        close(OK(open("f", O_RDWR | O_CREAT, 0644)));
        OK(chdir("d"));
    }
    OK(fchdir(top));
    OK(umount("a"));
    OK(access("a", F_OK));
}

CASE(deep_directories_are_removed_from_below) {
    enum { DEPTH = 5000 };
    int depth = 0, top = OK(open(".", O_PATH));
    // File systems of Linux may have less room for the path that they look for.
    while (depth < DEPTH && mkdir("d", 0755) == 0 && chdir("d") == 0) depth++;
    CHECK(depth > 500);
    int lowest = OK(open(".", O_PATH));
    for (; depth > 0; depth--) {
        OK(chdir(".."));
        OK(rmdir("d"));
    }
    OK(fchdir(top));
    close(lowest);
    OK(access(".", F_OK));
}

// ---- statmount, listmount ----

struct request {
    uint32_t size, spare;
    uint64_t id, param;
};
struct about {
    uint32_t size, opts;
    uint64_t mask;
    uint32_t major, minor;
    uint64_t magic;
    uint32_t sb_flags, type;
    uint64_t id, parent;
    uint32_t old_id, old_parent;
    uint64_t attributes, propagation, group, master, from;
    uint32_t root, point;
    uint64_t ns;
    uint32_t subtype, source;
    uint64_t rest[48];
    char texts[4096];
};

static uint64_t unique(const char *path) {
    struct statx x;
    OK(statx(AT_FDCWD, path, 0, UNIQUE, &x));
    if (!(x.stx_mask & UNIQUE)) skip_case("the kernel has no unique numbers");
    return x.stx_mnt_id;
}

static long about(uint64_t id, uint64_t mask, struct about *out, size_t size) {
    struct request r = {24, 0, id, mask};
    return syscall(STATMOUNT, &r, out, size, 0);
}

CASE(a_mount_by_its_number) {
    begin();
    OK(mount("new", "a", "tmpfs", MS_NOEXEC, "size=1m"));
    OK(mount(NULL, "a", NULL, MS_SHARED, NULL));
    uint64_t id = unique("a");
    CHECK(id > 1u << 31);
    struct about s = {0};
    OK(about(id, 1 | 2 | 8 | 16 | 32 | 128, &s, sizeof s));
    EQ(s.mask & 0xff, 1 | 2 | 8 | 16 | 32 | 128);
    EQ(s.id, id);
    EQ(s.parent, unique("."));
    EQ(s.magic, 0x01021994);
    EQ(s.attributes, MOUNT_ATTR_NOEXEC);
    EQ(s.propagation, MS_SHARED);
    CHECK(s.group > 0);
    EQ(s.master, 0);
    STR_EQ(s.texts + s.type, "tmpfs");
    STR_EQ(s.texts + s.root, "/");
    char real[PATH_MAX];
    CHECK(realpath("a", real));
    STR_EQ(s.texts + s.point, real);
    CHECK(strstr(s.texts + s.opts, "size=1024k"));
    struct statx x;
    OK(statx(AT_FDCWD, "a", 0, STATX_MNT_ID, &x));
    EQ(s.old_id, x.stx_mnt_id);
    EQ(s.major, x.stx_dev_major);
    EQ(s.minor, x.stx_dev_minor);
    OK(mount(NULL, "a", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    OK(about(id, 1, &s, 512));
    EQ(s.sb_flags & MS_RDONLY, MS_RDONLY);
    OK(umount("a"));
    ERR(about(id, 1, &s, sizeof s), ENOENT);
}

CASE(questions_about_mounts_that_make_no_sense) {
    begin();
    uint64_t id = unique(".");
    struct about s;
    OK(about(id, 2, &s, 64));
    ERR(about(id, 32, &s, 512), EOVERFLOW);
    ERR(about(5, 2, &s, sizeof s), EINVAL);
    ERR(about(id + 1000000, 2, &s, sizeof s), ENOENT);
    struct request r = {23, 0, id, 2};
    ERR(syscall(STATMOUNT, &r, &s, sizeof s, 0), EINVAL);
    r = (struct request){4097, 0, id, 2};
    ERR(syscall(STATMOUNT, &r, &s, sizeof s, 0), E2BIG);
    ERR(syscall(STATMOUNT, NULL, &s, sizeof s, 0), EFAULT);
    r = (struct request){24, 0, id, 2};
    ERR(syscall(STATMOUNT, &r, &s, sizeof s, 8), EINVAL);
    ERR(syscall(STATMOUNT, &r, NULL, sizeof s, 0), EFAULT);
}

static long list(uint64_t id, uint64_t last, uint64_t *ids, size_t count, unsigned flags) {
    struct request r = {24, 0, id, last};
    return syscall(LISTMOUNT, &r, ids, count, flags);
}

CASE(mounts_are_listed) {
    begin();
    unique(".");
    OK(mount("new", "a", "tmpfs", 0, NULL));
    OK(mkdir("a/in", 0755));
    OK(mount("inner", "a/in", "tmpfs", 0, NULL));
    OK(mount("inner", "a/in", "tmpfs", 0, NULL));
    uint64_t ids[512], some[2];
    // In the tests' machine there may be many.
    long all = OK(list(UINT64_MAX, 0, ids, 512, 0));
    CHECK(all >= 4);
    for (long i = 1; i < all; i++) CHECK(ids[i] > ids[i - 1]);
    long below = OK(list(unique("a"), 0, ids, 512, 0));
    EQ(below, 2);
    EQ(ids[1], unique("a/in"));
    EQ(list(unique("a"), ids[0], some, 2, 0), 1);
    EQ(some[0], ids[1]);
    EQ(list(unique("a"), 0, some, 1, 0), 1);
    EQ(some[0], ids[0]);
    EQ(list(unique("a"), 0, some, 0, 0), 0);
    EQ(list(unique("a/in"), 0, some, 2, 0), 0);
    ERR(list(unique("a"), 5, some, 2, 0), EINVAL);
    ERR(list(5, 0, some, 2, 0), EINVAL);
    ERR(list(unique("a") + 1000000, 0, some, 2, 0), ENOENT);
    ERR(list(unique("a"), 0, some, 2, 8), EINVAL);
    ERR(list(unique("a"), 0, some, 1000001, 0), EOVERFLOW);
    if (list(unique("a"), 0, some, 2, 1) == -1 && errno == EINVAL) skip_case("the kernel lists in one order only");
    EQ(list(unique("a"), 0, some, 2, 1), 2);
    EQ(some[0], ids[1]);
    EQ(list(unique("a"), ids[1], some, 2, 1), 1);
    EQ(some[0], ids[0]);
}

CASE(who_is_shut_in_does_not_see_mounts_outside) {
    begin();
    uint64_t outside = unique(".");
    OK(mount("new", "a", "tmpfs", 0, NULL));
    uint64_t inside = unique("a");
    OK(chmod(".", 0755));
    OK(chroot("a"));
    OK(chdir("/"));
    AS_NOBODY({
        struct about s;
        OK(about(inside, 2, &s, sizeof s));
        ERR(about(outside, 2, &s, sizeof s), EPERM);
        uint64_t ids[4];
        EQ(list(UINT64_MAX, 0, ids, 4, 0), 1);
        EQ(ids[0], inside);
        ERR(list(outside, 0, ids, 4, 0), EPERM);
    });
    struct about s = {0};
    OK(about(outside, 2 | 16, &s, sizeof s));
}
