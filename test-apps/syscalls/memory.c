// Address spaces: mmap in all its forms, protection, faults, remapping, advice, brk.
#include "harness.h"

#include <pthread.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include <setjmp.h>
#include <ucontext.h>

enum { PAGE = 4096 };

static char *anonymous(size_t pages, int flags) {
    return OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0));
}

static int file_of_pages(const char *path, int pages) {
    int fd = OK(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644));
    char page[PAGE];
    for (int i = 0; i < pages; i++) {
        memset(page, 'a' + i, sizeof page);
        EQ(write(fd, page, PAGE), PAGE);
    }
    return fd;
}

static sigjmp_buf fault_return;
static volatile siginfo_t fault_info;
static void on_fault(int signo, siginfo_t *info, void *context) {
    fault_info = *info;
    siglongjmp(fault_return, 1);
}

static void catch_faults(void) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    OK(sigaction(SIGSEGV, &a, NULL));
    OK(sigaction(SIGBUS, &a, NULL));
}

// The statement faults with this signal and code at this address.
#define FAULTS(statement, signo_, code_, address_)                               \
    do {                                                                         \
        if (sigsetjmp(fault_return, 1) == 0) {                                   \
            statement;                                                           \
            FAIL("%s did not fault", #statement);                                \
        }                                                                        \
        EQ(fault_info.si_signo, signo_);                                         \
        EQ(fault_info.si_code, code_);                                           \
        EQ((uintptr_t)fault_info.si_addr, (uintptr_t)(address_));                \
    } while (0)
#define READ(p) ((void)*(volatile char *)(p))
#define WRITE(p) (*(volatile char *)(p) = 1)

CASE(anonymous_is_zero) {
    char *p = anonymous(64, MAP_PRIVATE);
    for (int i = 0; i < 64 * PAGE; i++) EQ(p[i], 0);
    memset(p, 7, 64 * PAGE);
    for (int i = 0; i < 64 * PAGE; i++) EQ(p[i], 7);
    OK(munmap(p, 64 * PAGE));
}

CASE(mmap_errors) {
    ERR(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), EINVAL);
    ERR(mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0), EINVAL);
    ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 999, 0), EBADF);
    int fd = file_of_pages("f", 1);
    ERR(syscall(SYS_mmap, NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 100), EINVAL);
    ERR(mmap((void *)100, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), EINVAL);
    ERR(mmap(NULL, 1ul << 60, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
    int read_only = OK(open("f", O_RDONLY)), write_only = OK(open("f", O_WRONLY));
    ERR(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, read_only, 0), EACCES);
    ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, write_only, 0), EACCES);
    ERR(munmap((void *)100, PAGE), EINVAL);
    ERR(munmap((void *)PAGE, 0), EINVAL);
    int pipes[2];
    OK(pipe(pipes));
    ERR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, pipes[0], 0), ENODEV);
}

CASE(munmap_of_nothing_is_fine) {
    char *p = anonymous(4, MAP_PRIVATE);
    OK(munmap(p + PAGE, PAGE));
    OK(munmap(p, 4 * PAGE));
    OK(munmap(p, 4 * PAGE));
}

CASE(munmap_splits) {
    catch_faults();
    char *p = anonymous(5, MAP_PRIVATE);
    for (int i = 0; i < 5; i++) p[i * PAGE] = (char)(i + 1);
    OK(munmap(p + 2 * PAGE, PAGE));
    for (int i = 0; i < 5; i++)
        if (i != 2) EQ(p[i * PAGE], i + 1);
    FAULTS(READ(p + 2 * PAGE + 5), SIGSEGV, SEGV_MAPERR, p + 2 * PAGE + 5);
}

CASE(map_fixed_replaces) {
    char *p = anonymous(4, MAP_PRIVATE);
    memset(p, 1, 4 * PAGE);
    char *q = OK(mmap(p + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    EQ(q - p, PAGE);
    EQ(p[0], 1);
    EQ(p[PAGE], 0);
    EQ(p[2 * PAGE], 1);
}

CASE(map_fixed_noreplace) {
    char *p = anonymous(2, MAP_PRIVATE);
    ERR(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    OK(munmap(p + PAGE, PAGE));
    char *q = OK(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    EQ(q - p, PAGE);
}

CASE(hint_is_taken_when_free) {
    char *p = anonymous(1, MAP_PRIVATE);
    OK(munmap(p, PAGE));
    char *q = OK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EQ(q - p, 0);
    char *r = OK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(r != p);
}

CASE(map_32bit_low_addresses) {
    char *p = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0));
    CHECK((uintptr_t)p < 1ul << 31);
    *p = 1;
}

CASE(private_file_mapping) {
    int fd = file_of_pages("f", 4);
    char *p = OK(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    for (int i = 0; i < 4; i++) EQ(p[i * PAGE + 100], 'a' + i);
    p[PAGE] = 'X';
    char c;
    EQ(pread(fd, &c, 1, PAGE), 1);
    EQ(c, 'b');
    EQ(p[PAGE], 'X');
    EQ(p[PAGE + 1], 'b');
    OK(close(fd));
    EQ(p[3 * PAGE], 'd');
}

// Whether a page is copied as it is written to or along with another, it has the file's bytes and
// is the program's own. (Also run with files of the host.)
CASE(private_copies_of_many_pages) {
    enum { LONG = 70, SHORT = 5, FIRST = 3 };
    static char page[PAGE];
    int fd = OK(open("many", O_RDWR | O_CREAT | O_TRUNC, 0600));
    for (int i = 0; i < LONG; i++) {
        memset(page, i + 1, PAGE);
        EQ(OK(write(fd, page, PAGE)), PAGE);
    }
    OK(pwrite(fd, "end", 3, LONG * PAGE));
    for (int order = 0; order < 4; order++) {
        for (int pages = SHORT; pages <= LONG; pages += LONG - SHORT) {
            char *p = OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, FIRST * PAGE));
            OK(mprotect(p + 2 * PAGE, PAGE, PROT_READ));
            for (int n = 0; n < pages; n++) {
                int i = order == 0 ? n : order == 1 ? pages - 1 - n : (n * 13 + order) % pages;
                if (i == 2 || (i + FIRST) >= LONG) continue;
                EQ(p[i * PAGE + 77], i + FIRST + 1);
                p[i * PAGE] = -1;
                EQ(p[i * PAGE + PAGE - 1], i + FIRST + 1);
            }
            EQ(p[2 * PAGE], 2 + FIRST + 1);
            char c;
            for (int i = 0; i < LONG; i++) CHECK(pread(fd, &c, 1, i * PAGE) == 1 && c == i + 1);
            OK(munmap(p, pages * PAGE));
        }
    }
    catch_faults();
    // Until it is written to, a page is the file's.
    char *q = OK(mmap(NULL, SHORT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    q[PAGE] = -1;
    OK(pwrite(fd, "new", 3, 2 * PAGE));
    CHECK(memcmp(q + 2 * PAGE, "new", 3) == 0);
    // The last page of the file, and what comes after it.
    char *p = OK(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (LONG - 1) * PAGE));
    *p = -1;
    CHECK(memcmp(p + PAGE, "end\0", 5) == 0);
    p[PAGE + 3] = '!';
    CHECK(memcmp(p + PAGE, "end!", 5) == 0);
    FAULTS(p[2 * PAGE] = 1, SIGBUS, BUS_ADRERR, p + 2 * PAGE);
    FAULTS(READ(p + 3 * PAGE), SIGBUS, BUS_ADRERR, p + 3 * PAGE);
    // One that was cut short meanwhile.
    p = OK(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 10 * PAGE));
    OK(ftruncate(fd, 12 * PAGE));
    p[PAGE] = -1;
    EQ(p[0], 11);
    EQ(p[PAGE + 1], 12);
    FAULTS(p[2 * PAGE] = 1, SIGBUS, BUS_ADRERR, p + 2 * PAGE);
    OK(unlink("many"));
}

CASE(private_file_mapping_with_offset) {
    int fd = file_of_pages("f", 4);
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 2 * PAGE));
    EQ(p[0], 'c');
    EQ(p[PAGE], 'd');
}

CASE(shared_file_mapping_reaches_the_file) {
    int fd = file_of_pages("f", 2);
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    memcpy(p + PAGE - 3, "across", 6);
    char b[7] = {0};
    EQ(pread(fd, b, 6, PAGE - 3), 6);
    STR_EQ(b, "across");
    EQ(pwrite(fd, "back", 4, 10), 4);
    CHECK(memcmp(p + 10, "back", 4) == 0);
    OK(msync(p, 2 * PAGE, MS_SYNC));
    OK(munmap(p, 2 * PAGE));
    EQ(pread(fd, b, 6, PAGE - 3), 6);
    STR_EQ(b, "across");
}

CASE(two_shared_mappings_agree) {
    int fd = file_of_pages("f", 1);
    char *p = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    char *q = OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0));
    p[5] = 'Z';
    EQ(q[5], 'Z');
}

CASE(mapping_beyond_end_of_file) {
    catch_faults();
    int fd = OK(open("f", O_RDWR | O_CREAT, 0644));
    EQ(write(fd, "short", 5), 5);
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EQ(p[4], 't');
    EQ(p[5], 0);
    EQ(p[PAGE - 1], 0);
    FAULTS(READ(p + PAGE), SIGBUS, BUS_ADRERR, p + PAGE);
    OK(ftruncate(fd, 2 * PAGE));
    EQ(p[PAGE], 0);
}

CASE(truncated_mapping_faults) {
    catch_faults();
    int fd = file_of_pages("f", 2);
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0));
    EQ(p[PAGE], 'b');
    OK(ftruncate(fd, PAGE));
    FAULTS(READ(p + PAGE + 9), SIGBUS, BUS_ADRERR, p + PAGE + 9);
    EQ(p[0], 'a');
}

CASE(shared_anonymous_over_fork) {
    char *p = anonymous(3, MAP_SHARED);
    p[0] = 1;
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(p[0], 1);
        p[0] = 2;
        p[2 * PAGE] = 9;
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(p[0], 2);
    EQ(p[2 * PAGE], 9);
}

CASE(memfd_mapping) {
    int fd = OK(memfd_create("m", 0));
    OK(ftruncate(fd, 3 * PAGE));
    char *p = OK(mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    memset(p + PAGE, 'm', PAGE);
    char b[4] = {0};
    EQ(pread(fd, b, 3, PAGE), 3);
    STR_EQ(b, "mmm");
    char *q = OK(mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    q[PAGE] = 'q';
    EQ(p[PAGE], 'm');
    EQ(q[PAGE + 1], 'm');
}

CASE(dev_zero_mapping) {
    int fd = OK(open("/dev/zero", O_RDWR));
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    EQ(p[PAGE], 0);
    p[PAGE] = 1;
    EQ(p[PAGE], 1);
}

CASE(fault_null_pointer) {
    catch_faults();
    FAULTS(READ(NULL), SIGSEGV, SEGV_MAPERR, NULL);
    FAULTS(WRITE((char *)24), SIGSEGV, SEGV_MAPERR, 24);
}

CASE(fault_kernel_address) {
    catch_faults();
    // Not canonical: a general protection fault, which has no address.
    if (sigsetjmp(fault_return, 1) == 0) {
        READ((char *)0x8000000000000000ul);
        FAIL("no fault");
    }
    EQ(fault_info.si_signo, SIGSEGV);
    EQ(fault_info.si_code, SI_KERNEL);
    EQ((uintptr_t)fault_info.si_addr, 0);
    if (sigsetjmp(fault_return, 1) == 0) {
        READ((char *)0xffffffff81000000ul);
        FAIL("no fault");
    }
    EQ(fault_info.si_signo, SIGSEGV);
}

CASE(mprotect_read_only) {
    catch_faults();
    char *p = anonymous(3, MAP_PRIVATE);
    memset(p, 5, 3 * PAGE);
    OK(mprotect(p + PAGE, PAGE, PROT_READ));
    EQ(p[PAGE], 5);
    FAULTS(WRITE(p + PAGE + 1), SIGSEGV, SEGV_ACCERR, p + PAGE + 1);
    p[0] = 6;
    p[2 * PAGE] = 6;
    OK(mprotect(p, 3 * PAGE, PROT_READ | PROT_WRITE));
    p[PAGE] = 6;
    EQ(p[PAGE], 6);
    EQ(p[PAGE + 1], 5);
}

CASE(mprotect_none_and_back) {
    catch_faults();
    char *p = anonymous(1, MAP_PRIVATE);
    p[7] = 42;
    OK(mprotect(p, PAGE, PROT_NONE));
    FAULTS(READ(p + 7), SIGSEGV, SEGV_ACCERR, p + 7);
    OK(mprotect(p, PAGE, PROT_READ));
    EQ(p[7], 42);
}

CASE(mprotect_before_first_touch) {
    catch_faults();
    char *p = anonymous(2, MAP_PRIVATE);
    OK(mprotect(p, 2 * PAGE, PROT_READ));
    EQ(p[0], 0);
    FAULTS(WRITE(p), SIGSEGV, SEGV_ACCERR, p);
    OK(mprotect(p, 2 * PAGE, PROT_READ | PROT_WRITE));
    p[0] = 1;
    EQ(p[PAGE], 0);
}

CASE(mprotect_errors) {
    char *p = anonymous(2, MAP_PRIVATE);
    ERR(mprotect(p + 1, PAGE, PROT_READ), EINVAL);
    OK(munmap(p + PAGE, PAGE));
    ERR(mprotect(p, 2 * PAGE, PROT_READ), ENOMEM);
    OK(mprotect(p, 0, PROT_READ));
    int fd = file_of_pages("f", 1);
    int read_only = OK(open("f", O_RDONLY));
    char *q = OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, read_only, 0));
    ERR(mprotect(q, PAGE, PROT_READ | PROT_WRITE), EACCES);
    OK(close(fd));
}

CASE(execute_permission) {
    catch_faults();
    unsigned char code[] = {0xb8, 0x2a, 0, 0, 0, 0xc3};  // mov $42, %eax; ret
    char *p = anonymous(1, MAP_PRIVATE);
    memcpy(p, code, sizeof code);
    int (*volatile function)(void) = (int (*)(void))p;
    FAULTS(function(), SIGSEGV, SEGV_ACCERR, p);
    OK(mprotect(p, PAGE, PROT_READ | PROT_EXEC));
    EQ(function(), 42);
    OK(mprotect(p, PAGE, PROT_READ | PROT_WRITE));
    p[1] = 43;
    OK(mprotect(p, PAGE, PROT_READ | PROT_EXEC));
    EQ(function(), 43);
}

CASE(self_modifying_code) {
    char *p = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int (*volatile function)(void) = (int (*)(void))p;
    for (int i = 0; i < 20; i++) {
        unsigned char code[] = {0xb8, (unsigned char)i, 0, 0, 0, 0xc3};
        memcpy(p, code, sizeof code);
        EQ(function(), i);
    }
}

CASE(fault_is_repaired_in_the_handler) {
    // A handler that maps the page and returns: the instruction is run again.
    static char *hole;
    hole = anonymous(1, MAP_PRIVATE);
    OK(mprotect(hole, PAGE, PROT_NONE));
    void repair(int signo, siginfo_t *info, void *context) { mprotect(hole, PAGE, PROT_READ | PROT_WRITE); }
    struct sigaction a = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSEGV, &a, NULL));
    *(volatile char *)(hole + 10) = 77;
    EQ(hole[10], 77);
}

CASE(fault_kills_without_handler) {
    pid_t pid = OK(fork());
    if (pid == 0) WRITE(NULL);
    expect_killed(pid, SIGSEGV);
}

CASE(stack_grows) {
    // Far more than is mapped at start, within the limit.
    volatile char big[3 << 20];
    for (size_t i = sizeof big; i > 0; i -= PAGE) big[i - 1] = (char)i;
    for (size_t i = sizeof big; i > 0; i -= PAGE) EQ(big[i - 1], (char)i);
}

static int recurse(int depth) {
    volatile char frame[1024];
    frame[0] = (char)depth;
    return depth == 0 ? 0 : recurse(depth - 1) + (frame[0] ? 1 : 1);
}

CASE(stack_overflow_is_a_fault) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct rlimit limit = {256 * 1024, 256 * 1024};
        OK(setrlimit(RLIMIT_STACK, &limit));
        recurse(1 << 20);
        _exit(0);
    }
    expect_killed(pid, SIGSEGV);
}

CASE(grows_down_mapping) {
    char *area = anonymous(300, MAP_PRIVATE);
    OK(munmap(area, 300 * PAGE));
    char *p = OK(mmap(area + 299 * PAGE, PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0));
    p[0] = 1;
    *(volatile char *)(p - 1) = 2;  // one page below
    EQ(p[-1], 2);
}

CASE(mremap_grows_and_moves) {
    char *p = anonymous(2, MAP_PRIVATE);
    for (int i = 0; i < 2 * PAGE; i++) p[i] = (char)(i * 3);
    char *q = OK(mremap(p, 2 * PAGE, 200 * PAGE, MREMAP_MAYMOVE));
    for (int i = 0; i < 2 * PAGE; i++) EQ(q[i], (char)(i * 3));
    for (int i = 2 * PAGE; i < 200 * PAGE; i += PAGE) EQ(q[i], 0);
    q[199 * PAGE] = 1;
}

CASE(mremap_shrinks) {
    catch_faults();
    char *p = anonymous(4, MAP_PRIVATE);
    memset(p, 1, 4 * PAGE);
    char *q = OK(mremap(p, 4 * PAGE, PAGE, 0));
    CHECK(p == q);
    EQ(p[0], 1);
    FAULTS(READ(p + PAGE), SIGSEGV, SEGV_MAPERR, p + PAGE);
}

CASE(mremap_in_place_needs_room) {
    char *p = anonymous(3, MAP_PRIVATE);
    ERR(mremap(p, PAGE, 3 * PAGE, 0), ENOMEM);
    OK(munmap(p + PAGE, 2 * PAGE));
    p[5] = 5;
    char *q = OK(mremap(p, PAGE, 3 * PAGE, 0));
    CHECK(p == q);
    EQ(p[5], 5);
    EQ(p[2 * PAGE], 0);
}

CASE(mremap_to_more_than_there_can_be) {
    int fd = file_of_pages("f", 4);
    char *private = anonymous(1, MAP_PRIVATE);
    char *file = OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE));
    char *far = OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, INT64_MAX - 3 * PAGE + 1));
    const size_t lengths[] = {-(size_t)PAGE, (size_t)INT64_MAX & -PAGE, (size_t)1 << 47, (size_t)1 << 62};
    char *places[] = {private, file, far};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            for (int flags = 0; flags <= MREMAP_MAYMOVE; flags += MREMAP_MAYMOVE) {
                CHECK(mremap(places[i], PAGE, lengths[k], flags) == MAP_FAILED);
                // What Linux says has changed with time.
                CHECK(errno == ENOMEM || errno == EINVAL);
            }
    EQ(file[0], 'b');
}

CASE(mremap_fixed) {
    catch_faults();
    char *p = anonymous(2, MAP_PRIVATE), *target = anonymous(2, MAP_PRIVATE);
    memset(p, 3, 2 * PAGE);
    memset(target, 4, 2 * PAGE);
    char *q = OK(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target));
    CHECK(q == target);
    EQ(target[PAGE], 3);
    FAULTS(READ(p), SIGSEGV, SEGV_MAPERR, p);
    ERR(mremap(p, PAGE, PAGE, MREMAP_FIXED, target), EINVAL);
    ERR(mremap(p, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT);
}

CASE(mremap_of_file_mapping) {
    int fd = file_of_pages("f", 4);
    char *p = OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE));
    char *q = OK(mremap(p, PAGE, 3 * PAGE, MREMAP_MAYMOVE));
    EQ(q[0], 'b');
    EQ(q[2 * PAGE], 'd');
}

CASE(madvise_dontneed_zeroes) {
    char *p = anonymous(4, MAP_PRIVATE);
    memset(p, 1, 4 * PAGE);
    OK(madvise(p + PAGE, 2 * PAGE, MADV_DONTNEED));
    EQ(p[0], 1);
    EQ(p[PAGE], 0);
    EQ(p[2 * PAGE], 0);
    EQ(p[3 * PAGE], 1);
}

CASE(madvise_dontneed_private_file_rereads) {
    int fd = file_of_pages("f", 1);
    char *p = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    p[0] = 'X';
    OK(madvise(p, PAGE, MADV_DONTNEED));
    EQ(p[0], 'a');
}

CASE(madvise_dontneed_keeps_shared) {
    char *p = anonymous(1, MAP_SHARED);
    p[0] = 'S';
    OK(madvise(p, PAGE, MADV_DONTNEED));
    EQ(p[0], 'S');
}

CASE(madvise_free) {
    char *p = anonymous(2, MAP_PRIVATE);
    memset(p, 1, 2 * PAGE);
    OK(madvise(p, 2 * PAGE, MADV_FREE));
    CHECK(p[0] == 0 || p[0] == 1);
    p[0] = 9;
    EQ(p[0], 9);
}

CASE(madvise_others) {
    char *p = anonymous(4, MAP_PRIVATE);
    OK(madvise(p, 4 * PAGE, MADV_WILLNEED));
    OK(madvise(p, 4 * PAGE, MADV_SEQUENTIAL));
    OK(madvise(p, 4 * PAGE, MADV_RANDOM));
    OK(madvise(p, 4 * PAGE, MADV_NORMAL));
    ERR(madvise(p + 1, PAGE, MADV_NORMAL), EINVAL);
    ERR(madvise(p, PAGE, 9999), EINVAL);
    OK(munmap(p + PAGE, PAGE));
    ERR(madvise(p, 4 * PAGE, MADV_DONTNEED), ENOMEM);
}

// The 2 MiB of which a program says that it wants them in one piece are as others are.
enum { HUGE_BYTES = 2 << 20 };

static char *huge_area(int pieces) {
    char *p = OK(mmap(NULL, (pieces + 1) * (long)HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *aligned = (char *)(((uintptr_t)p + HUGE_BYTES - 1) & -(uintptr_t)HUGE_BYTES);
    OK(madvise(aligned, pieces * (long)HUGE_BYTES, MADV_HUGEPAGE));
    return aligned;
}

// What the row `name` of the range that begins at `start` says in smaps.
static bool smaps_row(const void *start, const char *name, char *value, size_t size) {
    char head[32], line[512];
    bool found = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f != NULL);
    snprintf(head, sizeof head, "%lx-", (unsigned long)start);
    while (fgets(line, sizeof line, f) && strncmp(line, head, strlen(head)) != 0) {}
    while (!found && fgets(line, sizeof line, f)) found = strncmp(line, name, strlen(name)) == 0;
    fclose(f);
    if (found) snprintf(value, size, "%s", line + strlen(name));
    return found;
}

CASE(huge_pages_read_as_zeros) {
    enum { PIECES = 6, ROUNDS = 8 };
    for (int round = 0; round < ROUNDS; round++) {
        char *p = huge_area(PIECES);
        for (long at = 0; at < PIECES * (long)HUGE_BYTES; at += PAGE) {
            CHECK(p[at] == 0 && p[at + PAGE - 1] == 0);
            p[at] = (char)(at >> 12 | 1);
        }
        // Parts of them are given back, and protected.
        OK(madvise(p + HUGE_BYTES / 2, HUGE_BYTES, MADV_DONTNEED));
        OK(madvise(p + 3 * (long)HUGE_BYTES + 5 * PAGE, 7 * PAGE, MADV_DONTNEED));
        OK(mprotect(p + 4 * (long)HUGE_BYTES + PAGE, PAGE, PROT_READ));
        for (long at = 0; at < PIECES * (long)HUGE_BYTES; at += PAGE) {
            long page = at / PAGE;
            bool gone = (page >= 256 && page < 768) || (page >= 1541 && page < 1548);
            EQ(p[at], gone ? 0 : (char)(page | 1));
        }
        OK(munmap(p, PIECES * (long)HUGE_BYTES));
    }
}

CASE(huge_pages_are_copied_by_fork) {
    char *p = huge_area(2);
    memset(p, 1, 2 * (long)HUGE_BYTES);
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (long at = 0; at < 2 * (long)HUGE_BYTES; at += PAGE) {
            CHECK(p[at] == 1);
            p[at] = 2;
        }
        _exit(p[5 * PAGE] == 2 ? 7 : 1);
    }
    for (long at = 0; at < 2 * (long)HUGE_BYTES; at += PAGE) p[at] = 3;
    expect_exit(pid, 7);
    for (long at = 0; at < 2 * (long)HUGE_BYTES; at += PAGE) EQ(p[at], 3);
}

static char *huge_shared;
static void *writes_its_byte(void *number) {
    long own = (long)number;
    for (long at = 0; at < 16 * (long)HUGE_BYTES; at += PAGE) huge_shared[at + own] = (char)(own + 1);
    return NULL;
}

// Threads that meet in one lose nothing.
CASE(huge_pages_of_many_threads) {
    enum { THREADS = 8 };
    huge_shared = huge_area(16);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) EQ(pthread_create(&threads[i], NULL, writes_its_byte, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) EQ(pthread_join(threads[i], NULL), 0);
    for (long at = 0; at < 16 * (long)HUGE_BYTES; at += PAGE)
        for (int i = 0; i < THREADS; i++) EQ(huge_shared[at + i], i + 1);
}

// Whoever is killed while it waits for one leaves nothing of its own to the next.
CASE(huge_pages_of_who_is_killed) {
    for (int n = 0; n < 12; n++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            memset(huge_area(16), 9, 16 * (long)HUGE_BYTES);
            pause();
        }
        usleep(n * 700);
        OK(kill(pid, SIGKILL));
        OK(waitpid(pid, NULL, 0));
        char *p = huge_area(4);
        for (long at = 0; at < 4 * (long)HUGE_BYTES; at += 512) EQ(p[at], 0);
        OK(munmap(p, 4 * (long)HUGE_BYTES));
    }
}

// Of what a container with a limit of 64 MiB has, huge pages take no more than is written to: small
// ones do in the end.
CASE(huge_pages_fit_into_a_limit) {
    if (!getenv("QUARK_LIMITED")) skip_case("only where memory has a limit of 64 MiB");
    long piece = HUGE_BYTES, row = 8 * (long)HUGE_BYTES + PAGE;
    // Rows that end just where the next piece begins, and others' memory after them.
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int n = 0; n < 2; n++) memset(huge_area(9), 1, row);
        long rest = 4 * piece;
        char *small = OK(mmap(NULL, rest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        OK(madvise(small, rest, MADV_NOHUGEPAGE));
        for (long at = 0; at < rest; at += PAGE) {
            small[at] = 1;
            if (at % (16 * PAGE) == 0) usleep(1000);
        }
        _exit(7);
    }
    expect_exit(pid, 7);
    for (int writes = 0; writes < 2; writes++) {
        pid = OK(fork());
        if (pid == 0) {
            int pieces = writes ? 50 : 100;
            volatile char *p = huge_area(pieces);
            for (long at = 0; at < pieces * piece; at += piece) {
                if (writes)
                    p[at] = 1;
                else
                    CHECK(p[at] == 0);
                usleep(20000);
            }
            _exit(8);
        }
        expect_exit(pid, 8);
    }
}

CASE(huge_pages_are_asked_for) {
    char value[256];
    char *p = huge_area(2);
    CHECK(smaps_row(p, "VmFlags:", value, sizeof value) && strstr(value, " hg"));
    memset(p, 1, 2 * (long)HUGE_BYTES);
    // The host may have none.
    CHECK(smaps_row(p, "AnonHugePages:", value, sizeof value));
    long kib = atol(value);
    CHECK(kib >= 0 && kib <= 2 * HUGE_BYTES / 1024 && kib % (HUGE_BYTES / 1024) == 0);
    OK(madvise(p, HUGE_BYTES, MADV_NOHUGEPAGE));
    CHECK(smaps_row(p, "VmFlags:", value, sizeof value) && strstr(value, " nh") && !strstr(value, " hg"));
    OK(munmap(p + HUGE_BYTES, HUGE_BYTES));
    ERR(madvise(p, 2 * HUGE_BYTES, MADV_HUGEPAGE), ENOMEM);
    OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
    p = huge_area(2);
    memset(p, 1, 2 * (long)HUGE_BYTES);
}

CASE(madvise_dontfork) {
    char *p = anonymous(1, MAP_PRIVATE);
    OK(madvise(p, PAGE, MADV_DONTFORK));
    pid_t pid = OK(fork());
    if (pid == 0) {
        READ(p);
        _exit(0);
    }
    expect_killed(pid, SIGSEGV);
}

CASE(madvise_wipeonfork) {
    char *p = anonymous(1, MAP_PRIVATE);
    p[0] = 5;
    OK(madvise(p, PAGE, MADV_WIPEONFORK));
    pid_t pid = OK(fork());
    if (pid == 0) _exit(p[0]);
    expect_exit(pid, 0);
    EQ(p[0], 5);
}

CASE(map_populate) {
    char *p = anonymous(8, MAP_PRIVATE | MAP_POPULATE);
    unsigned char present[8];
    OK(mincore(p, 8 * PAGE, present));
    for (int i = 0; i < 8; i++) EQ(present[i] & 1, 1);
}

CASE(mincore_answers) {
    char *p = anonymous(4, MAP_PRIVATE);
    p[0] = 1;
    unsigned char present[4] = {0};
    OK(mincore(p, 4 * PAGE, present));
    EQ(present[0] & 1, 1);
    ERR(mincore(p + 1, PAGE, present), EINVAL);
    OK(munmap(p + PAGE, PAGE));
    ERR(mincore(p, 2 * PAGE, present), ENOMEM);
}

CASE(mlock_family) {
    char *p = anonymous(2, MAP_PRIVATE);
    OK(mlock(p, 2 * PAGE));
    p[0] = 1;
    OK(munlock(p, 2 * PAGE));
    OK(mlock2(p, PAGE, MLOCK_ONFAULT));
    OK(munlockall());
    ERR(mlockall(0), EINVAL);
    OK(munmap(p, 2 * PAGE));
    ERR(mlock(p, PAGE), ENOMEM);
}

CASE(msync_errors) {
    char *p = anonymous(1, MAP_PRIVATE);
    OK(msync(p, PAGE, MS_ASYNC));
    ERR(msync(p + 1, PAGE, MS_SYNC), EINVAL);
    ERR(msync(p, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    OK(munmap(p, PAGE));
    ERR(msync(p, PAGE, MS_SYNC), ENOMEM);
}

CASE(brk_moves) {
    char *start = (char *)syscall(SYS_brk, 0);
    char *end = (char *)syscall(SYS_brk, start + 100 * PAGE);
    EQ(end - start, 100 * PAGE);
    for (int i = 0; i < 100; i++) EQ(start[i * PAGE], 0);
    memset(start, 3, 100 * PAGE);
    EQ(syscall(SYS_brk, start) - (long)start, 0);
    EQ(syscall(SYS_brk, start + PAGE) - (long)start, PAGE);
    EQ(start[0], 0);
    // A refused request gives the old break.
    EQ(syscall(SYS_brk, 16) - (long)start, PAGE);
}

CASE(large_sparse_mapping) {
    size_t size = 8ul << 30;
    char *p = OK(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t at = 0; at < size; at += 256ul << 20) p[at] = (char)(at >> 28);
    for (size_t at = 0; at < size; at += 256ul << 20) EQ(p[at], (char)(at >> 28));
    EQ(p[PAGE], 0);
    OK(munmap(p, size));
}

static long resident_pages(void) {
    char text[128] = "";
    int fd = OK(open("/proc/self/statm", O_RDONLY));
    OK(read(fd, text, sizeof text - 1));
    OK(close(fd));
    return atol(strchr(text, ' '));
}

CASE(what_is_given_back_is_gone_and_comes_again) {
    // Many, as Linux before 6.2 knows to some hundred pages only how many there are.
    enum { PAGES = 1000 };
    char *p = OK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE};
    int zero = OK(open("/dev/zero", O_RDONLY));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < PAGES; i++) {
            // A free page keeps what it holds until somebody needs it.
            if (advices[(round + 3) % 4] != MADV_FREE) EQ(p[i * PAGE + 7], 0);
            p[i * PAGE + 7] = (char)(round + 1);
        }
        long before = resident_pages();
        // All but the last page and every tenth, which are left alone.
        for (int i = 0; i < PAGES - 1; i += 10) OK(madvise(p + i * PAGE, 9 * PAGE, advices[round]));
        if (advices[round] == MADV_FREE) break;
        CHECK(before - resident_pages() > PAGES / 2);
        unsigned char all[PAGES];
        OK(mincore(p, PAGES * PAGE, all));
        for (int i = 0; i < PAGES; i++)
            if (i % 10 != 9) EQ(all[i] & 1, 0);
        for (int i = 0; i < PAGES; i++) {
            unsigned char there;
            bool kept = i % 10 == 9;
            // By the kernel first, or by the program.
            if (i % 10 == 3) EQ(read(zero, p + i * PAGE, 1), 1);
            EQ(p[i * PAGE + 7], kept ? round + 1 : 0);
            p[i * PAGE + 9] = 1;
            OK(mincore(p + i * PAGE, PAGE, &there));
            EQ(there & 1, 1);
        }
        OK(madvise(p, PAGES * PAGE, MADV_DONTNEED));
    }
}

CASE(what_is_given_back_stays_with_others) {
    enum { PAGES = 16 };
    char *p = OK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *shared = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    memset(p, 'a', PAGES * PAGE);
    shared[0] = 's';
    int to_child[2], to_parent[2];
    char c;
    OK(pipe(to_child));
    OK(pipe(to_parent));
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(p[0], 'a');
        p[PAGE] = 'b';
        EQ(write(to_parent[1], "x", 1), 1);
        EQ(read(to_child[0], &c, 1), 1);
        for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], i == 1 ? 'b' : 'a');
        EQ(shared[0], 's');
        // The other one has given its copies up: these are nobody else's now.
        OK(madvise(p, PAGES * PAGE, MADV_DONTNEED));
        for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], 0);
        _exit(0);
    }
    EQ(read(to_parent[0], &c, 1), 1);
    OK(madvise(p, PAGES * PAGE, MADV_DONTNEED));
    OK(madvise(shared, PAGE, MADV_DONTNEED));
    for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], 0);
    EQ(shared[0], 's');
    memset(p, 'c', PAGES * PAGE);
    EQ(write(to_child[1], "x", 1), 1);
    expect_exit(pid, 0);
    for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], 'c');
}

CASE(what_was_unmapped_stays_free) {
    // Rows of calls from one place in between: whatever a kernel maps for its own ends, it does so elsewhere.
    enum { PAGES = 64 };
    char *p = OK(mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(munmap(p, PAGES * PAGE));
    int zero = OK(open("/dev/zero", O_RDONLY));
    char byte;
    for (int i = 0; i < 2000; i++) {
        getppid();
        EQ(read(zero, &byte, 1), 1);
    }
    EQ(mmap(p, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), p);
}

CASE(many_mappings) {
    enum { COUNT = 1000 };
    static char *p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = OK(mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (i % 2 == 0) p[i][0] = (char)i;
    }
    for (int i = 0; i < COUNT; i++) EQ(p[i][0], i % 2 ? 0 : (char)i);
    for (int i = 0; i < COUNT; i++) OK(munmap(p[i], PAGE));
}

CASE(checkerboard_protection) {
    catch_faults();
    char *p = anonymous(64, MAP_PRIVATE);
    memset(p, 1, 64 * PAGE);
    for (int i = 0; i < 64; i += 2) OK(mprotect(p + i * PAGE, PAGE, PROT_READ));
    for (int i = 0; i < 64; i++) {
        if (i % 2 == 0) FAULTS(WRITE(p + i * PAGE), SIGSEGV, SEGV_ACCERR, p + i * PAGE);
        else WRITE(p + i * PAGE);
    }
}

CASE(copy_on_write_after_fork) {
    enum { PAGES = 200 };
    char *p = anonymous(PAGES, MAP_PRIVATE);
    for (int i = 0; i < PAGES; i++) p[i * PAGE] = (char)i;
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < PAGES; i += 2) p[i * PAGE] = (char)(i + 100);
        char c;
        EQ(read(pipes[0], &c, 1), 1);
        for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], (char)(i % 2 ? i : i + 100));
        _exit(0);
    }
    for (int i = 0; i < PAGES; i += 3) p[i * PAGE] = (char)(i + 50);
    EQ(write(pipes[1], "x", 1), 1);
    expect_exit(pid, 0);
    for (int i = 0; i < PAGES; i++) EQ(p[i * PAGE], (char)(i % 3 ? i : i + 50));
}

CASE(copy_on_write_after_mprotect) {
    // Shared by a fork while it could not be written; each side then makes it writable again.
    int protections[] = {PROT_READ, PROT_NONE};
    for (int i = 0; i < 2; i++) {
        char *p = anonymous(4, MAP_PRIVATE);
        memset(p, 'p', 4 * PAGE);
        OK(mprotect(p, 4 * PAGE, protections[i]));
        pid_t pid = OK(fork());
        if (pid == 0) {
            OK(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE));
            EQ(p[0], 'p');
            p[0] = p[2 * PAGE] = 'c';
            _exit(0);
        }
        expect_exit(pid, 0);
        OK(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE));
        EQ(p[0], 'p');
        EQ(p[2 * PAGE], 'p');
        p[PAGE] = 'x';
        EQ(p[PAGE], 'x');
    }
}

CASE(protected_page_shared_by_fork_after_changes) {
    char *p = anonymous(2, MAP_PRIVATE);
    memset(p, 'p', 2 * PAGE);
    pid_t pid = OK(fork());
    if (pid == 0) {
        // Shared first, then read-only, then writable: still shared with the parent.
        OK(mprotect(p, 2 * PAGE, PROT_READ));
        OK(mprotect(p, 2 * PAGE, PROT_READ | PROT_WRITE));
        p[0] = 'c';
        EQ(p[PAGE], 'p');
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(p[0], 'p');
}

CASE(copy_on_write_through_system_calls) {
    // The kernel's own writes into user memory must break sharing too.
    char *p = anonymous(1, MAP_PRIVATE);
    memset(p, 'p', PAGE);
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int fd = OK(open("/dev/zero", O_RDONLY));
        EQ(read(fd, p, PAGE), PAGE);
        EQ(p[10], 0);
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(p[10], 'p');
}

CASE(fork_chain_shares_pages) {
    char *p = anonymous(16, MAP_PRIVATE);
    memset(p, 1, 16 * PAGE);
    pid_t pid = OK(fork());
    if (pid == 0) {
        p[0] = 2;
        pid_t grandchild = OK(fork());
        if (grandchild == 0) {
            EQ(p[0], 2);
            EQ(p[PAGE], 1);
            p[PAGE] = 3;
            _exit(0);
        }
        expect_exit(grandchild, 0);
        EQ(p[PAGE], 1);
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(p[0], 1);
}

CASE(process_vm_readv_writev) {
    static char here[100] = "parent";
    struct iovec { void *base; size_t length; } local, remote;
    pid_t pid = OK(fork());
    if (pid == 0) {
        strcpy(here, "child");
        OK(raise(SIGSTOP));
        _exit(here[0] == 'C' ? 0 : 1);
    }
    int status;
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    char b[100] = {0};
    local = (struct iovec){b, 6};
    remote = (struct iovec){here, 6};
    EQ(syscall(SYS_process_vm_readv, pid, &local, 1, &remote, 1, 0), 6);
    STR_EQ(b, "child");
    local = (struct iovec){"C", 1};
    EQ(syscall(SYS_process_vm_writev, pid, &local, 1, &remote, 1, 0), 1);
    OK(kill(pid, SIGCONT));
    expect_exit(pid, 0);
}

struct vector { void *base; size_t length; };

static long vm_read(pid_t pid, void *to, const void *from, size_t length) {
    struct vector local = {to, length}, remote = {(void *)from, length};
    return syscall(SYS_process_vm_readv, pid, &local, 1, &remote, 1, 0);
}

static long vm_write(pid_t pid, void *to, const void *from, size_t length) {
    struct vector local = {(void *)from, length}, remote = {to, length};
    return syscall(SYS_process_vm_writev, pid, &local, 1, &remote, 1, 0);
}

CASE(process_vm_errors_and_parts) {
    char *p = OK(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(p, 'x', 2 * PAGE);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(munmap(p + PAGE, PAGE));
        OK(raise(SIGSTOP));
        for (;;) pause();
    }
    int status;
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    static char b[3 * PAGE];
    ERR(vm_read(pid, b, p + PAGE, 10), EFAULT);
    EQ(vm_read(pid, b, p + PAGE - 10, 20), 10);
    EQ(vm_read(pid, b, p, 0), 0);
    struct vector local[2] = {{b, 5}, {b + 100, 7}}, remote[2] = {{p, 3}, {p + 50, 9}};
    EQ(syscall(SYS_process_vm_readv, pid, local, 2, remote, 2, 0), 12);
    EQ(b[106], 'x');
    ERR(syscall(SYS_process_vm_readv, pid, local, 1, remote, 1, 1), EINVAL);
    ERR(syscall(SYS_process_vm_readv, pid, local, 2000, remote, 1, 0), EINVAL);
    ERR(syscall(SYS_process_vm_readv, pid, (void *)8, 1, remote, 1, 0), EFAULT);
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
    ERR(vm_read(pid, b, p, 10), ESRCH);
    EQ(vm_read(getpid(), b, p, 10), 10);
}

CASE(process_vm_needs_the_right_to_attach) {
    if (getuid() != 0) skip_case("needs root");
    static char here[8] = "parent";
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        char b[8];
        OK(setgid(1000));
        OK(setuid(1000));
        ERR(vm_read(parent, b, here, 6), EPERM);
        ERR(vm_write(parent, here, b, 6), EPERM);
        // Changed ids made it undumpable: not even one like it may look into it.
        pid_t other = OK(fork());
        if (other == 0) {
            ERR(vm_read(getppid(), b, here, 6), EPERM);
            _exit(0);
        }
        expect_exit(other, 0);
        _exit(0);
    }
    expect_exit(pid, 0);
}

// All running threads of the other process see what was written when the call has returned, also where pages were shared
// copy-on-write.
CASE(process_vm_writev_reaches_running_threads) {
    enum { THREADS = 3, ROUNDS = 50 };
    volatile int *seen = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    volatile int *word = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    *word = 0;
    pid_t pid = OK(fork());
    if (pid == 0) {
        void *spin(void *at) {
            for (;;) *(volatile int *)at = *word;
            return NULL;
        }
        pthread_t t;
        for (int i = 1; i < THREADS; i++) ZERO(pthread_create(&t, NULL, spin, (void *)&seen[i]));
        seen[THREADS] = 1;
        spin((void *)&seen[0]);
    }
    WAIT_UNTIL(seen[THREADS] == 1);
    for (int value = 1; value <= ROUNDS; value++) {
        EQ(vm_write(pid, (void *)word, &value, sizeof value), sizeof value);
        for (int i = 0; i < THREADS; i++) {
            while (seen[i] != value) sched_yield();
        }
    }
    kill(pid, SIGKILL);
    expect_killed(pid, SIGKILL);
    EQ(*word, 0);
}

CASE(map_32bit_with_hints_and_limits) {
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT;
    char *a = OK(mmap(NULL, PAGE, prot, flags, -1, 0)), *b = OK(mmap(NULL, 16 << 20, prot, flags, -1, 0));
    CHECK((uintptr_t)a >= 1ul << 30 && (uintptr_t)a + PAGE <= 1ul << 31);
    CHECK((uintptr_t)b >= 1ul << 30 && (uintptr_t)b + (16 << 20) <= 1ul << 31);
    memset(b, 1, 16 << 20);
    ERR(mmap(NULL, 2ul << 30, prot, flags, -1, 0), ENOMEM);
    // An exact address is an exact address.
    char *high = OK(mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK((uintptr_t)high > 1ul << 32);
    EQ((uintptr_t)OK(mmap(high, PAGE, prot, flags | MAP_FIXED, -1, 0)), (uintptr_t)high);
}

// With QUARK_NOEXEC set the scratch directory lies on a noexec mount already.
CASE(nothing_on_a_noexec_mount_is_executable) {
    if (!getenv("QUARK_NOEXEC")) {
        if (getuid() != 0) skip_case("needs root");
        if (unshare(CLONE_NEWNS) == 0) OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
        OK(mkdir("m", 0755));
        OK(mount("tmpfs", "m", "tmpfs", MS_NOEXEC, NULL));
        OK(chdir("m"));
    }
    int fd = OK(open("f", O_RDWR | O_CREAT, 0755));
    EQ(write(fd, "#!/bin/true\n", 12), 12);
    int types[] = {MAP_PRIVATE, MAP_SHARED};
    for (int i = 0; i < 2; i++) {
        ERR(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, types[i], fd, 0), EPERM);
        char *p = OK(mmap(NULL, PAGE, PROT_READ, types[i], fd, 0));
        EQ(p[0], '#');
        ERR(mprotect(p, PAGE, PROT_READ | PROT_EXEC), EACCES);
        EQ(p[1], '!');
    }
    OK(close(fd));
    ERR(execl("./f", "f", NULL), EACCES);
}

static void limit(int which, rlim_t bytes) {
    struct rlimit l = {bytes, RLIM_INFINITY};
    OK(setrlimit(which, &l));
}

static long mapped_kib(void) {
    char text[4096];
    read_file("/proc/self/status", text, sizeof text);
    return atol(strstr(text, "VmSize:") + 7);
}

// RLIMIT_AS holds for the heap and the stack as for mmap.
CASE(brk_within_the_limit_of_the_address_space) {
    char *now = sbrk(0);
    limit(RLIMIT_AS, (mapped_kib() + 1024) * 1024);
    ERR(brk(now + (8 << 20)), ENOMEM);
    EQ((uintptr_t)sbrk(0), (uintptr_t)now);
    ERR(mmap(NULL, 8 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
    OK(brk(now + (64 << 10)));
    memset(now, 1, 64 << 10);
}

CASE(data_limit) {
    char *now = sbrk(0);
    char *readable = OK(mmap(NULL, 64 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    limit(RLIMIT_DATA, 16 << 20);
    ERR(brk(now + (32 << 20)), ENOMEM);
    ERR(mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
    ERR(mprotect(readable, 32 << 20, PROT_READ | PROT_WRITE), ENOMEM);
    // What is shared or cannot be written does not count.
    OK(mmap(NULL, 32 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OK(mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    OK(brk(now + (1 << 20)));
    char *a = OK(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ERR(mremap(a, 1 << 20, 32 << 20, MREMAP_MAYMOVE), ENOMEM);
}

// The kernel's own accesses extend the stack no further than the program's.
CASE(kernel_does_not_grow_the_stack_past_its_limit) {
    char here, *far = &here - (64 << 20);
    int pipes[2];
    OK(pipe(pipes));
    EQ(write(pipes[1], "xy", 2), 2);
    ERR(read(pipes[0], far, 1), EFAULT);
    EQ(read(pipes[0], &here - (1 << 20), 1), 1);
}

CASE(locked_memory_limit) {
    if (getuid() == 0) {
        OK(setresuid(65534, 65534, 65534));
    }
    struct rlimit l = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &l) == -1) skip_case("the limit is lower already");
    char *a = OK(mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ERR(mlock(a, 2 << 20), ENOMEM);
    OK(mlock(a, 768 << 10));
    OK(mlock(a, 768 << 10));
    ERR(mlock(a + (1 << 20), 768 << 10), ENOMEM);
    ERR(mmap(NULL, 768 << 10, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EAGAIN);
    ERR(mlockall(MCL_CURRENT), ENOMEM);
    OK(munlock(a, 4 << 20));
    OK(mlock(a + (1 << 20), 768 << 10));
    OK(munlockall());
    l.rlim_cur = l.rlim_max = 0;
    OK(setrlimit(RLIMIT_MEMLOCK, &l));
    ERR(mlock(a, 4096), EPERM);
    ERR(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EPERM);
    ERR(mlockall(MCL_CURRENT), EPERM);
}

CASE(fork_again_and_again_keeps_both_sides_apart) {
    // What is written to after each fork may be copied at the next one already: neither side may notice.
    enum { PAGES = 80, FORKS = 40 };
    static char *area;
    area = OK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int go[2];
    for (int n = 1; n <= FORKS; n++) {
        for (int p = 0; p < PAGES; p++) area[p * PAGE] = (char)n;
        // What becomes of pages between two forks.
        if (n % 5 == 0) OK(madvise(area, 4 * PAGE, MADV_DONTNEED));
        if (n % 7 == 0) OK(mprotect(area + 4 * PAGE, 4 * PAGE, PROT_READ));
        if (n % 11 == 0) OK(madvise(area + 8 * PAGE, 4 * PAGE, MADV_WIPEONFORK));
        if (n % 13 == 0) OK(munmap(area + 12 * PAGE, 4 * PAGE));
        OK(pipe(go));
        pid_t pid = OK(fork());
        if (pid == 0) {
            char c;
            EQ(read(go[0], &c, 1), 1);
            for (int p = 0; p < PAGES; p++) {
                if (n % 13 == 0 && p / 4 == 3) continue;
                int is_zero = (n % 5 == 0 && p / 4 == 0) || (n % 11 == 0 && p / 4 == 2);
                EQ(area[p * PAGE], is_zero ? 0 : n);
                if (!(n % 7 == 0 && p / 4 == 1)) area[p * PAGE] = (char)(n + 100);
            }
            _exit(0);
        }
        for (int p = 16; p < PAGES; p++) area[p * PAGE] = (char)(n + 50);
        EQ(write(go[1], "x", 1), 1);
        expect_exit(pid, 0);
        for (int p = 16; p < PAGES; p++) EQ(area[p * PAGE], (char)(n + 50));
        if (n % 7 == 0) OK(mprotect(area + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE));
        if (n % 11 == 0) OK(madvise(area + 8 * PAGE, 4 * PAGE, MADV_KEEPONFORK));
        if (n % 13 == 0)
            EQ(mmap(area + 12 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), area + 12 * PAGE);
        OK(close(go[0]));
        OK(close(go[1]));
    }
}

/* How much of the mapping that begins at an address is present, in KiB. Its entry of smaps counts the pages; statm is off
   by some dozens on Linux before 6.2. */
static long resident_kib(const void *start) {
    char value[64];
    long kib = -1;
    CHECK(smaps_row(start, "Rss:", value, sizeof value) && sscanf(value, " %ld kB", &kib) == 1);
    CHECK(kib >= 0);
    return kib;
}

/* Who touches one page of memory that another process has filled gets its neighbours too
   (fault_around_bytes), with their contents; and a page that was read can be written. */
CASE(shared_memory_that_is_there_is_mapped_around_a_touched_page) {
    enum { PAGES = 16, PAGE = 4096, CHUNK = PAGES * PAGE };
    char *all = mmap(NULL, 4 * CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    char *chunk = (char *)(((unsigned long)all + CHUNK - 1) & ~(CHUNK - 1UL));
    int filled[2];
    OK(pipe(filled));
    pid_t child = OK(fork());
    if (child == 0) {
        char byte;
        EQ(read(filled[0], &byte, 1), 1);
        EQ(resident_kib(all), 0);
        CHECK(*(volatile char *)(chunk + 3 * PAGE) == 4);
        EQ(resident_kib(all), CHUNK / 1024);
        for (int i = 0; i < PAGES; i++) {
            CHECK(chunk[i * PAGE] == (char)(i + 1));
            chunk[i * PAGE + 1] = (char)(100 + i);
        }
        _exit(0);
    }
    for (int i = 0; i < PAGES; i++)
        chunk[i * PAGE] = (char)(i + 1);
    EQ(write(filled[1], "x", 1), 1);
    int status;
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 0);
    for (int i = 0; i < PAGES; i++)
        CHECK(chunk[i * PAGE + 1] == (char)(100 + i));
}
