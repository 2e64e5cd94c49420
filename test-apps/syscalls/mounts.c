// mount(2) and umount2(2), and how much of them there can be. On Linux itself in a mount namespace of its own; where there is only one, in that.
#include "harness.h"

#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

static void needs_mounts(void) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
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

// The line of the mount whose mount point ends so, or NULL.
static const char *line_of(const char *file, const char *end) {
    static char text[65536], line[1024];
    read_file(file, text, sizeof text);
    char wanted[256];
    snprintf(wanted, sizeof wanted, "%s ", end);
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n"))
        if (strstr(at, wanted)) {
            // Whether inode numbers are wide is a choice of the kernel's.
            char *wide = strstr(at, ",inode64");
            if (wide) memmove(wide, wide + 8, strlen(wide + 8) + 1);
            snprintf(line, sizeof line, "%s", at);
            return line;
        }
    FAIL("no %s in %s", end, file);
}

// What of mountinfo follows the device number, without the directory that the case works in.
static void expect_info(const char *end, const char *root, const char *rest) {
    const char *line = line_of("/proc/self/mountinfo", end);
    int id, parent, major, minor, used = 0;
    char at[512], point[512];
    if (sscanf(line, "%d %d %d:%d %511s %511s%n", &id, &parent, &major, &minor, at, point, &used) != 6) FAIL("%s", line);
    CHECK(id != parent);
    struct stat st;
    char plain[512] = "";
    // Octal escapes back.
    for (char *from = point, *to = plain; *from; to++) {
        if (*from == '\\') *to = (char)strtol((char[]){from[1], from[2], from[3], 0}, NULL, 8), from += 4;
        else *to = *from++;
        to[1] = 0;
    }
    OK(stat(plain, &st));
    EQ(major, (int)(st.st_dev >> 8 & 0xfff));
    STR_EQ(at, root);
    STR_EQ(line + used, rest);
}

CASE(the_form_of_mountinfo) {
    needs_mounts();
    OK(mkdir("with space\\", 0755));
    OK(mount("so\\ur\tce#1", "with space\\", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=700"));
    static const char *const point = "/here/with\\040space\\134";
    expect_info(point, "/", " rw,nosuid,nodev,relatime - tmpfs so\\134ur\\011ce\\0431 rw,size=64k,mode=700");
    const char *line = line_of("/proc/self/mounts", point);
    CHECK(strncmp(line, "so\\134ur\\011ce\\0431 /", 20) == 0);
    CHECK(strstr(line, "space\\134 tmpfs rw,nosuid,nodev,relatime,size=64k,mode=700 0 0") != NULL);
    // A part of it, with flags of its own.
    OK(mkdir("with space\\/a b", 0755));
    OK(mkdir("part", 0755));
    OK(mount("with space\\/a b", "part", NULL, MS_BIND, NULL));
    OK(mount(NULL, "part", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOEXEC, NULL));
    static const char *const rest = "tmpfs so\\134ur\\011ce\\0431 rw,size=64k,mode=700";
    char expected[256];
    snprintf(expected, sizeof expected, " ro,noexec,relatime - %s", rest);
    expect_info("/here/part", "/a\\040b", expected);
    ERR(open("part/x", O_CREAT | O_WRONLY, 0600), EROFS);
    OK(close(create("with space\\/a b/y")));
    OK(mount(NULL, "part", NULL, MS_UNBINDABLE, NULL));
    snprintf(expected, sizeof expected, " ro,noexec,relatime unbindable - %s", rest);
    expect_info("/here/part", "/a\\040b", expected);
    // The whole file system read-only: through each of its mounts.
    OK(mkdir("second", 0755));
    OK(mount("with space\\", "second", NULL, MS_BIND, NULL));
    OK(mount(NULL, "with space\\", NULL, MS_REMOUNT | MS_RDONLY, "size=64k,mode=700"));
    expect_info("/here/second", "/", " rw,nosuid,nodev,relatime - tmpfs so\\134ur\\011ce\\0431 ro,size=64k,mode=700");
    CHECK(strstr(line_of("/proc/self/mounts", "/here/second"), " tmpfs ro,nosuid") != NULL);
    ERR(open("second/x", O_CREAT | O_WRONLY, 0600), EROFS);
    OK(mount(NULL, "with space\\", NULL, MS_REMOUNT, "size=64k,mode=700"));
    OK(close(create("second/x")));
    leave();
}

CASE(times_of_access_in_mountinfo) {
    needs_mounts();
    static const struct {
        const char *name, *shown;
        unsigned long flags;
    } kinds[] = {
        {"strict", " ro - tmpfs none ro", MS_STRICTATIME | MS_RDONLY},
        {"never", " rw,noatime - tmpfs none rw", MS_NOATIME},
        {"dirs", " rw,nodiratime,relatime - tmpfs none rw", MS_NODIRATIME},
        {"plain", " rw,relatime - tmpfs none rw", 0},
    };
    char end[64];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        OK(mkdir(kinds[i].name, 0755));
        OK(mount("none", kinds[i].name, "tmpfs", kinds[i].flags, NULL));
        snprintf(end, sizeof end, "/here/%s", kinds[i].name);
        expect_info(end, "/", kinds[i].shown);
    }
    // They stay unless a change speaks of them.
    OK(mount(NULL, "never", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
    expect_info("/here/never", "/", " ro,noatime - tmpfs none rw");
    OK(mount(NULL, "never", NULL, MS_BIND | MS_REMOUNT | MS_RELATIME, NULL));
    expect_info("/here/never", "/", " rw,relatime - tmpfs none rw");
    leave();
}

CASE(a_removed_root_in_mountinfo) {
    needs_mounts();
    write_file("source", "x");
    write_file("point", "");
    OK(mount("source", "point", NULL, MS_BIND, NULL));
    OK(unlink("source"));
    expect_info("/here/point", "/source//deleted", " rw,relatime - tmpfs none rw");
    char b[4];
    read_file("point", b, sizeof b);
    STR_EQ(b, "x");
    leave();
}

// Device nodes are made by who may, work wherever they lie, and lead to the devices of a container only.
CASE(device_nodes) {
    needs_mounts();
    if (mknod("null", S_IFCHR | 0666, makedev(1, 3)) == -1 && errno == EPERM) skip_case("may not make devices");
    OK(mknod("zero", S_IFCHR | 0666, makedev(1, 5)));
    OK(mknod("full", S_IFCHR | 0666, makedev(1, 7)));
    OK(mknod("random", S_IFCHR | 0666, makedev(1, 8)));
    OK(mknod("urandom", S_IFCHR | 0666, makedev(1, 9)));
    OK(mknod("tty", S_IFCHR | 0666, makedev(5, 0)));
    struct stat st;
    OK(stat("null", &st));
    CHECK(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
    char b[16] = "text";
    int fd = OK(open("null", O_RDWR));
    EQ(read(fd, b, sizeof b), 0);
    EQ(write(fd, b, sizeof b), sizeof b);
    fd = OK(open("zero", O_RDONLY));
    EQ(read(fd, b, sizeof b), sizeof b);
    STR_EQ(b, "");
    fd = OK(open("full", O_WRONLY));
    ERR(write(fd, b, 1), ENOSPC);
    EQ(read(OK(open("random", O_RDONLY)), b, sizeof b), sizeof b);
    EQ(read(OK(open("urandom", O_RDONLY)), b, sizeof b), sizeof b);
    if (open("tty", O_RDWR) == -1) EQ(errno, ENXIO);
    // Of numbers for local use: without a driver on Linux, and not one of a container's here.
    OK(mknod("strange", S_IFCHR | 0666, makedev(240, 77)));
    CHECK(open("strange", O_RDWR) == -1 && (errno == ENXIO || errno == EPERM));
    OK(chmod(".", 0777));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresuid(54321, 54321, 54321));
        ERR(mknod("mine", S_IFCHR | 0666, makedev(1, 3)), EPERM);
        ERR(mknod("mine", S_IFBLK | 0666, makedev(1, 3)), EPERM);
        OK(mknod("mine", S_IFIFO | 0666, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
    leave();
}

// What a remount asks for is done, or refused as a whole.
CASE(remount_changes_the_size) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, "size=1m"));
    OK(mount("none", "a", "tmpfs", MS_REMOUNT, "size=64k,mode=755"));
    struct statfs s;
    OK(statfs("a", &s));
    EQ(s.f_blocks * (uint64_t)s.f_bsize, 65536);
    static char bytes[40960];
    int fd = OK(open("a/file", O_CREAT | O_WRONLY, 0600));
    EQ(write(fd, bytes, sizeof bytes), sizeof bytes);
    OK(close(fd));
    ERR(mount("none", "a", "tmpfs", MS_REMOUNT | MS_RDONLY, "size=32k"), EINVAL);
    ERR(mount("none", "a", "tmpfs", MS_REMOUNT | MS_RDONLY, "no-such-option"), EINVAL);
    OK(access("a", W_OK));
    OK(mount("none", "a", "tmpfs", MS_REMOUNT, "size=40k"));
    OK(mkdir("b", 0755));
    ERR(mount("none", "b", "tmpfs", 0, "no-such-option=1"), EINVAL);
    leave();
}

// What is in use stays, unless it is to go lazily.
static void must_be_busy(const char *mount_point) {
    ERR(umount2(mount_point, 0), EBUSY);
    ERR(umount2(mount_point, MNT_FORCE), EBUSY);
}

CASE(a_mount_in_use_is_busy) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, NULL));
    write_file("a/file", "text");
    int fd = OK(open("a/file", O_RDONLY));
    must_be_busy("a");
    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(mapped != MAP_FAILED);
    OK(close(fd));
    must_be_busy("a");
    OK(munmap(mapped, 4096));
    fd = OK(open("a", O_PATH));
    must_be_busy("a");
    OK(close(fd));
    OK(chdir("a"));
    must_be_busy("../a");
    OK(chdir(".."));
    int told[2];
    OK(pipe(told));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(chroot("a"));
        OK(write(told[1], "x", 1));
        for (;;) pause();
    }
    char byte;
    EQ(read(told[0], &byte, 1), 1);
    must_be_busy("a");
    OK(kill(child, SIGKILL));
    expect_killed(child, SIGKILL);
    OK(umount2("a", 0));
    leave();
}

CASE(a_program_keeps_its_mount_busy) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, NULL));
    int from = OK(open(self_path, O_RDONLY)), to = OK(open("a/program", O_CREAT | O_WRONLY, 0755));
    static char bytes[65536];
    for (ssize_t n; (n = OK(read(from, bytes, sizeof bytes))) > 0;) EQ(write(to, bytes, n), n);
    OK(close(to));
    OK(close(from));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(dup2(OK(open("/dev/null", O_WRONLY)), 1));
        execl("a/program", "program", "--list", NULL);
        _exit(1);
    }
    siginfo_t info;
    OK(waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    EQ(info.si_status, 0);
    // It has ended, though nobody has waited for it.
    OK(umount2("a", 0));
    expect_exit(child, 0);
    leave();
}

CASE(lazily_what_is_in_use_goes_too) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, NULL));
    write_file("a/file", "text");
    int fd = OK(open("a/file", O_RDONLY));
    OK(umount2("a", MNT_DETACH));
    ERR(access("a/file", F_OK), ENOENT);
    char text[8];
    EQ(read(fd, text, sizeof text), 4);
    OK(close(fd));
    leave();
}

CASE(what_is_written_does_not_become_read_only) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
    OK(mount("none", "a", "tmpfs", 0, NULL));
    OK(mount("a", "b", NULL, MS_BIND, NULL));
    OK(mknod("a/fifo", S_IFIFO | 0600, 0));
    int fifo = OK(open("a/fifo", O_RDWR)), fd = OK(open("a/file", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, 4096));
    ERR(mount(NULL, "a", NULL, MS_REMOUNT | MS_RDONLY, NULL), EBUSY);
    ERR(mount(NULL, "b", NULL, MS_REMOUNT | MS_RDONLY, NULL), EBUSY);
    ERR(mount(NULL, "a", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), EBUSY);
    // The other mount alone has no writers.
    OK(mount(NULL, "b", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    OK(mount(NULL, "b", NULL, MS_REMOUNT | MS_BIND, NULL));
    EQ(write(fd, "x", 1), 1);
    char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED);
    OK(close(fd));
    ERR(mount(NULL, "a", NULL, MS_REMOUNT | MS_RDONLY, NULL), EBUSY);
    OK(munmap(mapped, 4096));
    // FIFOs may be written, and files read.
    fd = OK(open("a/file", O_RDONLY));
    OK(mount(NULL, "a", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    ERR(open("a/file", O_RDWR), EROFS);
    ERR(open("b/file", O_RDWR), EROFS);
    OK(close(fd));
    OK(close(fifo));
    leave();
}

CASE(the_number_of_inodes_is_limited) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, "nr_inodes=4,size=1m"));
    struct statfs s;
    OK(statfs("a", &s));
    EQ(s.f_files, 4);
    EQ(s.f_ffree, 3);
    write_file("a/1", "");
    OK(mkdir("a/2", 0755));
    OK(link("a/1", "a/3"));
    OK(statfs("a", &s));
    EQ(s.f_ffree, 0);
    ERR(open("a/4", O_CREAT | O_WRONLY, 0600), ENOSPC);
    ERR(mkdir("a/4", 0755), ENOSPC);
    ERR(symlink("x", "a/4"), ENOSPC);
    ERR(mknod("a/4", S_IFIFO | 0600, 0), ENOSPC);
    ERR(link("a/1", "a/4"), ENOSPC);
    OK(unlink("a/1"));
    int fd = OK(open("a/4", O_CREAT | O_WRONLY, 0600));
    OK(unlink("a/4"));
    // It is there as long as it is open.
    ERR(mkdir("a/4", 0755), ENOSPC);
    OK(close(fd));
    WAIT_UNTIL(mkdir("a/4", 0755) == 0);
    ERR(mount("none", "a", "tmpfs", MS_REMOUNT, "nr_inodes=3"), EINVAL);
    OK(mount("none", "a", "tmpfs", MS_REMOUNT, "nr_inodes=5"));
    OK(symlink("x", "a/5"));
    OK(rename("a/5", "a/3"));
    OK(mkdir("a/5", 0755));
    ERR(mkdir("a/6", 0755), ENOSPC);
    char text[65536];
    read_file("/proc/self/mounts", text, sizeof text);
    CHECK(strstr(text, "nr_inodes=5") != NULL);
    ERR(mount("none", "a", "tmpfs", 0, "nr_inodes=x"), EINVAL);
    leave();
}

CASE(the_number_of_blocks_is_limited) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", 0, "nr_blocks=3"));
    struct statfs s;
    OK(statfs("a", &s));
    EQ(s.f_blocks, 3);
    EQ(s.f_bfree, 3);
    static char bytes[5 * 4096];
    int fd = OK(open("a/file", O_CREAT | O_WRONLY, 0600));
    EQ(write(fd, bytes, sizeof bytes), 3 * 4096);
    ERR(write(fd, bytes, sizeof bytes), ENOSPC);
    OK(close(fd));
    ERR(mount("none", "a", "tmpfs", MS_REMOUNT, "nr_blocks=2"), EINVAL);
    OK(mount("none", "a", "tmpfs", MS_REMOUNT, "nr_blocks=1k"));
    OK(statfs("a", &s));
    EQ(s.f_blocks, 1024);
    ERR(mount("none", "a", "tmpfs", 0, "nr_blocks=10%"), EINVAL);
    leave();
}

CASE(links_that_are_not_followed) {
    needs_mounts();
    OK(mkdir("a", 0755));
    OK(mount("none", "a", "tmpfs", MS_NOSYMFOLLOW, NULL));
    write_file("a/file", "text");
    OK(symlink("file", "a/link"));
    OK(symlink("a/file", "outside"));
    ERR(open("a/link", O_RDONLY), ELOOP);
    char target[16];
    EQ(readlink("a/link", target, sizeof target), 4);
    OK(close(OK(open("outside", O_RDONLY))));
    struct statfs s;
    OK(statfs("a", &s));
    CHECK(s.f_flags & 0x2000);  // ST_NOSYMFOLLOW
    OK(mount("none", "a", NULL, MS_REMOUNT | MS_BIND, NULL));
    OK(close(OK(open("a/link", O_RDONLY))));
    leave();
}
