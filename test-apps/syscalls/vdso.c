// vdso(7): clocks without system calls, and the mapping they come from.
#include "harness.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

static const clockid_t CLOCKS[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};

static int64_t ns(struct timespec time) {
    CHECK(time.tv_nsec >= 0 && time.tv_nsec < 1000000000);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t by_call(clockid_t clock) {
    struct timespec time;
    OK(syscall(SYS_clock_gettime, clock, &time));
    return ns(time);
}

// What the vDSO says, if there is one.
static int64_t by_library(clockid_t clock) {
    struct timespec time;
    OK(clock_gettime(clock, &time));
    return ns(time);
}

// A function of the image, by its name.
static void *find(const char *wanted) {
    const char *image = (const char *)getauxval(AT_SYSINFO_EHDR);
    CHECK(image != NULL);
    const ElfW(Ehdr) *header = (const void *)image;
    EQ(memcmp(header->e_ident, ELFMAG, SELFMAG), 0);
    EQ(header->e_type, ET_DYN);
    const ElfW(Phdr) *segments = (const void *)(image + header->e_phoff);
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC) dynamic = (const void *)(image + segments[i].p_vaddr);
    CHECK(dynamic != NULL);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    size_t string_bytes = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        // The image is not relocated: these are offsets.
        if (dynamic->d_tag == DT_SYMTAB) symbols = (const void *)(image + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB) strings = image + dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_STRSZ) string_bytes = dynamic->d_un.d_val;
    }
    CHECK(symbols != NULL && strings != NULL);
    // Every linker so far puts the strings behind the symbols.
    for (const ElfW(Sym) *symbol = symbols + 1; (const char *)symbol < strings; symbol++)
        if (symbol->st_name < string_bytes && strcmp(strings + symbol->st_name, wanted) == 0)
            return (void *)(image + symbol->st_value);
    FAIL("no %s", wanted);
}

struct range {
    uintptr_t start, end;
    char prot[8];
};

// The first range with this name in /proc/self/maps; false when there is none.
static bool in_maps(const char *name, struct range *range) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, name) != NULL && sscanf(line, "%lx-%lx %7s", &range->start, &range->end, range->prot) == 3;
    fclose(maps);
    return found;
}

static struct range vdso(void) {
    struct range range;
    if (!in_maps("[vdso]", &range)) skip_case("the vDSO is not in the address space of the program");
    return range;
}

CASE(clocks_are_those_of_system_calls) {
    for (int round = 0; round < 20000; round++)
        for (size_t i = 0; i < sizeof CLOCKS / sizeof *CLOCKS; i++) {
            int64_t before = by_call(CLOCKS[i]), now = by_library(CLOCKS[i]), after = by_call(CLOCKS[i]);
            if (before > now || now > after)
                FAIL("clock %d: %ld %ld %ld", CLOCKS[i], (long)before, (long)now, (long)after);
        }
}

static _Atomic int64_t latest;

static void *watch(void *by_calls) {
    int64_t end = by_call(CLOCK_MONOTONIC) + 4000000000;
    for (;;) {
        int64_t before = atomic_load(&latest);
        int64_t now = by_calls ? by_call(CLOCK_MONOTONIC) : by_library(CLOCK_MONOTONIC);
        if (now < before) FAIL("%ld ns back", (long)(before - now));
        while (before < now && !atomic_compare_exchange_weak(&latest, &before, now)) continue;
        if (now > end) return NULL;
    }
}

// Long enough for several changes of what the clocks are calculated from.
CASE(monotonic_goes_forward_in_all_threads) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) ZERO(pthread_create(&threads[i], NULL, watch, i == 0 ? threads : NULL));
    for (int i = 0; i < 3; i++) ZERO(pthread_join(threads[i], NULL));
}

CASE(second_is_a_second) {
    int64_t monotonic = by_library(CLOCK_MONOTONIC), realtime = by_library(CLOCK_REALTIME);
    struct timespec duration = {.tv_sec = 2, .tv_nsec = 100000000};
    OK(syscall(SYS_nanosleep, &duration, NULL));
    int64_t passed = by_library(CLOCK_MONOTONIC) - monotonic, passed_too = by_library(CLOCK_REALTIME) - realtime;
    CHECK(passed >= 2100000000);
    // Whatever the machine does meanwhile, both clocks pass alike (but for a step of the administrator's).
    CHECK(llabs((long long)(passed - passed_too)) < 500000000);
}

CASE(functions_of_the_image) {
    int (*gettime)(clockid_t, struct timespec *) = find("__vdso_clock_gettime");
    int (*timeofday)(struct timeval *, struct timezone *) = find("__vdso_gettimeofday");
    time_t (*seconds)(time_t *) = find("__vdso_time");
    int (*getcpu)(unsigned *, unsigned *, void *) = find("__vdso_getcpu");
    int (*getres)(clockid_t, struct timespec *) = find("__vdso_clock_getres");

    struct timespec time;
    for (size_t i = 0; i < sizeof CLOCKS / sizeof *CLOCKS; i++) {
        int64_t before = by_call(CLOCKS[i]);
        EQ(gettime(CLOCKS[i], &time), 0);
        CHECK(before <= ns(time) && ns(time) <= by_call(CLOCKS[i]));
    }
    int64_t before = by_call(CLOCK_THREAD_CPUTIME_ID);
    EQ(gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
    CHECK(before <= ns(time) && ns(time) <= by_call(CLOCK_THREAD_CPUTIME_ID));
    EQ(gettime(77, &time), -EINVAL);

    struct timeval value;
    struct timezone zone;
    before = by_call(CLOCK_REALTIME) / 1000;
    EQ(timeofday(&value, &zone), 0);
    int64_t us = value.tv_sec * 1000000 + value.tv_usec;
    CHECK(before <= us && us <= by_call(CLOCK_REALTIME) / 1000);
    time_t stored, coarse = seconds(&stored);
    EQ(coarse, stored);
    // time(2) may be as late as a tick of the coarse clock.
    CHECK(llabs((long long)(seconds(NULL) - by_call(CLOCK_REALTIME) / 1000000000)) <= 1);
    unsigned cpu = -1, node = -1;
    EQ(getcpu(&cpu, &node, NULL), 0);
    CHECK(cpu < (unsigned)sysconf(_SC_NPROCESSORS_CONF) && node < 1024);
    EQ(getres(CLOCK_MONOTONIC, &time), 0);
    EQ(ns(time), 1);
    EQ(getres(CLOCK_MONOTONIC, NULL), 0);
    EQ(getres(77, &time), -EINVAL);
}

CASE(shown_in_maps) {
    struct range code = vdso();
    EQ(code.start, getauxval(AT_SYSINFO_EHDR));
    STR_EQ(code.prot, "r-xp");
}

CASE(data_lies_before_it) {
    struct range code = vdso(), data;
    CHECK(in_maps("[vvar", &data));
    STR_EQ(data.prot, "r--p");
    CHECK(data.start < code.start);
}

CASE(the_kernel_reads_it) {
    struct range code = vdso();
    size_t size = code.end - code.start;
    CHECK(size <= 1 << 16);
    const char *image = (const char *)code.start;
    static char copy[1 << 16];
    struct iovec own = {copy, size}, there = {(void *)image, size};
    EQ(OK(process_vm_readv(getpid(), &own, 1, &there, 1, 0)), size);
    EQ(memcmp(copy, image, size), 0);
    // As debuggers do it.
    memset(copy, 0, size);
    int mem = OK(open("/proc/self/mem", O_RDONLY));
    EQ(OK(pread(mem, copy, size, code.start)), size);
    EQ(memcmp(copy, image, size), 0);
    pid_t child = OK(fork());
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(7);
    }
    int status;
    EQ(OK(waitpid(child, &status, 0)), child);
    CHECK(WIFSTOPPED(status));
    for (size_t at = 0; at < size; at += 1016) {
        errno = 0;
        long word = ptrace(PTRACE_PEEKDATA, child, image + at, 0);
        EQ(errno, 0);
        EQ(memcmp(&word, image + at, sizeof word), 0);
    }
    OK(ptrace(PTRACE_CONT, child, 0, 0));
    expect_exit(child, 7);
    // As an argument of a call.
    int fds[2];
    OK(pipe(fds));
    memset(copy, 0, size);
    EQ(OK(write(fds[1], image, size)), size);
    EQ(OK(read(fds[0], copy, size)), size);
    EQ(memcmp(copy, image, size), 0);
    int file = create("image");
    EQ(OK(write(file, image, size)), size);
    EQ(OK(pread(file, copy, size, 0)), size);
    EQ(memcmp(copy, image, size), 0);
    // Nothing is written to it.
    ERR(pread(file, (void *)image, 8, 0), EFAULT);
    EQ(memcmp(copy, image, size), 0);
}

CASE(children_have_it_too) {
    vdso();
    pid_t child = OK(fork());
    if (child == 0) {
        int64_t before = by_call(CLOCK_MONOTONIC), now = by_library(CLOCK_MONOTONIC);
        struct range range;
        _exit(before <= now && now <= by_call(CLOCK_MONOTONIC) && in_maps("[vdso]", &range) ? 7 : 8);
    }
    int status;
    EQ(OK(waitpid(child, &status, 0)), child);
    CHECK(WIFEXITED(status));
    EQ(WEXITSTATUS(status), 7);
}

CASE(can_be_unmapped) {
    struct range code = vdso();
    pid_t child = OK(fork());
    if (child == 0) {
        if (munmap((void *)code.start, code.end - code.start) != 0) _exit(9);
        struct range range;
        by_call(CLOCK_MONOTONIC);
        if (in_maps("[vdso]", &range)) _exit(10);
        _exit(*(volatile char *)code.start);
    }
    int status;
    EQ(OK(waitpid(child, &status, 0)), child);
    CHECK(WIFSIGNALED(status));
    EQ(WTERMSIG(status), SIGSEGV);
    // The parent's is still there.
    by_library(CLOCK_MONOTONIC);
    EQ(vdso().start, code.start);
}

CASE(breakpoints_are_private) {
    struct range code = vdso();
    volatile unsigned char *last = (unsigned char *)code.end - 1;
    unsigned char was = *last;
    pid_t child = OK(fork());
    if (child == 0) {
        if (mprotect((void *)code.start, code.end - code.start, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) _exit(9);
        *last = was + 1;
        int64_t before = by_call(CLOCK_MONOTONIC);
        _exit(before <= by_library(CLOCK_MONOTONIC) && *last == (unsigned char)(was + 1) ? 7 : 8);
    }
    int status;
    EQ(OK(waitpid(child, &status, 0)), child);
    CHECK(WIFEXITED(status));
    EQ(WEXITSTATUS(status), 7);
    EQ(*last, was);
}

CASE(data_cannot_be_written) {
    vdso();
    struct range data;
    CHECK(in_maps("[vvar", &data));
    ERR(mprotect((void *)data.start, 4096, PROT_READ | PROT_WRITE), EACCES);
    // Nor by way of the kernel.
    int fd = OK(open("/dev/zero", O_RDONLY));
    ERR(read(fd, (void *)data.start, 8), EFAULT);
}

// What old programs call at fixed addresses, as Linux has it since 5.3 unless told otherwise (vsyscall=xonly).
#define VSYSCALL 0xffffffffff600000

static void need_vsyscall(void) {
    static char maps[1 << 18];
    read_file("/proc/self/maps", maps, sizeof maps);
    if (!strstr(maps, "[vsyscall]")) skip_case("this Linux has no vsyscall page");
    CHECK(strstr(maps, "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"));
}

CASE(vsyscall_functions_work) {
    need_vsyscall();
    int (*gettimeofday_)(struct timeval *, struct timezone *) = (void *)VSYSCALL;
    time_t (*time_)(time_t *) = (void *)(VSYSCALL + 0x400);
    long (*getcpu_)(unsigned *, unsigned *, void *) = (void *)(VSYSCALL + 0x800);
    struct timeval tv = {0};
    time_t before = OK(syscall(SYS_time, NULL)), stored = 0;
    for (int i = 0; i < 300; i++) {
        EQ(gettimeofday_(&tv, NULL), 0);
        CHECK(tv.tv_sec >= before && tv.tv_sec <= before + 60 && tv.tv_usec < 1000000);
    }
    time_t now = time_(&stored);
    CHECK(now >= before && now <= before + 60 && now == stored);
    unsigned cpu = ~0, node = ~0;
    EQ(getcpu_(&cpu, &node, NULL), 0);
    CHECK(cpu < 4096);
    EQ(node, 0);
}

static sigjmp_buf out_of_vsyscall;
static siginfo_t last_fault;

static void on_fault(int signo, siginfo_t *info, void *context) {
    (void)context;
    EQ(signo, SIGSEGV);
    last_fault = *info;
    siglongjmp(out_of_vsyscall, 1);
}

CASE(vsyscall_faults) {
    need_vsyscall();
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSEGV, &action, NULL));
    // Where EFAULT would be the answer of a system call.
    int (*gettimeofday_)(struct timeval *, struct timezone *) = (void *)VSYSCALL;
    if (!sigsetjmp(out_of_vsyscall, 1)) FAIL("gave %d", gettimeofday_((void *)8, NULL));
    EQ(last_fault.si_code, SI_KERNEL);
    // In between the functions.
    int (*nothing)(void) = (void *)(VSYSCALL + 0xc00), (*inside)(void) = (void *)(VSYSCALL + 1);
    if (!sigsetjmp(out_of_vsyscall, 1)) FAIL("gave %d", nothing());
    EQ(last_fault.si_code, SI_KERNEL);
    if (!sigsetjmp(out_of_vsyscall, 1)) FAIL("gave %d", inside());
    EQ(last_fault.si_code, SI_KERNEL);
    // It is no memory.
    if (!sigsetjmp(out_of_vsyscall, 1)) *(volatile char *)VSYSCALL = 1;
    EQ(last_fault.si_code, SEGV_MAPERR);
    EQ((uintptr_t)last_fault.si_addr, VSYSCALL);
}
