// mount(2) and umount2(2), and how much of them there can be. On Linux itself in a mount namespace of its own; where there is only one, in that.
#include "harness.h"

#include <sys/mount.h>

static void needs_mounts(void) {
    if (geteuid() != 0) skip_case("needs root");
    if (unshare(CLONE_NEWNS) == 0) {
        OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    } else {
        EQ(errno, EPERM);
    }
    OK(mkdir("here", 0755));
    if (mount("none", "here", "tmpfs", 0, NULL) == -1 && errno == EPERM) skip_case("may not mount");
    OK(chdir("here"));
}

static void leave(void) {
    OK(chdir("/"));
}

// How many mounts there are.
static int count_mounts(void) {
    int fd = OK(open("/proc/self/mountinfo", O_RDONLY)), lines = 0;
    static char text[65536];
    for (ssize_t n; (n = OK(read(fd, text, sizeof text))) > 0;)
        for (ssize_t i = 0; i < n; i++) lines += text[i] == '\n';
    OK(close(fd));
    return lines;
}

static void make_tree(void) {
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, NULL));
    OK(mkdir("a/b", 0755));
    OK(mount("none", "a/b", "tmpfs", 0, NULL));
    write_file("a/b/file", "text");
}

CASE(recursive_bind_takes_what_lies_below) {
    needs_mounts();
    make_tree();
    OK(mkdir("flat", 0755));
    OK(mkdir("deep", 0755));
    OK(mount("a", "flat", NULL, MS_BIND, NULL));
    ERR(access("flat/b/file", F_OK), ENOENT);
    int before = count_mounts();
    OK(mount("a", "deep", NULL, MS_BIND | MS_REC, NULL));
    OK(access("deep/b/file", F_OK));
    EQ(count_mounts(), before + 2);
    ERR(umount2("deep", 0), EBUSY);
    OK(umount2("deep", MNT_DETACH));
    EQ(count_mounts(), before);
    OK(umount2("flat", 0));
    leave();
}

// The copy of a tree has no copy of itself, although it lies in what was copied.
CASE(recursive_bind_into_itself) {
    needs_mounts();
    make_tree();
    OK(mkdir("a/b/c", 0755));
    int before = count_mounts();
    OK(mount("a", "a/b/c", NULL, MS_BIND | MS_REC, NULL));
    EQ(count_mounts(), before + 2);
    OK(access("a/b/c/b/file", F_OK));
    ERR(access("a/b/c/b/c/b", F_OK), ENOENT);
    leave();
}

// As deep as there is room for, far deeper than a recursion could follow.
CASE(recursive_bind_of_a_deep_nest) {
    needs_mounts();
    int depth = 0;
    OK(mkdir("copy", 0755));
    OK(mkdir("nest", 0755));
    int start = OK(open(".", O_PATH));
    OK(chdir("nest"));
    int mounts = count_mounts();
    for (; depth < 3000; depth++) {
        if (mount("none", ".", "tmpfs", 0, "size=4k") == -1) {
            EQ(errno, ENOSPC);
            break;
        }
        // "." is what the mount lies on; what it covers is reached by name.
        OK(chdir(depth == 0 ? "../nest" : "../n"));
        OK(mkdir("n", 0755));
        OK(chdir("n"));
    }
    EQ(count_mounts(), mounts + depth);
    OK(fchdir(start));
    if (mount("nest", "copy", NULL, MS_BIND | MS_REC, NULL) == -1) EQ(errno, ENOSPC);
    else EQ(count_mounts(), mounts + 2 * depth);
    umount2("copy", MNT_DETACH);
    OK(umount2("nest", MNT_DETACH));
    EQ(count_mounts(), mounts);
    leave();
}

// Each round doubles what is there: it ends with ENOSPC, and all of it can be taken away again.
CASE(doubling_ends) {
    needs_mounts();
    OK(mkdir("x", 0755));
    int before = count_mounts(), rounds = 0;
    OK(mount("x", "x", NULL, MS_BIND, NULL));
    OK(mkdir("x/y", 0755));
    int error = 0;
    for (; rounds < 40; rounds++) {
        char name[16];
        snprintf(name, sizeof name, "x/%d", rounds);
        OK(mkdir(name, 0755));
        if (mount("x", name, NULL, MS_BIND | MS_REC, NULL) == -1) {
            error = errno;
            break;
        }
    }
    EQ(error, ENOSPC);
    CHECK(rounds >= 4);
    OK(umount2("x", MNT_DETACH));
    EQ(count_mounts(), before);
    // And there is room again.
    OK(mount("x", "x", NULL, MS_BIND, NULL));
    OK(umount2("x", 0));
    leave();
}

CASE(number_of_mounts_is_limited) {
    needs_mounts();
    char text[32];
    read_file("/proc/sys/fs/mount-max", text, sizeof text);
    int most = atoi(text), made = 0;
    CHECK(most > 0 && most <= 100000);
    if (most > 20000) skip_case("that would take long");
    OK(mkdir("x", 0755));
    while (mount("x", "x", NULL, MS_BIND, NULL) == 0) made++;
    EQ(errno, ENOSPC);
    CHECK(made > 1000 && made <= most);
    while (umount2("x", MNT_DETACH) == 0) made--;
    EQ(made, 0);
    leave();
}

CASE(move) {
    needs_mounts();
    make_tree();
    OK(mkdir("to", 0755));
    OK(mkdir("a/b/c", 0755));
    // Into itself, or what lies on it: nobody could ever reach it again.
    ERR(mount("a", "a/b/c", NULL, MS_MOVE, NULL), ELOOP);
    ERR(mount("a", "a", NULL, MS_MOVE, NULL), ELOOP);
    ERR(mount("to", "a", NULL, MS_MOVE, NULL), EINVAL);
    OK(mount("a", "to", NULL, MS_MOVE, NULL));
    OK(access("to/b/file", F_OK));
    ERR(access("a/b", F_OK), ENOENT);
    // The working directory has a path.
    OK(chdir("to/b/c"));
    char path[PATH_MAX];
    CHECK(getcwd(path, sizeof path) != NULL);
    CHECK(strstr(path, "/here/to/b/c") != NULL);
    leave();
}

CASE(detached_mounts_take_none) {
    needs_mounts();
    make_tree();
    OK(mkdir("a/d", 0755));
    OK(mkdir("other", 0755));
    int start = OK(open(".", O_PATH));
    OK(chdir("a"));
    OK(umount2("../a", MNT_DETACH));
    // What is in no tree has nothing mounted on it, and is bound nowhere.
    // (ENOENT by newer kernels.)
    CHECK(mount("none", "d", "tmpfs", 0, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
    CHECK(mount("/", "d", NULL, MS_BIND, NULL) == -1 && (errno == EINVAL || errno == ENOENT));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d/other", start);
    ERR(mount("d", path, NULL, MS_BIND, NULL), EINVAL);
    ERR(umount2(".", MNT_DETACH), EINVAL);
    leave();
}

CASE(unbindable) {
    needs_mounts();
    make_tree();
    OK(mkdir("to", 0755));
    OK(mount("none", "a/b", NULL, MS_UNBINDABLE, NULL));
    ERR(mount("a/b", "to", NULL, MS_BIND, NULL), EINVAL);
    OK(mount("a", "to", NULL, MS_BIND | MS_REC, NULL));
    ERR(access("to/b/file", F_OK), ENOENT);
    OK(umount2("to", 0));
    OK(mount("none", "a/b", NULL, MS_PRIVATE, NULL));
    OK(mount("a", "to", NULL, MS_BIND | MS_REC, NULL));
    OK(access("to/b/file", F_OK));
    leave();
}

CASE(removed_directories_take_no_mounts) {
    needs_mounts();
    OK(mkdir("gone", 0755));
    OK(chdir("gone"));
    OK(rmdir("../gone"));
    ERR(mount("none", ".", "tmpfs", 0, NULL), ENOENT);
    leave();
}

// Read in small pieces, and from offsets, it is the same text.
CASE(mountinfo_in_pieces) {
    needs_mounts();
    make_tree();
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        OK(mkdir(name, 0755));
        OK(mount("a", name, NULL, MS_BIND, NULL));
    }
    static const char *const files[] = {"/proc/self/mountinfo", "/proc/self/mounts"};
    for (int f = 0; f < 2; f++) {
        static char whole[1 << 18], pieces[1 << 18], part[1 << 18];
        size_t length = read_file(files[f], whole, sizeof whole), used = 0;
        int fd = OK(open(files[f], O_RDONLY));
        for (ssize_t n; (n = OK(read(fd, pieces + used, 7))) > 0;) used += (size_t)n;
        EQ(used, length);
        CHECK(memcmp(whole, pieces, length) == 0);
        EQ(lseek(fd, 100, SEEK_SET), 100);
        CHECK(read(fd, part, 50) == 50 && memcmp(part, whole + 100, 50) == 0);
        CHECK(pread(fd, part, 50, (off_t)length - 20) == 20);
        CHECK(memcmp(part, whole + length - 20, 20) == 0);
        EQ(pread(fd, part, 50, (off_t)length + 20), 0);
        CHECK(pread(fd, part, 30, 0) == 30 && memcmp(part, whole, 30) == 0);
        OK(close(fd));
    }
    leave();
}
