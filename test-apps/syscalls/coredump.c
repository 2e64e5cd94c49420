// Core dumps (core(5)): when there is one, what it is called, and what debuggers find in it.
#include "harness.h"
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/procfs.h>
#include <sys/user.h>

static char pattern[256];
static char *core;
static size_t core_bytes;

// Cases here go by the name "core", with or without the pid.
static void need_pattern(void) {
    read_file("/proc/sys/kernel/core_pattern", pattern, sizeof pattern);
    if (strcmp(pattern, "core\n") != 0) skip_case("kernel.core_pattern is another");
}

static void allow(rlim_t bytes) {
    struct rlimit limit;
    OK(getrlimit(RLIMIT_CORE, &limit));
    if (limit.rlim_max < bytes) skip_case("RLIMIT_CORE cannot be raised");
    limit.rlim_cur = bytes;
    OK(setrlimit(RLIMIT_CORE, &limit));
}

// The dump of process `pid`, by its name; NULL if there is none.
static const char *dump_of(pid_t pid) {
    static char name[64];
    snprintf(name, sizeof name, "core.%d", pid);
    if (access("core", F_OK) == 0) return "core";
    return access(name, F_OK) == 0 ? name : NULL;
}

// Has a child end by a signal: its wait status says whether there is a dump.
static void expect_dump(pid_t pid, int signo, bool dumped) {
    siginfo_t info;
    OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
    EQ(info.si_code, dumped ? CLD_DUMPED : CLD_KILLED);
    EQ(info.si_status, signo);
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    EQ(WTERMSIG(status), signo);
    EQ(!!WCOREDUMP(status), dumped);
    if (!dumped) {
        CHECK(dump_of(pid) == NULL);
        return;
    }
    const char *name = dump_of(pid);
    CHECK(name);
    struct stat st;
    OK(stat(name, &st));
    EQ(st.st_mode, S_IFREG | 0600);
    int fd = OK(open(name, O_RDONLY));
    core_bytes = OK(lseek(fd, 0, SEEK_END));
    core = OK(mmap(NULL, core_bytes, PROT_READ, MAP_SHARED, fd, 0));
    OK(close(fd));
    OK(unlink(name));
}

static const Elf64_Ehdr *header(void) {
    const Elf64_Ehdr *e = (void *)core;
    CHECK(core_bytes > sizeof *e && memcmp(e->e_ident, ELFMAG, SELFMAG) == 0);
    EQ(e->e_ident[EI_CLASS], ELFCLASS64);
    EQ(e->e_type, ET_CORE);
    EQ(e->e_machine, EM_X86_64);
    EQ(e->e_phentsize, sizeof(Elf64_Phdr));
    return e;
}

static const Elf64_Phdr *segment(int i) { return (void *)(core + header()->e_phoff + i * sizeof(Elf64_Phdr)); }

// The `skip`th note of this name and type.
static const void *note_of(const char *who, unsigned type, size_t *size, int skip) {
    for (int i = 0; i < header()->e_phnum; i++) {
        const Elf64_Phdr *p = segment(i);
        if (p->p_type != PT_NOTE) continue;
        CHECK(p->p_offset + p->p_filesz <= core_bytes);
        for (const char *at = core + p->p_offset; at < core + p->p_offset + p->p_filesz;) {
            const Elf64_Nhdr *n = (void *)at;
            const char *name = at + sizeof *n, *content = name + (n->n_namesz + 3) / 4 * 4;
            if (n->n_type == type && strcmp(name, who) == 0 && skip-- == 0) {
                *size = n->n_descsz;
                return content;
            }
            at = content + (n->n_descsz + 3) / 4 * 4;
        }
    }
    return NULL;
}

static const void *note(unsigned type, size_t *size, int skip) { return note_of("CORE", type, size, skip); }

// What the dump has at an address; NULL if it leaves that out.
static const void *memory(const volatile void *address, size_t bytes) {
    for (int i = 0; i < header()->e_phnum; i++) {
        const Elf64_Phdr *p = segment(i);
        uintptr_t at = (uintptr_t)address;
        if (p->p_type != PT_LOAD || at < p->p_vaddr || at + bytes > p->p_vaddr + p->p_memsz) continue;
        EQ(p->p_offset % 4096, 0);
        if (at - p->p_vaddr + bytes > p->p_filesz) return NULL;
        CHECK(p->p_offset + p->p_filesz <= core_bytes);
        return core + p->p_offset + (at - p->p_vaddr);
    }
    FAIL("%p is in no segment", address);
}

static volatile int written = 1;

// A process that dies by SIGABRT.
static pid_t aborter(void) {
    pid_t pid = OK(fork());
    if (pid == 0) abort();
    return pid;
}

CASE(dump_tells_what_happened) {
    need_pattern();
    allow(RLIM_INFINITY);
    char *p = OK(mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *left_out = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *readable = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        written = 0x5eed;
        strcpy(p + 3 * 4096 + 5, "a string in memory");
        left_out[0] = readable[0] = 'x';
        OK(madvise(left_out, 4096, MADV_DONTDUMP));
        OK(madvise(readable, 4096, MADV_DONTDUMP));
        OK(madvise(readable, 4096, MADV_DODUMP));
        register long marker __asm__("r12") = 0x1234567812345678;
        register double kept __asm__("xmm3") = 2.5;
        __asm__ volatile("movl $1, 16" ::"r"(marker), "x"(kept));
        _exit(100);
    }
    expect_dump(pid, SIGSEGV, true);
    size_t size;
    const prstatus_t *status = note(NT_PRSTATUS, &size, 0);
    CHECK(status);
    EQ(size, sizeof *status);
    EQ(status->pr_pid, pid);
    EQ(status->pr_ppid, getpid());
    EQ(status->pr_pgrp, getpgrp());
    EQ(status->pr_sid, getsid(0));
    EQ(status->pr_cursig, SIGSEGV);
    EQ(status->pr_info.si_signo, SIGSEGV);
    const struct user_regs_struct *regs = (void *)&status->pr_reg;
    EQ(regs->r12, 0x1234567812345678);
    EQ(regs->cs, 0x33);
    EQ(regs->ss, 0x2b);
    // movl $1, 16
    EQ(memcmp((void *)regs->rip, "\xc7\x04\x25\x10\0\0\0\1\0\0\0", 11), 0);
    CHECK(memory((void *)regs->rsp, 8));
    CHECK(note(NT_PRSTATUS, &size, 1) == NULL);
    const prpsinfo_t *info = note(NT_PRPSINFO, &size, 0);
    CHECK(info);
    EQ(size, sizeof *info);
    EQ(info->pr_pid, pid);
    EQ(info->pr_uid, getuid());
    STR_EQ(info->pr_fname, "coredump");
    CHECK(strncmp(info->pr_psargs, self_path, 79) == 0 || strstr(info->pr_psargs, "coredump"));
    const siginfo_t *what = note(NT_SIGINFO, &size, 0);
    CHECK(what);
    EQ(size, sizeof *what);
    EQ(what->si_code, SEGV_MAPERR);
    EQ((uintptr_t)what->si_addr, 16);
    const Elf64_auxv_t *auxv = note(NT_AUXV, &size, 0);
    CHECK(auxv);
    bool has_entry = false;
    for (size_t i = 0; i < size / sizeof *auxv; i++) has_entry |= auxv[i].a_type == AT_ENTRY;
    CHECK(has_entry);
    const uint64_t *files = note(NT_FILE, &size, 0);
    CHECK(files && files[0] >= 1 && files[1] == 4096);
    STR_EQ((char *)(files + 2 + 3 * files[0]), self_path);
    CHECK(note(NT_FPREGSET, &size, 0));
    EQ(size, sizeof(struct user_fpregs_struct));
    // All of the extended state, as PTRACE_GETREGSET has it.
    const struct user_fpregs_struct *fp = note(NT_FPREGSET, &size, 0);
    const char *state = note_of("LINUX", NT_X86_XSTATE, &size, 0);
    CHECK(state && size >= 576);
    EQ(memcmp(state, fp, 416), 0);
    double kept;
    memcpy(&kept, state + 160 + 3 * 16, sizeof kept);
    CHECK(kept == 2.5);
    // Memory.
    const void *at = memory(&written, sizeof written);
    CHECK(at);
    EQ(*(int *)at, 0x5eed);
    at = memory(p, 8 * 4096);
    CHECK(at);
    STR_EQ((char *)at + 3 * 4096 + 5, "a string in memory");
    EQ(*(char *)at, 0);
    CHECK(memory(left_out, 1) == NULL);
    CHECK(memory(readable, 1) && *(char *)memory(readable, 1) == 'x');
    // The vDSO, wherever it is.
    const char *image = (char *)getauxval(AT_SYSINFO_EHDR);
    if (image) CHECK(memory(image, 4096) && memcmp(memory(image, 4096), image, 4096) == 0);
}

static pthread_barrier_t barrier;
static pid_t waiting_tid;

static void *waits(void *unused) {
    (void)unused;
    waiting_tid = gettid();
    pthread_barrier_wait(&barrier);
    for (;;) pause();
    return NULL;
}

static void *spins(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    register long marker __asm__("r13") = 0x7777777711111111;
    for (;;) __asm__ volatile("pause" ::"r"(marker));
    return NULL;
}

CASE(dump_has_all_threads) {
    need_pattern();
    allow(RLIM_INFINITY);
    pid_t pid = OK(fork());
    if (pid == 0) {
        ZERO(pthread_barrier_init(&barrier, NULL, 3));
        pthread_t thread;
        ZERO(pthread_create(&thread, NULL, waits, NULL));
        ZERO(pthread_create(&thread, NULL, spins, NULL));
        pthread_barrier_wait(&barrier);
        sleep_ms(50);
        abort();
    }
    expect_dump(pid, SIGABRT, true);
    size_t size;
    bool waiting = false, spinning = false;
    for (int i = 0; i < 3; i++) {
        const prstatus_t *status = note(NT_PRSTATUS, &size, i);
        CHECK(status);
        const struct user_regs_struct *regs = (void *)&status->pr_reg;
        if (i == 0) EQ(status->pr_pid, pid);
        spinning |= regs->r13 == 0x7777777711111111;
        const pid_t *tid = memory(&waiting_tid, sizeof waiting_tid);
        waiting |= tid && *tid == status->pr_pid;
        CHECK(regs->fs_base != 0);
        CHECK(memory((void *)regs->rsp, 8));
    }
    CHECK(waiting && spinning);
    CHECK(note(NT_PRSTATUS, &size, 3) == NULL);
}

CASE(no_dump_without_a_limit) {
    need_pattern();
    allow(0);
    pid_t pid = aborter();
    expect_dump(pid, SIGABRT, false);
}

CASE(some_signals_dump) {
    need_pattern();
    allow(RLIM_INFINITY);
    static const int with[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS};
    static const int without[] = {SIGTERM, SIGKILL, SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGALRM};
    for (size_t i = 0; i < sizeof with / sizeof *with + sizeof without / sizeof *without; i++) {
        bool dumps = i < sizeof with / sizeof *with;
        int signo = dumps ? with[i] : without[i - sizeof with / sizeof *with];
        pid_t pid = OK(fork());
        if (pid == 0)
            for (;;) pause();
        OK(kill(pid, signo));
        expect_dump(pid, signo, dumps);
    }
}

CASE(limit_cuts) {
    need_pattern();
    allow(16384);
    pid_t pid = aborter();
    expect_dump(pid, SIGABRT, true);
    CHECK(core_bytes <= 16384);
    header();
}

CASE(undumpable_leaves_nothing) {
    need_pattern();
    allow(RLIM_INFINITY);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(prctl(PR_SET_DUMPABLE, 0));
        abort();
    }
    expect_dump(pid, SIGABRT, false);
}

CASE(filter_says_what_is_in_it) {
    need_pattern();
    allow(RLIM_INFINITY);
    char *shared = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    char *private = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, 4096));
    char *file = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    char *reads = OK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    for (unsigned filter = 0; filter < 16; filter++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            char text[16];
            snprintf(text, sizeof text, "%#x", filter);
            int f = OK(open("/proc/self/coredump_filter", O_WRONLY));
            CHECK(write(f, text, strlen(text)) > 0);
            *shared = *private = *file = 'x';
            CHECK(*(volatile char *)reads == 'x');
            abort();
        }
        expect_dump(pid, SIGABRT, true);
        EQ(memory(private, 1) != NULL, filter & 1);
        EQ(memory(shared, 1) != NULL, filter >> 1 & 1);
        EQ(memory(reads, 1) != NULL, filter >> 2 & 1);
        EQ(memory(file, 1) != NULL, filter >> 3 & 1);
    }
}

CASE(old_dump_goes) {
    need_pattern();
    allow(RLIM_INFINITY);
    write_file("core", "old");
    OK(link("core", "kept"));
    pid_t pid = aborter();
    char b[8];
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    CHECK(WCOREDUMP(status));
    read_file("kept", b, sizeof b);
    STR_EQ(b, "old");
}
