// Regular files, directories and links, on the root file system and on tmpfs.
#include "harness.h"

#include <dirent.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>

CASE(write_read_back) {
    int fd = create("f");
    EQ(write(fd, "hello world", 11), 11);
    EQ(lseek(fd, 6, SEEK_SET), 6);
    char buffer[16] = {0};
    EQ(read(fd, buffer, sizeof buffer), 5);
    STR_EQ(buffer, "world");
    EQ(read(fd, buffer, sizeof buffer), 0);
}

CASE(large_file_every_byte) {
    int fd = create("f");
    static unsigned char block[256 * 1024], back[256 * 1024];
    for (int i = 0; i < 16; i++) {
        for (size_t j = 0; j < sizeof block; j++) block[j] = (unsigned char)(j * 7 + i * 13 + (j >> 8));
        EQ(write(fd, block, sizeof block), sizeof block);
    }
    OK(lseek(fd, 0, SEEK_SET));
    for (int i = 0; i < 16; i++) {
        for (size_t j = 0; j < sizeof block; j++) block[j] = (unsigned char)(j * 7 + i * 13 + (j >> 8));
        EQ(read(fd, back, sizeof back), sizeof back);
        CHECK(memcmp(block, back, sizeof block) == 0);
    }
}

CASE(open_errors) {
    ERR(open("missing", O_RDONLY), ENOENT);
    ERR(open("missing/x", O_RDONLY | O_CREAT, 0600), ENOENT);
    ERR(open("", O_RDONLY), ENOENT);
    OK(close(create("f")));
    ERR(open("f/x", O_RDONLY), ENOTDIR);
    ERR(open("f", O_RDONLY | O_DIRECTORY), ENOTDIR);
    ERR(open(".", O_WRONLY), EISDIR);
    ERR(open(".", O_RDWR | O_CREAT, 0600), EISDIR);
    ERR(open((char *)8, O_RDONLY), EFAULT);
    char name[300];
    memset(name, 'x', sizeof name);
    name[299] = 0;
    ERR(open(name, O_RDONLY | O_CREAT, 0600), ENAMETOOLONG);
    static char path[5000];
    memset(path, '/', sizeof path - 1);
    ERR(open(path, O_RDONLY), ENAMETOOLONG);
}

CASE(open_excl) {
    int fd = OK(open("f", O_WRONLY | O_CREAT | O_EXCL, 0600));
    OK(close(fd));
    ERR(open("f", O_WRONLY | O_CREAT | O_EXCL, 0600), EEXIST);
    OK(symlink("nowhere", "l"));
    ERR(open("l", O_WRONLY | O_CREAT | O_EXCL, 0600), EEXIST);
}

CASE(open_through_dangling_symlink_creates) {
    OK(symlink("target", "l"));
    OK(close(OK(open("l", O_WRONLY | O_CREAT, 0600))));
    OK(access("target", F_OK));
}

CASE(open_trunc) {
    write_file("f", "something");
    OK(close(OK(open("f", O_WRONLY | O_TRUNC))));
    struct stat st;
    OK(stat("f", &st));
    EQ(st.st_size, 0);
}

CASE(open_append) {
    write_file("f", "abc");
    int fd = OK(open("f", O_RDWR | O_APPEND)), other = OK(open("f", O_WRONLY | O_APPEND));
    EQ(write(fd, "d", 1), 1);
    EQ(write(other, "e", 1), 1);
    EQ(lseek(fd, 0, SEEK_SET), 0);
    EQ(write(fd, "f", 1), 1);
    EQ(lseek(fd, 0, SEEK_CUR), 6);
    char buffer[16];
    EQ(read_file("f", buffer, sizeof buffer), 6);
    STR_EQ(buffer, "abcdef");
}

CASE(open_nofollow) {
    write_file("f", "x");
    OK(symlink("f", "l"));
    ERR(open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
    int fd = OK(open("l", O_PATH | O_NOFOLLOW));
    struct stat st;
    OK(fstat(fd, &st));
    CHECK(S_ISLNK(st.st_mode));
}

CASE(open_path_descriptor) {
    write_file("f", "contents");
    int fd = OK(open("f", O_PATH));
    char b[8];
    ERR(read(fd, b, 1), EBADF);
    ERR(write(fd, b, 1), EBADF);
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, 8);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int real = OK(open(path, O_RDONLY));
    EQ(read(real, b, 8), 8);
}

CASE(open_tmpfile) {
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd == -1 && errno == EOPNOTSUPP) {
        // Overlays of old kernels cannot; tmpfs always can.
        fd = OK(open("/dev/shm", O_TMPFILE | O_RDWR, 0600));
    } else {
        CHECK(fd >= 0);
    }
    EQ(write(fd, "unnamed", 7), 7);
    char b[8] = {0};
    EQ(pread(fd, b, 7, 0), 7);
    STR_EQ(b, "unnamed");
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_nlink, 0);
}

static void name_tmpfiles_in(const char *directory) {
    char path[PATH_MAX], named[PATH_MAX], second[PATH_MAX];
    snprintf(named, sizeof named, "%s/named-%d", directory, getpid());
    snprintf(second, sizeof second, "%s/second-%d", directory, getpid());
    int fd = open(directory, O_TMPFILE | O_RDWR, 0640);
    if (fd == -1 && errno == EOPNOTSUPP) skip_case("overlays of old kernels cannot");
    CHECK(fd >= 0);
    EQ(write(fd, "unnamed", 7), 7);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(linkat(AT_FDCWD, path, AT_FDCWD, named, AT_SYMLINK_FOLLOW));
    ERR(linkat(AT_FDCWD, path, AT_FDCWD, named, AT_SYMLINK_FOLLOW), EEXIST);
    struct stat by_name, by_fd;
    OK(stat(named, &by_name));
    OK(fstat(fd, &by_fd));
    EQ(by_name.st_ino, by_fd.st_ino);
    EQ(by_fd.st_nlink, 1);
    EQ(by_name.st_mode, S_IFREG | 0640);
    EQ(by_name.st_size, 7);
    EQ(write(fd, "!", 1), 1);
    char b[16];
    EQ(read_file(named, b, sizeof b), 8);
    STR_EQ(b, "unnamed!");
    // By the descriptor alone only who may read everything, or has opened it (since Linux 6.10).
    bool by_empty = linkat(fd, "", AT_FDCWD, second, AT_EMPTY_PATH) == 0;
    if (!by_empty) {
        EQ(errno, ENOENT);
        OK(link(named, second));
    }
    OK(stat(second, &by_name));
    EQ(by_name.st_nlink, 2);
    OK(unlink(named));
    OK(unlink(second));
    OK(fstat(fd, &by_fd));
    EQ(by_fd.st_nlink, 0);
    ERR(linkat(AT_FDCWD, path, AT_FDCWD, named, AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
    // One that is never to have a name, and one that has lost it.
    fd = OK(open(directory, O_TMPFILE | O_RDWR | O_EXCL, 0600));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ERR(linkat(AT_FDCWD, path, AT_FDCWD, named, AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
    fd = create(named);
    OK(unlink(named));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ERR(linkat(AT_FDCWD, path, AT_FDCWD, named, AT_SYMLINK_FOLLOW), ENOENT);
    OK(close(fd));
}

CASE(tmpfiles_get_names) { name_tmpfiles_in("."); }
CASE(tmpfiles_get_names_in_a_root) { name_tmpfiles_in("/tmp"); }
CASE(tmpfiles_get_names_in_memory) { name_tmpfiles_in("/dev/shm"); }

CASE(access_modes_are_enforced) {
    write_file("f", "x");
    int r = OK(open("f", O_RDONLY)), w = OK(open("f", O_WRONLY));
    char c;
    ERR(write(r, "y", 1), EBADF);
    ERR(read(w, &c, 1), EBADF);
    ERR(read(999, &c, 1), EBADF);
    ERR(close(999), EBADF);
    ERR(read(r, (void *)16, 1), EFAULT);
    EQ(fcntl(r, F_GETFL) & O_ACCMODE, O_RDONLY);
    EQ(fcntl(w, F_GETFL) & O_ACCMODE, O_WRONLY);
}

CASE(read_of_directory) {
    int fd = OK(open(".", O_RDONLY));
    char c;
    ERR(read(fd, &c, 1), EISDIR);
}

CASE(pread_pwrite) {
    int fd = create("f");
    EQ(pwrite(fd, "abcdef", 6, 10), 6);
    EQ(lseek(fd, 0, SEEK_CUR), 0);
    char b[20];
    memset(b, 'x', sizeof b);
    EQ(pread(fd, b, 20, 0), 16);
    for (int i = 0; i < 10; i++) EQ(b[i], 0);
    CHECK(memcmp(b + 10, "abcdef", 6) == 0);
    EQ(pread(fd, b, 20, 16), 0);
    EQ(pread(fd, b, 20, 1 << 20), 0);
    ERR(pread(fd, b, 1, -1), EINVAL);
}

// null(4): what has no end has no place in it either.
CASE(memory_devices_have_no_position) {
    const char *names[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int fd = OK(open(names[i], O_RDONLY));
        char b[16];
        OK(read(fd, b, sizeof b));
        EQ(lseek(fd, 0, SEEK_CUR), 0);
        EQ(lseek(fd, 12345, SEEK_SET), 0);
        EQ(lseek(fd, LLONG_MIN + 1, SEEK_CUR), 0);
        EQ(lseek(fd, 7, SEEK_END), 0);
        ERR(lseek(fd, 0, 99), EINVAL);
        EQ(pread(fd, b, 0, 5), 0);
        OK(close(fd));
    }
}

CASE(lseek_forms) {
    int fd = create("f");
    EQ(write(fd, "0123456789", 10), 10);
    EQ(lseek(fd, -3, SEEK_END), 7);
    EQ(lseek(fd, 1, SEEK_CUR), 8);
    EQ(lseek(fd, 100, SEEK_SET), 100);
    ERR(lseek(fd, -1, SEEK_SET), EINVAL);
    ERR(lseek(fd, 0, 99), EINVAL);
    EQ(write(fd, "x", 1), 1);
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, 101);
    int pipes[2];
    OK(pipe(pipes));
    ERR(lseek(pipes[0], 0, SEEK_CUR), ESPIPE);
}

// open_by_handle_at(2), in a tmpfs.
CASE(handles) {
    char scratch[] = "/dev/shm/handles-XXXXXX";
    if (!mkdtemp(scratch)) skip_case("no /dev/shm");
    OK(chdir(scratch));
    struct {
        struct file_handle head;
        unsigned char body[MAX_HANDLE_SZ];
    } h = {.body = {0}}, other, link, followed, d;
    int id = 0, id2 = 0;
    OK(mkdir("d", 0755));
    OK(mkdir("d/e", 0755));
    int fd = create("d/e/f");
    EQ(write(fd, "found", 5), 5);
    OK(symlink("d", "link"));
    ERR(name_to_handle_at(AT_FDCWD, "d/e/f", &h.head, &id, 0), EOVERFLOW);
    unsigned size = h.head.handle_bytes;
    CHECK(size > 0 && size <= MAX_HANDLE_SZ);
    OK(name_to_handle_at(AT_FDCWD, "d/e/f", &h.head, &id, 0));
    other = h;
    OK(name_to_handle_at(fd, "", &other.head, &id2, AT_EMPTY_PATH));
    EQ(id, id2);
    EQ(memcmp(&h, &other, sizeof h.head + size), 0);
    // A link is what is meant, unless it is to be followed.
    link = followed = d = h;
    OK(name_to_handle_at(AT_FDCWD, "link", &link.head, &id, 0));
    OK(name_to_handle_at(AT_FDCWD, "link", &followed.head, &id, AT_SYMLINK_FOLLOW));
    OK(name_to_handle_at(AT_FDCWD, "d", &d.head, &id, 0));
    CHECK(memcmp(&link, &d, sizeof h.head + size) != 0);
    EQ(memcmp(&followed, &d, sizeof h.head + size), 0);
    ERR(name_to_handle_at(AT_FDCWD, "d", &h.head, &id, 1 << 30), EINVAL);
    ERR(name_to_handle_at(AT_FDCWD, "nothing", &h.head, &id, 0), ENOENT);
    other.head.handle_bytes = MAX_HANDLE_SZ + 1;
    ERR(name_to_handle_at(AT_FDCWD, "d", &other.head, &id, 0), EINVAL);

    int here = OK(open(".", O_RDONLY | O_DIRECTORY));
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (geteuid() == 0) OK(setuid(1000));
        ERR(open_by_handle_at(here, &h.head, O_RDONLY), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
    int again = open_by_handle_at(here, &h.head, O_RDONLY | O_CLOEXEC);
    if (again == -1 && errno == EPERM) skip_case("no CAP_DAC_READ_SEARCH");
    OK(again);
    EQ(fcntl(again, F_GETFD), FD_CLOEXEC);
    char b[8] = "";
    EQ(read(again, b, sizeof b), 5);
    STR_EQ(b, "found");
    // Wherever it is now.
    OK(rename("d/e/f", "g"));
    int moved = OK(open_by_handle_at(here, &h.head, O_WRONLY | O_TRUNC));
    struct stat one, two;
    OK(fstat(moved, &one));
    OK(stat("g", &two));
    EQ(one.st_ino, two.st_ino);
    EQ(one.st_size, 0);
    int directory = OK(open_by_handle_at(AT_FDCWD, &d.head, O_RDONLY | O_DIRECTORY));
    OK(faccessat(directory, "e", F_OK, 0));
    ERR(open_by_handle_at(here, &link.head, O_RDONLY), ELOOP);
    ERR(open_by_handle_at(999, &h.head, O_RDONLY), EBADF);
    other = h;
    other.head.handle_bytes = 0;
    ERR(open_by_handle_at(here, &other.head, O_RDONLY), EINVAL);
    OK(rmdir("d/e"));
    OK(rmdir("d"));
    OK(close(directory));
    ERR(open_by_handle_at(here, &d.head, O_RDONLY), ESTALE);
    OK(unlink("link"));
    OK(unlink("g"));
    OK(rmdir(scratch));
}

CASE(lseek_data_hole) {
    int fd = create("f");
    EQ(pwrite(fd, "x", 1, 1 << 20), 1);
    off_t data = OK(lseek(fd, 0, SEEK_DATA));
    CHECK(data >= 0 && data <= 1 << 20);
    off_t hole = OK(lseek(fd, 1 << 20, SEEK_HOLE));
    EQ(hole, (1 << 20) + 1);
    ERR(lseek(fd, (1 << 20) + 1, SEEK_DATA), ENXIO);
}

// What was never written is a hole, also of files that are not this kernel's.
CASE(holes_of_kept_files) {
    if (!getenv("QUARK_KEPT")) skip_case("only where files are the host's");
    int fd = OK(open("sparse", O_RDWR | O_CREAT | O_TRUNC, 0600));
    static char block[65536];
    memset(block, 'x', sizeof block);
    for (long n = 1; n < 4; n++) EQ(OK(pwrite(fd, block, sizeof block, n << 20)), (long)sizeof block);
    OK(ftruncate(fd, 5 << 20));
    long at = 0;
    for (long n = 1; n < 4; n++) {
        at = OK(lseek(fd, at, SEEK_DATA));
        EQ(at, n << 20);
        EQ(OK(lseek(fd, at + 5, SEEK_DATA)), at + 5);
        at = OK(lseek(fd, at, SEEK_HOLE));
        EQ(at, (n << 20) + (long)sizeof block);
        EQ(OK(lseek(fd, 0, SEEK_CUR)), at);
    }
    ERR(lseek(fd, at, SEEK_DATA), ENXIO);
    ERR(lseek(fd, 5 << 20, SEEK_HOLE), ENXIO);
    ERR(lseek(fd, -1, SEEK_DATA), ENXIO);
    EQ(OK(lseek(fd, 0, SEEK_CUR)), at);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, sizeof block));
    EQ(OK(lseek(fd, 0, SEEK_DATA)), 2 << 20);
    // A page that is written through a mapping is data.
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 512 << 10);
    CHECK(page != MAP_FAILED);
    *page = 1;
    OK(msync(page, 4096, MS_SYNC));
    EQ(OK(lseek(fd, 0, SEEK_DATA)), 512 << 10);
    int flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    OK(sync_file_range(fd, 1 << 20, 2 << 20, flags));
    OK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    OK(unlink("sparse"));
}

// What has data is told, wherever it lies.
CASE(extents_of_a_file) {
    if (!getenv("QUARK_KEPT")) skip_case("only where files are the host's");
    int fd = OK(open("holes", O_RDWR | O_CREAT, 0600));
    static char block[65536];
    memset(block, 'x', sizeof block);
    for (int n = 0; n < 3; n++) EQ(OK(pwrite(fd, block, sizeof block, n * (1L << 20))), (long)sizeof block);
    OK(fsync(fd));
    struct {
        struct fiemap head;
        struct fiemap_extent extents[64];
    } told;
    told.head = (struct fiemap){.fm_length = FIEMAP_MAX_OFFSET, .fm_flags = FIEMAP_FLAG_SYNC, .fm_extent_count = 64};
    struct statfs kind;
    OK(fstatfs(fd, &kind));
    if (kind.f_type == TMPFS_MAGIC) {
        ERR(ioctl(fd, FS_IOC_FIEMAP, &told), EOPNOTSUPP);
        return;
    }
    OK(ioctl(fd, FS_IOC_FIEMAP, &told));
    // Each is one or more, with nothing of the holes.
    CHECK(told.head.fm_mapped_extents >= 3);
    unsigned long total = 0, after = 0;
    for (unsigned i = 0; i < told.head.fm_mapped_extents; i++) {
        struct fiemap_extent *e = &told.extents[i];
        CHECK(e->fe_logical >= after);
        CHECK(e->fe_logical % (1 << 20) + e->fe_length <= sizeof block);
        EQ(!!(e->fe_flags & FIEMAP_EXTENT_LAST), i + 1 == told.head.fm_mapped_extents);
        after = e->fe_logical + e->fe_length;
        total += e->fe_length;
    }
    EQ(total, 3 * sizeof block);
    unsigned all = told.head.fm_mapped_extents;
    told.head = (struct fiemap){.fm_length = FIEMAP_MAX_OFFSET};
    OK(ioctl(fd, FS_IOC_FIEMAP, &told));
    EQ(told.head.fm_mapped_extents, all);
    told.head = (struct fiemap){.fm_start = 1 << 20, .fm_length = 4096, .fm_extent_count = 64};
    OK(ioctl(fd, FS_IOC_FIEMAP, &told));
    EQ(told.head.fm_mapped_extents, 1);
    told.head = (struct fiemap){.fm_start = 3 << 20, .fm_length = 4096, .fm_extent_count = 64};
    OK(ioctl(fd, FS_IOC_FIEMAP, &told));
    EQ(told.head.fm_mapped_extents, 0);
    told.head = (struct fiemap){.fm_extent_count = 64};
    ERR(ioctl(fd, FS_IOC_FIEMAP, &told), EINVAL);
    told.head = (struct fiemap){.fm_length = 4096, .fm_extent_count = ~0u};
    ERR(ioctl(fd, FS_IOC_FIEMAP, &told), EINVAL);
    told.head = (struct fiemap){.fm_length = 4096, .fm_flags = 0x100};
    ERR(ioctl(fd, FS_IOC_FIEMAP, &told), EBADR);
    EQ(told.head.fm_flags, 0x100);
    ERR(ioctl(fd, FS_IOC_FIEMAP, NULL), EFAULT);
}

CASE(readv_writev) {
    int fd = create("f");
    struct iovec out[3] = {{"ab", 2}, {"", 0}, {"cde", 3}};
    EQ(writev(fd, out, 3), 5);
    char a[1], b[3], c[10];
    struct iovec in[3] = {{a, 1}, {b, 3}, {c, 10}};
    EQ(preadv(fd, in, 3, 0), 5);
    CHECK(a[0] == 'a' && memcmp(b, "bcd", 3) == 0 && c[0] == 'e');
    EQ(pwritev(fd, out, 3, 100), 5);
    OK(lseek(fd, 0, SEEK_SET));
    EQ(readv(fd, in, 3), 14);
    ERR(writev(fd, out, -1), EINVAL);
    ERR(writev(fd, out, 1025), EINVAL);
    struct iovec bad = {(void *)16, 4};
    ERR(writev(fd, &bad, 1), EFAULT);
}

// How much is written before the bad memory is the kernel's affair: what it says is there, once.
CASE(writev_to_a_pipe_ends_at_bad_memory) {
    char byte, all[64];
    struct iovec out[2] = {{"0123456789", 10}, {(void *)16, 10}};
    int fds[2];
    OK(pipe2(fds, O_NONBLOCK));
    OK(fcntl(fds[1], F_SETFL, 0)); // the writer blocks
    ssize_t written = writev(fds[1], out, 2);
    CHECK(written == 10 || (written == -1 && errno == EFAULT));
    if (written == 10) EQ(read(fds[0], all, sizeof all), 10);
    ERR(read(fds[0], &byte, 1), EAGAIN);
}

CASE(preadv2_flags) {
    int fd = create("f");
    struct iovec out = {"xyz", 3};
    EQ(pwritev2(fd, &out, 1, -1, 0), 3);
    EQ(pwritev2(fd, &out, 1, 0, RWF_APPEND), 3);
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, 6);
    ERR(pwritev2(fd, &out, 1, 0, 0x40000000), EOPNOTSUPP);
    // At the file's own position it takes that along.
    EQ(lseek(fd, 1, SEEK_SET), 1);
    EQ(pwritev2(fd, &out, 1, -1, RWF_APPEND), 3);
    EQ(lseek(fd, 0, SEEK_CUR), 9);
    EQ(lseek(fd, 1, SEEK_SET), 1);
    EQ(pwritev2(fd, &out, 1, 4, RWF_APPEND), 3);
    EQ(lseek(fd, 0, SEEK_CUR), 1);
    OK(fstat(fd, &st));
    EQ(st.st_size, 12);
    // Nothing at all leaves the position where it is.
    EQ(pwritev2(fd, &out, 0, -1, RWF_APPEND), 0);
    EQ(lseek(fd, 0, SEEK_CUR), 1);
    // A reader may name what only writers mean.
    char b[4] = "";
    struct iovec in = {b, 3};
    EQ(preadv2(fd, &in, 1, 0, RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_HIPRI), 3);
    STR_EQ(b, "xyz");
    ERR(preadv2(fd, &in, 1, 0, 0x40000000), EOPNOTSUPP);
    ERR(preadv2(fd, &in, 1, -2, 0), EINVAL);
    // Where there are no positions that is seen first.
    int pipes[2];
    OK(pipe(pipes));
    ERR(pwritev2(pipes[1], &out, 1, 0, 0x40000000), ESPIPE);
    ERR(preadv2(pipes[0], &in, 1, 0, 0x40000000), ESPIPE);
    ERR(pwritev2(pipes[0], &out, 1, 0, 0), ESPIPE);
    ERR(pwritev2(pipes[0], &out, 1, -1, 0), EBADF);
    ERR(pread(pipes[1], b, 1, 0), ESPIPE);
    // RWF_NOAPPEND, which Linux has since 6.9.
    const int no_append = 0x20;
    ssize_t result = pwritev2(fd, &out, 1, 0, no_append);
    if (result == -1 && errno == EOPNOTSUPP) return;
    EQ(result, 3);
    EQ(preadv2(fd, &in, 1, 0, no_append), 3);
    ERR(pwritev2(fd, &out, 1, 0, no_append | RWF_APPEND), EINVAL);
    ERR(preadv2(fd, &in, 1, 0, no_append | RWF_APPEND), EINVAL);
}

CASE(seeks_to_nowhere) {
    int fd = create("f"), pipes[2];
    OK(pipe(pipes));
    EQ(lseek(fd, 10, SEEK_SET), 10);
    ERR(lseek(fd, INT64_MAX, SEEK_CUR), EINVAL);
    ERR(lseek(fd, -11, SEEK_CUR), EINVAL);
    ERR(lseek(fd, 0, 5), EINVAL);
    ERR(lseek(pipes[0], 0, 5), EINVAL);
    ERR(lseek(pipes[0], 0, SEEK_CUR), ESPIPE);
    EQ(lseek(fd, 0, SEEK_CUR), 10);
}

CASE(buffers_beyond_all_memory) {
    int fd = create("f"), pipes[2];
    char byte = 0;
    OK(pipe2(pipes, O_NONBLOCK));
    struct iovec parts[2] = {{&byte, 1}, {&byte, (size_t)1 << 47}};
    // Also where there is nothing to read, and where there is no room.
    ERR(read(fd, &byte, (size_t)SSIZE_MAX + 1), EFAULT);
    ERR(read(fd, &byte, SIZE_MAX), EFAULT);
    ERR(pread(fd, &byte, (size_t)1 << 47, 0), EFAULT);
    ERR(readv(fd, parts, 2), EFAULT);
    ERR(read(pipes[0], &byte, (size_t)1 << 47), EFAULT);
    ERR(write(pipes[1], &byte, (size_t)1 << 47), EFAULT);
    ERR(write(fd, &byte, (size_t)1 << 47), EFAULT);
    ERR(writev(fd, parts, 2), EFAULT);
    struct iovec nothing[2] = {{&byte, 1}, {(void *)-1, 0}};
    ERR(writev(fd, nothing, 2), EFAULT);
}

CASE(at_the_end_of_a_file_any_buffer_will_do) {
    int fd = create("f");
    EQ(write(fd, "abc", 3), 3);
    EQ(pread(fd, (void *)16, 10, 3), 0);
    EQ(pread(fd, (void *)16, 10, 1000), 0);
    EQ(read(fd, (void *)16, 10), 0);
    ERR(pread(fd, (void *)16, 10, 2), EFAULT);
}

CASE(partial_fault_in_read_buffer) {
    // Reading into a buffer whose second page is not there gives what fitted or EFAULT, never a crash.
    int fd = create("f");
    char data[8192];
    memset(data, 'q', sizeof data);
    EQ(write(fd, data, sizeof data), sizeof data);
    char *map = OK(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(munmap(map + 4096, 4096));
    ssize_t n = pread(fd, map, 8192, 0);
    CHECK(n == 4096 || (n == -1 && errno == EFAULT));
    ERR(pread(fd, map + 4096, 10, 0), EFAULT);
}

CASE(sendfile_copies) {
    int in = create("in"), out = create("out");
    char data[10000], back[10000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 3);
    EQ(write(in, data, sizeof data), sizeof data);
    off_t offset = 100;
    EQ(sendfile(out, in, &offset, 5000), 5000);
    EQ(offset, 5100);
    EQ(lseek(in, 0, SEEK_CUR), 10000);
    EQ(pread(out, back, sizeof back, 0), 5000);
    CHECK(memcmp(back, data + 100, 5000) == 0);
    OK(lseek(in, 0, SEEK_SET));
    EQ(sendfile(out, in, NULL, 1 << 20), 10000);
    EQ(lseek(in, 0, SEEK_CUR), 10000);
    ERR(sendfile(out, OK(open(".", O_RDONLY | O_DIRECTORY)), NULL, 100), EINVAL);
}

CASE(copy_file_range_copies) {
    int in = create("in"), out = create("out");
    EQ(write(in, "0123456789", 10), 10);
    loff_t from = 2, to = 5;
    EQ(copy_file_range(in, &from, out, &to, 4, 0), 4);
    EQ(from, 6);
    EQ(to, 9);
    char b[16] = {0};
    EQ(pread(out, b, 16, 5), 4);
    STR_EQ(b, "2345");
    ERR(copy_file_range(in, NULL, out, NULL, 4, 1), EINVAL);
}

CASE(truncate_grows_and_shrinks) {
    write_file("f", "0123456789");
    OK(truncate("f", 4));
    char b[32];
    EQ(read_file("f", b, sizeof b), 4);
    OK(truncate("f", 8));
    EQ(read_file("f", b, sizeof b), 8);
    CHECK(memcmp(b, "0123\0\0\0\0", 8) == 0);
    ERR(truncate("f", -1), EINVAL);
    ERR(truncate(".", 1), EISDIR);
    ERR(truncate("missing", 1), ENOENT);
    int fd = OK(open("f", O_RDONLY));
    ERR(ftruncate(fd, 0), EINVAL);
}

CASE(fallocate_forms) {
    int fd = create("f");
    OK(fallocate(fd, 0, 0, 10000));
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, 10000);
    OK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 20000));
    OK(fstat(fd, &st));
    EQ(st.st_size, 10000);
    char page[4096];
    memset(page, 'z', sizeof page);
    EQ(pwrite(fd, page, 4096, 4096), 4096);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096));
    EQ(pread(fd, page, 4096, 4096), 4096);
    for (int i = 0; i < 4096; i++) EQ(page[i], 0);
    ERR(fallocate(fd, 0, 0, 0), EINVAL);
    ERR(fallocate(fd, 0, -1, 10), EINVAL);
}

CASE(fadvise_accepts) {
    int fd = create("f");
    ZERO(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    ZERO(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    EQ(posix_fadvise(fd, 0, 0, 77), EINVAL);
}

CASE(rename_replaces) {
    write_file("a", "A");
    write_file("b", "B");
    OK(rename("a", "b"));
    ERR(access("a", F_OK), ENOENT);
    char t[8];
    read_file("b", t, sizeof t);
    STR_EQ(t, "A");
}

CASE(rename_open_file_survives) {
    write_file("a", "A");
    write_file("b", "B");
    int fd = OK(open("b", O_RDONLY));
    OK(rename("a", "b"));
    char c;
    EQ(read(fd, &c, 1), 1);
    EQ(c, 'B');
}

CASE(rename_directories) {
    OK(mkdir("d", 0755));
    write_file("d/x", "1");
    OK(rename("d", "e"));
    OK(access("e/x", F_OK));
    OK(mkdir("full", 0755));
    write_file("full/y", "1");
    errno = 0;
    CHECK(rename("e", "full") == -1 && (errno == ENOTEMPTY || errno == EEXIST));
    OK(mkdir("empty", 0755));
    OK(rename("e", "empty"));
    OK(access("empty/x", F_OK));
    ERR(rename("empty", "empty/sub"), EINVAL);
    write_file("f", "");
    ERR(rename("f", "empty"), EISDIR);
    ERR(rename("empty", "f"), ENOTDIR);
    ERR(rename("missing", "g"), ENOENT);
}

CASE(rename_flags) {
    write_file("a", "A");
    write_file("b", "B");
    ERR(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE), EEXIST);
    OK(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE));
    char t[8];
    read_file("a", t, sizeof t);
    STR_EQ(t, "B");
    OK(renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE));
    OK(access("c", F_OK));
}

CASE(rename_same_inode_does_nothing) {
    write_file("a", "A");
    OK(link("a", "b"));
    OK(rename("a", "b"));
    OK(access("a", F_OK));
    OK(access("b", F_OK));
}

CASE(link_counts) {
    write_file("a", "A");
    OK(link("a", "b"));
    struct stat a, b;
    OK(stat("a", &a));
    OK(stat("b", &b));
    EQ(a.st_ino, b.st_ino);
    EQ(a.st_nlink, 2);
    OK(unlink("a"));
    OK(stat("b", &b));
    EQ(b.st_nlink, 1);
    ERR(link("b", "b"), EEXIST);
    ERR(link("missing", "c"), ENOENT);
    OK(mkdir("d", 0755));
    ERR(link("d", "e"), EPERM);
}

CASE(linkat_of_descriptor) {
    int fd = create("f");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(linkat(AT_FDCWD, path, AT_FDCWD, "g", AT_SYMLINK_FOLLOW));
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_nlink, 2);
}

CASE(unlink_open_file) {
    int fd = create("f");
    EQ(write(fd, "still here", 10), 10);
    OK(unlink("f"));
    ERR(access("f", F_OK), ENOENT);
    char b[16] = {0};
    EQ(pread(fd, b, 16, 0), 10);
    STR_EQ(b, "still here");
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_nlink, 0);
    EQ(pwrite(fd, "x", 1, 100), 1);
    OK(fstat(fd, &st));
    EQ(st.st_size, 101);
    ERR(unlink("f"), ENOENT);
    ERR(unlink("."), EISDIR);
}

CASE(symlink_readlink) {
    OK(symlink("some/where", "l"));
    char b[32] = {0};
    EQ(readlink("l", b, sizeof b), 10);
    STR_EQ(b, "some/where");
    EQ(readlink("l", b, 4), 4);
    ERR(readlink("l", b, 0), EINVAL);
    ERR(symlink("x", "l"), EEXIST);
    ERR(symlink("", "empty"), ENOENT);
    write_file("f", "");
    ERR(readlink("f", b, sizeof b), EINVAL);
    struct stat st;
    OK(lstat("l", &st));
    CHECK(S_ISLNK(st.st_mode));
    EQ(st.st_size, 10);
    ERR(stat("l", &st), ENOENT);
}

CASE(symlink_walk) {
    OK(mkdir("d", 0755));
    OK(mkdir("d/e", 0755));
    write_file("d/e/f", "deep");
    OK(symlink("d/e", "l"));
    OK(symlink("../../l/f", "d/e/again"));
    char b[16];
    read_file("l/f", b, sizeof b);
    STR_EQ(b, "deep");
    read_file("d/e/again", b, sizeof b);
    STR_EQ(b, "deep");
    OK(symlink("loop2", "loop1"));
    OK(symlink("loop1", "loop2"));
    ERR(open("loop1", O_RDONLY), ELOOP);
    read_file("d/../d/./e//f", b, sizeof b);
    STR_EQ(b, "deep");
}

CASE(trailing_slash) {
    write_file("f", "x");
    OK(mkdir("d", 0755));
    ERR(open("f/", O_RDONLY), ENOTDIR);
    OK(access("d/", F_OK));
    OK(mkdir("e/", 0755));
    ERR(unlink("f/"), ENOTDIR);
    OK(rmdir("e/"));
}

CASE(mkdir_rmdir) {
    OK(mkdir("d", 0700));
    struct stat st;
    OK(stat("d", &st));
    CHECK(S_ISDIR(st.st_mode));
    EQ(st.st_mode & 07777, 0700);
    ERR(mkdir("d", 0700), EEXIST);
    ERR(mkdir("x/y", 0700), ENOENT);
    write_file("d/f", "");
    errno = 0;
    CHECK(rmdir("d") == -1 && (errno == ENOTEMPTY || errno == EEXIST));
    ERR(rmdir("d/f"), ENOTDIR);
    OK(unlink("d/f"));
    ERR(rmdir("d/."), EINVAL);
    OK(rmdir("d"));
    ERR(rmdir("d"), ENOENT);
    ERR(mkdir("", 0700), ENOENT);
    ERR(mkdir("/", 0700), EEXIST);
}

CASE(removed_cwd) {
    OK(mkdir("d", 0755));
    OK(chdir("d"));
    OK(rmdir("../d"));
    ERR(open("f", O_CREAT | O_WRONLY, 0600), ENOENT);
    char b[PATH_MAX];
    CHECK(syscall(SYS_getcwd, b, sizeof b) == -1 && errno == ENOENT);
}

CASE(getdents_lists_everything_once) {
    OK(mkdir("d", 0755));
    for (int i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/entry-%03d", i);
        OK(close(create(name)));
    }
    bool seen[500] = {false};
    int dots = 0, total = 0;
    DIR *dir = opendir("d");
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            dots++;
            continue;
        }
        int i;
        EQ(sscanf(e->d_name, "entry-%d", &i), 1);
        CHECK(i >= 0 && i < 500 && !seen[i]);
        CHECK(e->d_type == DT_REG || e->d_type == DT_UNKNOWN);
        seen[i] = true;
        total++;
    }
    EQ(dots, 2);
    EQ(total, 500);
    rewinddir(dir);
    total = 0;
    while (readdir(dir)) total++;
    EQ(total, 502);
    closedir(dir);
}

CASE(getdents_small_buffer_and_seek) {
    OK(mkdir("d", 0755));
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/file%02d", i);
        OK(close(create(name)));
    }
    int fd = OK(open("d", O_RDONLY | O_DIRECTORY));
    char b[64];
    char tiny[8];
    ERR(syscall(SYS_getdents64, fd, tiny, sizeof tiny), EINVAL);
    int total = 0;
    for (long n; (n = OK(syscall(SYS_getdents64, fd, b, sizeof b))) > 0;)
        for (long at = 0; at < n; at += *(unsigned short *)(b + at + 16)) total++;
    EQ(total, 22);
    OK(lseek(fd, 0, SEEK_SET));
    CHECK(OK(syscall(SYS_getdents64, fd, b, sizeof b)) > 0);
    int file = create("f");
    ERR(syscall(SYS_getdents64, file, b, sizeof b), ENOTDIR);
}

CASE(unlink_while_reading_directory) {
    OK(mkdir("d", 0755));
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/f%d", i);
        OK(close(create(name)));
    }
    DIR *dir = opendir("d");
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') OK(unlinkat(dirfd(dir), e->d_name, 0));
    closedir(dir);
    OK(rmdir("d"));
}

CASE(stat_fields) {
    umask(0);
    int fd = OK(open("f", O_CREAT | O_RDWR, 0640));
    EQ(write(fd, "12345", 5), 5);
    struct stat a, b;
    OK(fstat(fd, &a));
    OK(stat("f", &b));
    CHECK(S_ISREG(a.st_mode));
    EQ(a.st_mode & 07777, 0640);
    EQ(a.st_size, 5);
    EQ(a.st_nlink, 1);
    EQ(a.st_uid, geteuid());
    EQ(a.st_ino, b.st_ino);
    EQ(a.st_dev, b.st_dev);
    CHECK(a.st_blksize >= 512);
    OK(fstatat(fd, "", &b, AT_EMPTY_PATH));
    EQ(a.st_ino, b.st_ino);
    ERR(fstatat(AT_FDCWD, "", &b, 0), ENOENT);
    ERR(stat("f", (void *)16), EFAULT);
    time_t now = time(NULL);
    CHECK(a.st_mtime <= now + 2 && a.st_mtime >= now - 3600);
}

CASE(statx_fields) {
    write_file("f", "123");
    struct statx x;
    OK(statx(AT_FDCWD, "f", 0, STATX_BASIC_STATS, &x));
    CHECK((x.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    EQ(x.stx_size, 3);
    struct stat st;
    OK(stat("f", &st));
    EQ(x.stx_ino, st.st_ino);
    EQ(makedev(x.stx_dev_major, x.stx_dev_minor), st.st_dev);
    ERR(statx(AT_FDCWD, "missing", 0, STATX_BASIC_STATS, &x), ENOENT);
    ERR(statx(AT_FDCWD, "f", 0x40000000, STATX_BASIC_STATS, &x), EINVAL);
}

CASE(statfs_answers) {
    struct statfs s;
    OK(statfs(".", &s));
    CHECK(s.f_bsize > 0 && s.f_namelen >= 143);
    int fd = create("f");
    OK(fstatfs(fd, &s));
    struct statvfs v;
    OK(statvfs("/", &v));
    OK(statfs("/proc", &s));
    EQ(s.f_type, 0x9fa0);
    ERR(statfs("missing", &s), ENOENT);
}

CASE(dup_shares_offset) {
    int fd = create("f"), d = OK(dup(fd));
    EQ(write(fd, "abc", 3), 3);
    EQ(lseek(d, 0, SEEK_CUR), 3);
    OK(close(fd));
    EQ(write(d, "d", 1), 1);
    int e = OK(dup2(d, 50));
    EQ(e, 50);
    EQ(dup2(50, 50), 50);
    ERR(dup2(999, 50), EBADF);
    ERR(dup3(50, 50, 0), EINVAL);
    EQ(OK(dup3(d, 51, O_CLOEXEC)), 51);
    EQ(fcntl(51, F_GETFD), FD_CLOEXEC);
    EQ(fcntl(50, F_GETFD), 0);
    EQ(OK(fcntl(d, F_DUPFD, 100)), 100);
    EQ(OK(fcntl(d, F_DUPFD_CLOEXEC, 100)), 101);
    EQ(fcntl(101, F_GETFD), FD_CLOEXEC);
    ERR(fcntl(d, F_DUPFD, -1), EINVAL);
}

CASE(lowest_descriptor_is_taken) {
    int a = create("a"), b = create("b"), c = create("c");
    OK(close(b));
    EQ(create("d"), b);
    OK(close(a));
    OK(close(c));
    EQ(OK(dup(b)), a);
}

CASE(close_range_closes) {
    int a = create("a");
    for (int i = 0; i < 5; i++) OK(fcntl(a, F_DUPFD, 200 + i));
    OK(close_range(201, 203, 0));
    OK(fcntl(200, F_GETFD));
    ERR(fcntl(201, F_GETFD), EBADF);
    ERR(fcntl(203, F_GETFD), EBADF);
    OK(fcntl(204, F_GETFD));
    OK(close_range(204, 300, CLOSE_RANGE_CLOEXEC));
    EQ(fcntl(204, F_GETFD), FD_CLOEXEC);
    ERR(close_range(10, 5, 0), EINVAL);
}

CASE(fcntl_flags) {
    int fd = create("f");
    EQ(fcntl(fd, F_GETFD), 0);
    OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    OK(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    int flags = OK(fcntl(fd, F_GETFL));
    EQ(flags & (O_APPEND | O_NONBLOCK), O_APPEND | O_NONBLOCK);
    EQ(flags & O_ACCMODE, O_RDWR);
    ERR(fcntl(fd, 9999), EINVAL);
}

CASE(fcntl_locks_between_processes) {
    int fd = create("f");
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    OK(fcntl(fd, F_SETLK, &lock));
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        OK(fcntl(fd, F_GETLK, &probe));
        EQ(probe.l_type, F_WRLCK);
        EQ(probe.l_start, 10);
        EQ(probe.l_pid, parent);
        struct flock clash = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 1};
        errno = 0;
        CHECK(fcntl(fd, F_SETLK, &clash) == -1 && (errno == EAGAIN || errno == EACCES));
        struct flock beside = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 20, .l_len = 5};
        OK(fcntl(fd, F_SETLK, &beside));
        _exit(0);
    }
    expect_exit(pid, 0);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    OK(fcntl(fd, F_SETLK, &all));
}

CASE(fcntl_lock_waits) {
    int fd = create("f"), pipes[2];
    OK(pipe(pipes));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    OK(fcntl(fd, F_SETLK, &lock));
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(write(pipes[1], "w", 1), 1);
        OK(fcntl(fd, F_SETLKW, &lock));
        _exit(0);
    }
    char c;
    EQ(read(pipes[0], &c, 1), 1);
    WAIT_UNTIL(process_state(pid) == 'S');
    int status;
    EQ(waitpid(pid, &status, WNOHANG), 0);
    lock.l_type = F_UNLCK;
    OK(fcntl(fd, F_SETLK, &lock));
    expect_exit(pid, 0);
}

CASE(ofd_locks) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    OK(fcntl(a, F_OFD_SETLK, &lock));
    ERR(fcntl(b, F_OFD_SETLK, &lock), EAGAIN);
    OK(close(a));
    OK(fcntl(b, F_OFD_SETLK, &lock));
}

CASE(flock_excludes) {
    int a = create("f"), b = OK(open("f", O_RDWR));
    OK(flock(a, LOCK_EX));
    ERR(flock(b, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    ERR(flock(b, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    OK(flock(a, LOCK_SH));
    OK(flock(b, LOCK_SH | LOCK_NB));
    OK(flock(a, LOCK_UN));
    OK(flock(b, LOCK_EX | LOCK_NB));
    OK(close(b));
    OK(flock(a, LOCK_EX | LOCK_NB));
}

CASE(flock_follows_the_description) {
    int a = create("f");
    OK(flock(a, LOCK_EX));
    int d = OK(dup(a));
    OK(close(a));
    int b = OK(open("f", O_RDWR));
    ERR(flock(b, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    OK(close(d));
    OK(flock(b, LOCK_EX | LOCK_NB));
}

CASE(access_checks) {
    write_file("f", "");
    OK(chmod("f", 0600));
    OK(access("f", R_OK | W_OK));
    ERR(access("f", X_OK), EACCES);
    OK(chmod("f", 0700));
    OK(access("f", X_OK));
    OK(faccessat(AT_FDCWD, "f", R_OK, 0));
    OK(faccessat(AT_FDCWD, "f", R_OK, AT_EACCESS));
    ERR(access("f", 64), EINVAL);
}

CASE(chmod_family) {
    int fd = create("f");
    struct stat st;
    OK(chmod("f", 04751));
    OK(stat("f", &st));
    EQ(st.st_mode & 07777, 04751);
    OK(fchmod(fd, 0644));
    OK(fchmodat(AT_FDCWD, "f", 0600, 0));
    OK(fstat(fd, &st));
    EQ(st.st_mode & 07777, 0600);
    ERR(chmod("missing", 0600), ENOENT);
    ERR(fchmod(999, 0600), EBADF);
}

CASE(chown_family) {
    if (geteuid() != 0) skip_case("needs root");
    int fd = create("f");
    struct stat st;
    OK(chmod("f", 06755));
    OK(chown("f", 1000, 2000));
    OK(stat("f", &st));
    EQ(st.st_uid, 1000);
    EQ(st.st_gid, 2000);
    EQ(st.st_mode & 06000, 0);
    OK(fchown(fd, -1, 3000));
    OK(fstat(fd, &st));
    EQ(st.st_uid, 1000);
    EQ(st.st_gid, 3000);
    OK(symlink("f", "l"));
    OK(lchown("l", 5, 6));
    OK(lstat("l", &st));
    EQ(st.st_uid, 5);
    OK(stat("f", &st));
    EQ(st.st_uid, 1000);
    OK(fchownat(fd, "", 7, 8, AT_EMPTY_PATH));
    OK(stat("f", &st));
    EQ(st.st_gid, 8);
}

CASE(permissions_bind_other_users) {
    if (geteuid() != 0) skip_case("needs root");
    write_file("secret", "x");
    OK(chmod("secret", 0600));
    OK(chmod(".", 0755));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresgid(1234, 1234, 1234));
        OK(setresuid(1234, 1234, 1234));
        ERR(open("secret", O_RDONLY), EACCES);
        ERR(open("new", O_CREAT | O_WRONLY, 0600), EACCES);
        ERR(unlink("secret"), EACCES);
        ERR(chmod("secret", 0666), EPERM);
        ERR(chown("secret", 1234, 1234), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(sticky_directory) {
    if (geteuid() != 0) skip_case("needs root");
    OK(mkdir("t", 0700));
    OK(chmod("t", 01777));
    OK(chmod(".", 0755));
    write_file("t/root", "");
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setuid(1234));
        errno = 0;
        CHECK(unlink("t/root") == -1 && (errno == EPERM || errno == EACCES));
        OK(close(create("t/mine")));
        OK(unlink("t/mine"));
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(setgid_directory_gives_its_group) {
    if (geteuid() != 0) skip_case("needs root");
    OK(mkdir("d", 0755));
    OK(chown("d", 0, 777));
    OK(chmod("d", 02755));
    OK(close(create("d/f")));
    struct stat st;
    OK(stat("d/f", &st));
    EQ(st.st_gid, 777);
}

CASE(utimens_sets_times) {
    int fd = create("f");
    struct timespec t[2] = {{1000000, 123456789}, {2000000, 987654321}};
    OK(utimensat(AT_FDCWD, "f", t, 0));
    struct stat st;
    OK(stat("f", &st));
    EQ(st.st_atim.tv_sec, 1000000);
    EQ(st.st_mtim.tv_sec, 2000000);
    EQ(st.st_mtim.tv_nsec, 987654321);
    struct timespec omit[2] = {{0, UTIME_OMIT}, {5, 0}};
    OK(futimens(fd, omit));
    OK(stat("f", &st));
    EQ(st.st_atim.tv_sec, 1000000);
    EQ(st.st_mtim.tv_sec, 5);
    struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    OK(futimens(fd, now));
    OK(stat("f", &st));
    CHECK(st.st_atim.tv_sec > 1000000);
    struct timespec bad[2] = {{0, 2000000000}, {0, 0}};
    ERR(futimens(fd, bad), EINVAL);
}

CASE(write_changes_mtime_and_ctime) {
    int fd = create("f");
    struct timespec t[2] = {{1000, 0}, {1000, 0}};
    OK(futimens(fd, t));
    EQ(write(fd, "x", 1), 1);
    struct stat st;
    OK(fstat(fd, &st));
    CHECK(st.st_mtim.tv_sec > 1000);
    OK(mkdir("d", 0755));
    OK(utimensat(AT_FDCWD, "d", t, 0));
    OK(close(create("d/x")));
    OK(stat("d", &st));
    CHECK(st.st_mtim.tv_sec > 1000);
}

CASE(mknod_fifo) {
    OK(mkfifo("p", 0600));
    struct stat st;
    OK(stat("p", &st));
    CHECK(S_ISFIFO(st.st_mode));
    ERR(open("p", O_WRONLY | O_NONBLOCK), ENXIO);
    int r = OK(open("p", O_RDONLY | O_NONBLOCK)), w = OK(open("p", O_WRONLY));
    EQ(write(w, "through", 7), 7);
    char b[8] = {0};
    EQ(read(r, b, 8), 7);
    STR_EQ(b, "through");
    ERR(mkfifo("p", 0600), EEXIST);
}

CASE(fifo_open_waits_for_peer) {
    OK(mkfifo("p", 0600));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int w = OK(open("p", O_WRONLY));
        EQ(write(w, "x", 1), 1);
        _exit(0);
    }
    int r = OK(open("p", O_RDONLY));
    char c;
    EQ(read(r, &c, 1), 1);
    EQ(read(r, &c, 1), 0);
    expect_exit(pid, 0);
}

CASE(at_calls_relative_to_directory) {
    OK(mkdir("d", 0755));
    int d = OK(open("d", O_RDONLY | O_DIRECTORY));
    int fd = OK(openat(d, "f", O_CREAT | O_WRONLY, 0600));
    OK(close(fd));
    OK(access("d/f", F_OK));
    OK(mkdirat(d, "sub", 0755));
    OK(symlinkat("f", d, "l"));
    OK(linkat(d, "f", d, "g", 0));
    OK(renameat(d, "g", AT_FDCWD, "h"));
    OK(access("h", F_OK));
    char b[8];
    EQ(readlinkat(d, "l", b, 8), 1);
    OK(unlinkat(d, "sub", AT_REMOVEDIR));
    OK(unlinkat(d, "f", 0));
    ERR(openat(999, "f", O_RDONLY), EBADF);
    int file = OK(open("h", O_RDONLY));
    ERR(openat(file, "f", O_RDONLY), ENOTDIR);
    OK(openat(999, "/", O_RDONLY));
}

CASE(openat2_resolve) {
    struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0x08};  // RESOLVE_BENEATH
    write_file("f", "");
    OK(symlink("/etc", "out"));
    OK(syscall(SYS_openat2, AT_FDCWD, "f", &how, sizeof how));
    ERR(syscall(SYS_openat2, AT_FDCWD, "../x", &how, sizeof how), EXDEV);
    ERR(syscall(SYS_openat2, AT_FDCWD, "out/passwd", &how, sizeof how), EXDEV);
    how.resolve = 0x04;  // RESOLVE_NO_SYMLINKS
    ERR(syscall(SYS_openat2, AT_FDCWD, "out/passwd", &how, sizeof how), ELOOP);
    how.flags = 1ull << 60;
    ERR(syscall(SYS_openat2, AT_FDCWD, "f", &how, sizeof how), EINVAL);
}

CASE(chdir_getcwd) {
    char before[PATH_MAX], after[PATH_MAX];
    CHECK(getcwd(before, sizeof before));
    OK(mkdir("d", 0755));
    int fd = OK(open(".", O_RDONLY));
    OK(chdir("d"));
    CHECK(getcwd(after, sizeof after));
    CHECK(strncmp(after, before, strlen(before)) == 0);
    STR_EQ(after + strlen(before), "/d");
    OK(fchdir(fd));
    CHECK(getcwd(after, sizeof after));
    STR_EQ(after, before);
    ERR(chdir("missing"), ENOENT);
    write_file("f", "");
    ERR(chdir("f"), ENOTDIR);
    char tiny[2];
    CHECK(syscall(SYS_getcwd, tiny, sizeof tiny) == -1 && errno == ERANGE);
}

CASE(xattr_user) {
    // The scratch directory may lie on a tmpfs without user attributes.
    write_file("f", "");
    if (setxattr("f", "user.color", "blue", 4, 0) == -1) {
        EQ(errno, EOPNOTSUPP);
        return;
    }
    char b[16] = {0};
    EQ(getxattr("f", "user.color", b, sizeof b), 4);
    STR_EQ(b, "blue");
    EQ(getxattr("f", "user.color", NULL, 0), 4);
    ERR(getxattr("f", "user.color", b, 2), ERANGE);
    ERR(getxattr("f", "user.none", b, sizeof b), ENODATA);
    ERR(setxattr("f", "user.color", "x", 1, XATTR_CREATE), EEXIST);
    CHECK(listxattr("f", NULL, 0) >= 11);
    OK(removexattr("f", "user.color"));
    ERR(removexattr("f", "user.color"), ENODATA);
}

// listxattr(2) tells of 64 KiB of names; there is no limit of their number.
CASE(xattr_of_a_socket) {
    static const struct {
        int domain, type, protocol;
        const char *name;
    } SOCKETS[] = {
        {AF_UNIX, SOCK_STREAM, 0, "UNIX-STREAM"}, {AF_UNIX, SOCK_DGRAM, 0, "UNIX"},
        {AF_UNIX, SOCK_SEQPACKET, 0, "UNIX"},     {AF_INET, SOCK_STREAM, 0, "TCP"},
        {AF_INET6, SOCK_STREAM, 0, "TCPv6"},      {AF_INET, SOCK_DGRAM, 0, "UDP"},
        {AF_INET6, SOCK_DGRAM, 0, "UDPv6"},       {AF_NETLINK, SOCK_RAW, 0, "NETLINK"},
    };
    char value[64], path[64];
    for (size_t i = 0; i < sizeof SOCKETS / sizeof *SOCKETS; i++) {
        int fd = OK(socket(SOCKETS[i].domain, SOCKETS[i].type, SOCKETS[i].protocol));
        size_t size = strlen(SOCKETS[i].name) + 1;
        EQ(OK(fgetxattr(fd, "system.sockprotoname", NULL, 0)), size);
        memset(value, 'x', sizeof value);
        EQ(OK(fgetxattr(fd, "system.sockprotoname", value, sizeof value)), size);
        STR_EQ(value, SOCKETS[i].name);
        ERR(fgetxattr(fd, "system.sockprotoname", value, size - 1), ERANGE);
        // As lsof finds it.
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        EQ(OK(getxattr(path, "system.sockprotoname", value, sizeof value)), size);
        STR_EQ(value, SOCKETS[i].name);
        EQ(OK(flistxattr(fd, value, sizeof value)), 21);
        STR_EQ(value, "system.sockprotoname");
        ERR(fgetxattr(fd, "system.other", value, sizeof value), EOPNOTSUPP);
        ERR(fgetxattr(fd, "user.a", value, sizeof value), ENODATA);
        ERR(fsetxattr(fd, "user.a", "b", 1, 0), EPERM);
        ERR(fsetxattr(fd, "system.sockprotoname", "b", 1, 0), EOPNOTSUPP);
        close(fd);
    }
    int fds[2];
    OK(pipe(fds));
    EQ(OK(flistxattr(fds[0], value, sizeof value)), 0);
    ERR(fgetxattr(fds[0], "system.sockprotoname", value, sizeof value), EOPNOTSUPP);
    ERR(fgetxattr(fds[0], "user.a", value, sizeof value), ENODATA);
    ERR(fsetxattr(fds[0], "user.a", "b", 1, 0), EPERM);
}

CASE(xattrs_in_numbers) {
    write_file("f", "");
    char name[64], list[8192];
    ssize_t bytes = OK(listxattr("f", list, sizeof list));
    for (int i = 0; i < 200; i++) {
        sprintf(name, "user.number-%d", i);
        if (setxattr("f", name, "x", 1, 0) == -1) {
            if (errno == EOPNOTSUPP) skip_case("no user attributes");
            // ext4 has a block for all of them.
            if (errno == ENOSPC && i > 64) break;
            FAIL("%d: %s", i, strerrorname_np(errno));
        }
        bytes += strlen(name) + 1;
        EQ(listxattr("f", list, sizeof list), bytes);
    }
}

// Files of the host stand for device nodes by such an attribute: no program sets it.
CASE(names_of_attributes_that_are_kept) {
    if (!getenv("QUARK_KEPT")) skip_case("only where files are the host's");
    write_file("f", "");
    char value[8];
    ERR(setxattr("f", "user.quark.device", "c 1:3", 5, 0), EPERM);
    ERR(removexattr("f", "user.quark.device"), EPERM);
    ERR(getxattr("f", "user.quark.device", value, sizeof value), ENODATA);
}

CASE(umask_applies) {
    umask(027);
    OK(close(OK(open("f", O_CREAT | O_WRONLY, 0777))));
    struct stat st;
    OK(stat("f", &st));
    EQ(st.st_mode & 0777, 0750);
    EQ(umask(0), 027);
}

CASE(tmpfs_files) {
    char dir[] = "/dev/shm/quark-test-XXXXXX";
    CHECK(mkdtemp(dir));
    OK(chdir(dir));
    int fd = create("f");
    char data[3 * 4096 + 5], back[sizeof data];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 11);
    EQ(write(fd, data, sizeof data), sizeof data);
    EQ(pread(fd, back, sizeof back, 0), sizeof back);
    CHECK(memcmp(data, back, sizeof data) == 0);
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, sizeof data);
    OK(ftruncate(fd, 5000));
    OK(ftruncate(fd, 9000));
    EQ(pread(fd, back, sizeof back, 0), 9000);
    CHECK(memcmp(data, back, 5000) == 0);
    for (int i = 5000; i < 9000; i++) EQ(back[i], 0);
    OK(link("f", "g"));
    OK(rename("g", "h"));
    OK(symlink("h", "s"));
    OK(mkdir("d", 0755));
    OK(unlink("h"));
    OK(unlink("s"));
    OK(unlink("f"));
    OK(rmdir("d"));
    OK(chdir("/"));
    OK(rmdir(dir));
}

CASE(memfd_and_seals) {
    int fd = OK(memfd_create("quark", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EQ(write(fd, "0123456789", 10), 10);
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    ERR(ftruncate(fd, 5), EPERM);
    ERR(ftruncate(fd, 50), EPERM);
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
    ERR(write(fd, "x", 1), EPERM);
    EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    int plain = OK(memfd_create("plain", 0));
    EQ(fcntl(plain, F_GET_SEALS), F_SEAL_SEAL);
    ERR(fcntl(plain, F_ADD_SEALS, F_SEAL_WRITE), EPERM);
    ERR(memfd_create("x", 0x4000), EINVAL);
}
