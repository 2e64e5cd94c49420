// Files opened again and again, while they are replaced, cut, changed and locked: an open must never get what was there before.
// The static build of this program also runs on a container's own root file system and on a volume.
#include "harness.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/sysmacros.h>

// Opens for reading and closes, a few times, so that a kernel that keeps things for the next open has them.
static void warm(const char *path) {
    for (int i = 0; i < 3; i++) OK(close(OK(open(path, O_RDONLY))));
}

static void expect_content(const char *path, const char *wanted) {
    char text[256];
    read_file(path, text, sizeof text);
    STR_EQ(text, wanted);
}

static void expect_rest(int fd, const char *wanted) {
    char text[256] = {0};
    EQ(read(fd, text, sizeof text - 1), strlen(wanted));
    STR_EQ(text, wanted);
}

CASE(each_open_has_its_own_offset) {
    write_file("f", "hello");
    int a = OK(open("f", O_RDONLY));
    char c[3];
    EQ(read(a, c, 3), 3);
    int b = OK(open("f", O_RDONLY));
    expect_rest(b, "hello");
    expect_rest(a, "lo");
    OK(close(a));
    a = OK(open("f", O_RDONLY));
    EQ(lseek(a, 0, SEEK_CUR), 0);
    expect_rest(a, "hello");
    EQ(lseek(b, 0, SEEK_CUR), 5);
}

CASE(each_open_has_its_own_flags) {
    write_file("f", "x");
    warm("f");
    int a = OK(open("f", O_RDONLY | O_NONBLOCK)), b = OK(open("f", O_RDONLY));
    OK(fcntl(b, F_SETFL, O_APPEND));
    CHECK(fcntl(a, F_GETFL) & O_NONBLOCK);
    CHECK(!(fcntl(a, F_GETFL) & O_APPEND));
    CHECK(!(fcntl(b, F_GETFL) & O_NONBLOCK));
    EQ(fcntl(OK(open("f", O_RDONLY)), F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE), O_RDONLY);
    ERR(write(a, "y", 1), EBADF);
    ERR(ftruncate(a, 0), EINVAL);
    CHECK(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0) == MAP_FAILED);
    EQ(errno, EACCES);
}

CASE(sees_a_rename_over_it) {
    write_file("f", "old");
    warm("f");
    int before = OK(open("f", O_RDONLY));
    write_file("g", "newer");
    warm("g");
    OK(rename("g", "f"));
    expect_content("f", "newer");
    expect_rest(before, "old");
    ERR(open("g", O_RDONLY), ENOENT);
}

CASE(sees_an_exchange) {
    write_file("f", "one");
    write_file("g", "other");
    warm("f");
    warm("g");
    OK(syscall(SYS_renameat2, AT_FDCWD, "f", AT_FDCWD, "g", 2));  // RENAME_EXCHANGE
    expect_content("f", "other");
    expect_content("g", "one");
}

CASE(sees_a_moved_directory) {
    OK(mkdir("d", 0755));
    write_file("d/f", "first");
    warm("d/f");
    OK(rename("d", "e"));
    OK(mkdir("d", 0755));
    ERR(open("d/f", O_RDONLY), ENOENT);
    write_file("d/f", "second");
    expect_content("d/f", "second");
    expect_content("e/f", "first");
}

CASE(sees_unlink_and_create) {
    for (int i = 0; i < 20; i++) {
        char text[32];
        sprintf(text, "round %d", i);
        write_file("f", text);
        warm("f");
        int open_before = OK(open("f", O_RDONLY));
        expect_content("f", text);
        OK(unlink("f"));
        ERR(open("f", O_RDONLY), ENOENT);
        struct stat st;
        OK(fstat(open_before, &st));
        EQ(st.st_nlink, 0);
        expect_rest(open_before, text);
        OK(close(open_before));
    }
}

CASE(sees_new_content) {
    write_file("f", "before");
    warm("f");
    int reader = OK(open("f", O_RDONLY));
    int w = OK(open("f", O_WRONLY | O_TRUNC));
    expect_content("f", "");
    EQ(write(w, "after", 5), 5);
    expect_content("f", "after");
    EQ(pwrite(w, "AFTER all", 9, 0), 9);
    expect_content("f", "AFTER all");
    OK(ftruncate(w, 2));
    expect_content("f", "AF");
    OK(truncate("f", 1));
    expect_content("f", "A");
    char c[4];
    EQ(pread(reader, c, 4, 0), 1);
    EQ(c[0], 'A');
}

CASE(mappings_see_new_content) {
    write_file("f", "aaaa");
    warm("f");
    int w = OK(open("f", O_RDWR));
    EQ(pwrite(w, "bbbb", 4, 0), 4);
    int fd = OK(open("f", O_RDONLY));
    char *p = mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    OK(close(fd));
    CHECK(memcmp(p, "bbbb", 4) == 0);
    EQ(pwrite(w, "cccc", 4, 0), 4);
    CHECK(memcmp(p, "cccc", 4) == 0);
    warm("f");
    char *q = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, w, 0);
    CHECK(q != MAP_FAILED);
    q[0] = 'd';
    expect_content("f", "dccc");
}

CASE(sees_writes_through_another_name) {
    write_file("f", "one");
    OK(link("f", "g"));
    warm("f");
    write_file("g", "more");
    expect_content("f", "more");
    OK(unlink("g"));
    expect_content("f", "more");
}

CASE(permission_is_checked_each_time) {
    if (geteuid() != 0) skip_case("needs root");
    OK(chmod(".", 0755));
    write_file("f", "x");
    OK(chmod("f", 0644));
    warm("f");
    OK(seteuid(12345));
    warm("f");
    OK(seteuid(0));
    OK(chmod("f", 0600));
    OK(seteuid(12345));
    ERR(open("f", O_RDONLY), EACCES);
    OK(seteuid(0));
    warm("f");
}

CASE(close_releases_locks) {
    write_file("f", "x");
    warm("f");
    int a = OK(open("f", O_RDONLY)), b = OK(open("f", O_RDONLY));
    OK(flock(a, LOCK_EX));
    ERR(flock(b, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    OK(close(a));
    OK(flock(b, LOCK_EX | LOCK_NB));
    // Record locks go with any descriptor of the file that the process closes.
    int w = OK(open("f", O_RDWR));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    OK(fcntl(w, F_SETLK, &lock));
    pid_t pid = fork();
    if (pid == 0) {
        int mine = OK(open("f", O_RDWR));
        ERR(fcntl(mine, F_SETLK, &lock), EAGAIN);
        _exit(0);
    }
    expect_exit(pid, 0);
    warm("f");
    pid = fork();
    if (pid == 0) {
        int mine = OK(open("f", O_RDWR));
        OK(fcntl(mine, F_SETLK, &lock));
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(many_files) {
    enum { FILES = 300 };
    char name[32], text[32];
    int fds[FILES];
    for (int i = 0; i < FILES; i++) {
        sprintf(name, "f%d", i);
        write_file(name, name);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FILES; i++) {
            sprintf(name, "f%d", i);
            expect_content(name, name);
        }
    }
    for (int i = 0; i < FILES; i++) {
        sprintf(name, "f%d", i);
        fds[i] = OK(open(name, O_RDONLY));
        OK(unlink(name));
    }
    for (int i = 0; i < FILES; i++) {
        sprintf(text, "f%d", i);
        expect_rest(fds[i], text);
        OK(close(fds[i]));
    }
}

CASE(other_ways_to_open) {
    write_file("f", "abc");
    warm("f");
    expect_rest(OK(open("f", O_RDONLY | O_CREAT, 0600)), "abc");
    ERR(open("f", O_RDONLY | O_CREAT | O_EXCL, 0600), EEXIST);
    ERR(open("f", O_RDONLY | O_DIRECTORY), ENOTDIR);
    ERR(open("f/", O_RDONLY), ENOTDIR);
    ERR(open("f/.", O_RDONLY), ENOTDIR);
    ERR(openat(AT_FDCWD, "f/x", O_RDONLY), ENOTDIR);
    expect_rest(OK(open("./f", O_RDONLY | O_NOFOLLOW)), "abc");
    OK(symlink("f", "l"));
    expect_rest(OK(open("l", O_RDONLY)), "abc");
    ERR(open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
    expect_rest(OK(open("f", O_RDONLY | O_NOATIME)), "abc");
    expect_rest(OK(open("f", O_RDONLY | O_SYNC)), "abc");
    int fd = OK(open("f", O_RDWR | O_APPEND));
    EQ(write(fd, "d", 1), 1);
    expect_content("f", "abcd");
    OK(close(OK(open("f", O_RDONLY | O_TRUNC))));
    expect_content("f", "");
}

CASE(in_root_begins_at_the_directory) {
    OK(mkdir("d", 0755));
    write_file("d/f", "inside");
    int d = OK(open("d", O_RDONLY | O_DIRECTORY));
    struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0x10};  // RESOLVE_IN_ROOT
    expect_rest(OK(syscall(SYS_openat2, d, "/f", &how, sizeof how)), "inside");
    expect_rest(OK(syscall(SYS_openat2, d, "/../../f", &how, sizeof how)), "inside");
    ERR(syscall(SYS_openat2, d, "/d/f", &how, sizeof how), ENOENT);
    ERR(syscall(SYS_openat2, 999, "/f", &how, sizeof how), EBADF);
}

// What is open has no name, or none any more, and another file may have that name now.
static void open_nameless(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct stat by_link, by_fd;
    OK(stat(path, &by_link));
    OK(fstat(fd, &by_fd));
    EQ(by_link.st_ino, by_fd.st_ino);
    EQ(by_link.st_nlink, 0);
    int reader = OK(open(path, O_RDONLY)), writer = OK(open(path, O_WRONLY | O_APPEND));
    expect_rest(reader, "text");
    EQ(write(writer, "+", 1), 1);
    expect_rest(reader, "+");
    OK(truncate(path, 2));
    OK(chmod(path, 0400));
    OK(fstat(fd, &by_fd));
    EQ(by_fd.st_size, 2);
    EQ(by_fd.st_mode, S_IFREG | 0400);
    // The first descriptor is not what the others live by.
    OK(close(fd));
    snprintf(path, sizeof path, "/proc/self/fd/%d", reader);
    expect_rest(OK(open(path, O_RDONLY)), "te");
    OK(close(reader));
    snprintf(path, sizeof path, "/proc/self/fd/%d", writer);
    expect_rest(OK(open(path, O_RDONLY)), "te");
}

CASE(what_has_no_name_is_opened_again) {
    write_file("f", "text");
    int fd = OK(open("f", O_RDONLY));
    OK(unlink("f"));
    write_file("f", "other");
    open_nameless(fd);
    write_file("g", "text");
    fd = OK(open("g", O_RDWR));
    OK(rename("f", "g"));
    open_nameless(fd);
    expect_content("g", "other");
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd == -1 && errno == EOPNOTSUPP) skip_case("overlays of old kernels cannot");
    CHECK(fd >= 0);
    EQ(write(fd, "text", 4), 4);
    open_nameless(fd);
}

CASE(what_has_no_name_is_executed) {
    char block[65536];
    int in = OK(open(self_path, O_RDONLY)), out = OK(open("program", O_CREAT | O_WRONLY, 0755));
    for (ssize_t n; (n = OK(read(in, block, sizeof block))) > 0;) EQ(write(out, block, n), n);
    OK(close(out));
    int fd = OK(open("program", O_RDONLY));
    OK(unlink("program"));
    for (int by_link = 0; by_link < 2; by_link++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            char *argv[] = {"reopen", "--list", NULL}, path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            OK(dup2(OK(open("/dev/null", O_WRONLY)), 1));
            if (by_link) execv(path, argv);
            syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
            FAIL("it is not executed: %s", strerrorname_np(errno));
        }
        expect_exit(pid, 0);
    }
}

// The type that a directory lists an entry with, which need not say.
static void expect_listed(const char *directory, const char *name, int type) {
    DIR *d = opendir(directory);
    CHECK(d);
    int found = -1;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, name) == 0) found = e->d_type;
    OK(closedir(d));
    if (found != DT_UNKNOWN) EQ(found, type);
}

CASE(devices_are_not_listed_as_files) {
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
    OK(mkdir("c", 0755));
    // Not everybody may, and volumes have none.
    if (mknod("a/null", S_IFCHR | 0600, makedev(1, 3)) == -1 && errno == EPERM) return;
    expect_listed("a", "null", DT_CHR);
    OK(link("a/null", "b/link"));
    expect_listed("b", "link", DT_CHR);
    OK(rename("a/null", "c/moved"));
    expect_listed("c", "moved", DT_CHR);
    OK(rename("c", "d"));
    expect_listed("d", "moved", DT_CHR);
    OK(mknod("disk", S_IFBLK | 0600, makedev(8, 0)));
    expect_listed(".", "disk", DT_BLK);
    OK(mkdir("e", 0755));
    OK(close(create("e/file")));
    expect_listed("e", "file", DT_REG);
    OK(syscall(SYS_renameat2, AT_FDCWD, "disk", AT_FDCWD, "e/file", 2));  // RENAME_EXCHANGE
    expect_listed("e", "file", DT_BLK);
}
