// System V shared memory, semaphores and message queues.
#include "harness.h"

#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

enum { PAGE = 4096 };

union semun {
    int val;
    struct semid_ds *buf;
    unsigned short *array;
    struct seminfo *info;
};

static key_t own_key(int n) { return (getpid() << 8 | n) & 0x7fffffff; }

static unsigned long attached(int id) {
    struct shmid_ds ds;
    OK(shmctl(id, IPC_STAT, &ds));
    return ds.shm_nattch;
}

CASE(shm_is_shared) {
    int id = OK(shmget(IPC_PRIVATE, 3 * PAGE - 5, 0600));
    char *p = OK(shmat(id, NULL, 0)), *q = OK(shmat(id, NULL, SHM_RDONLY));
    CHECK(p != q);
    EQ(p[2 * PAGE], 0);
    strcpy(p + 2 * PAGE, "hello");
    STR_EQ(q + 2 * PAGE, "hello");
    EQ(attached(id), 2);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(attached(id), 4);
        OK(shmdt(q));
        EQ(attached(id), 3);
        strcpy(p, "child");
        _exit(0);
    }
    expect_exit(pid, 0);
    STR_EQ(q, "child");
    EQ(attached(id), 2);
    struct shmid_ds ds;
    OK(shmctl(id, IPC_STAT, &ds));
    EQ(ds.shm_segsz, 3 * PAGE - 5);
    EQ(ds.shm_cpid, getpid());
    EQ(ds.shm_perm.mode & 0777, 0600);
    CHECK(ds.shm_atime > 0 && ds.shm_ctime > 0);
    OK(shmctl(id, IPC_RMID, NULL));
    OK(shmdt(p));
    ERR(shmdt(p), EINVAL);
    OK(shmdt(q));
    ERR(shmctl(id, IPC_STAT, &ds), EINVAL);
}

CASE(shm_keys) {
    key_t key = own_key(1);
    ERR(shmget(key, PAGE, 0600), ENOENT);
    int id = OK(shmget(key, PAGE, IPC_CREAT | 0640));
    EQ(OK(shmget(key, PAGE, 0600)), id);
    EQ(OK(shmget(key, 0, 0)), id);
    ERR(shmget(key, PAGE, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
    ERR(shmget(key, 2 * PAGE, 0600), EINVAL);
    ERR(shmget(IPC_PRIVATE, 0, 0600), EINVAL);
    int without = OK(shmget(IPC_PRIVATE, PAGE, 0600));
    CHECK(without != id);
    OK(shmctl(without, IPC_RMID, NULL));
    OK(shmctl(id, IPC_RMID, NULL));
    ERR(shmget(key, PAGE, 0600), ENOENT);
    ERR(shmctl(id, IPC_RMID, NULL), EINVAL);
    ERR(shmat(id, NULL, 0), EINVAL);
    // The identifier of what is gone does not name what is new.
    int other = OK(shmget(key, PAGE, IPC_CREAT | 0600));
    CHECK(other != id);
    OK(shmctl(other, IPC_RMID, NULL));
}

CASE(shm_removed_lives_while_attached) {
    key_t key = own_key(2);
    int id = OK(shmget(key, PAGE, IPC_CREAT | 0600));
    char *p = OK(shmat(id, NULL, 0));
    strcpy(p, "still here");
    OK(shmctl(id, IPC_RMID, NULL));
    struct shmid_ds ds;
    OK(shmctl(id, IPC_STAT, &ds));
    CHECK(ds.shm_perm.mode & SHM_DEST);
    EQ(ds.shm_perm.__key, IPC_PRIVATE);
    ERR(shmget(key, PAGE, 0600), ENOENT);
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *q = OK(shmat(id, NULL, 0));
        STR_EQ(q, "still here");
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(munmap(p, PAGE));
    ERR(shmctl(id, IPC_STAT, &ds), EINVAL);
}

/* proc_sys(5): with kernel.shm_rmid_forced a segment goes with the last who has it attached, or with its creator. */
CASE(shm_goes_with_its_users_where_that_is_set) {
    /* On Linux in a namespace of its own. */
    if (unshare(CLONE_NEWIPC) != 0) CHECK(errno == EPERM || errno == EINVAL);
    int setting = OK(open("/proc/sys/kernel/shm_rmid_forced", O_WRONLY));
    EQ(write(setting, "1", 1), 1);
    struct shmid_ds ds;
    int ids[3], results[2];
    OK(pipe(results));
    // One is attached and kept by the parent, one attached and one never.
    ids[0] = OK(shmget(own_key(5), PAGE, IPC_CREAT | 0600));
    char *p = OK(shmat(ids[0], NULL, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 1; i < 3; i++) ids[i] = OK(shmget(IPC_PRIVATE, PAGE, 0600));
        strcpy(OK(shmat(ids[1], NULL, 0)), "x");
        for (int i = 1; i < 3; i++) OK(shmctl(ids[i], IPC_STAT, &ds));
        EQ(write(results[1], ids, sizeof ids), (int)sizeof ids);
        _exit(0);
    }
    EQ(read(results[0], ids, sizeof ids), (int)sizeof ids);
    expect_exit(pid, 0);
    ERR(shmctl(ids[1], IPC_STAT, &ds), EINVAL);
    ERR(shmctl(ids[2], IPC_STAT, &ds), EINVAL);
    // Its key finds it while it is attached.
    EQ(shmget(own_key(5), PAGE, 0600), ids[0]);
    EQ(attached(ids[0]), 1);
    OK(shmdt(p));
    ERR(shmget(own_key(5), PAGE, 0600), ENOENT);
    // One that is attached again is not lost between.
    ids[0] = OK(shmget(IPC_PRIVATE, PAGE, 0600));
    p = OK(shmat(ids[0], NULL, 0));
    char *again = OK(shmat(ids[0], NULL, 0));
    OK(shmdt(p));
    EQ(attached(ids[0]), 1);
    OK(munmap(again, PAGE));
    ERR(shmctl(ids[0], IPC_STAT, &ds), EINVAL);
    EQ(write(setting, "0", 1), 1);
    OK(close(setting));
}

CASE(shm_places_and_flags) {
    int id = OK(shmget(IPC_PRIVATE, 2 * PAGE, 0600));
    char *room = OK(mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ERR(shmat(id, room, 0), EINVAL);
    ERR(shmat(id, room + 5, SHM_REMAP), EINVAL);
    ERR(shmat(id, NULL, SHM_REMAP), EINVAL);
    CHECK(OK(shmat(id, room + 5, SHM_REMAP | SHM_RND)) == (void *)room);
    room[2 * PAGE - 1] = 1;
    OK(munmap(room + 3 * PAGE, 4 * PAGE));
    CHECK(OK(shmat(id, room + 4 * PAGE, SHM_RDONLY)) == (void *)(room + 4 * PAGE));
    EQ(room[6 * PAGE - 1], 1);
    ERR(mprotect(room + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE), EACCES);
    pid_t pid = OK(fork());
    if (pid == 0) room[4 * PAGE] = 1;
    expect_killed(pid, SIGSEGV);
    // In pieces it is detached as one.
    OK(mprotect(room + PAGE, PAGE, PROT_READ));
    OK(shmdt(room));
    ERR(shmdt(room + PAGE), EINVAL);
    EQ(attached(id), 1);
    OK(shmctl(id, IPC_RMID, NULL));
    ERR(shmat(-1, NULL, 0), EINVAL);
}

CASE(shm_permissions) {
    if (getuid() != 0) skip_case("needs root");
    int id = OK(shmget(own_key(3), PAGE, IPC_CREAT | 0604));
    AS_NOBODY({
        ERR(shmat(id, NULL, 0), EACCES);
        OK(shmat(id, NULL, SHM_RDONLY));
        ERR(shmget(own_key(3), PAGE, 0606), ENOENT);
        struct shmid_ds ds;
        OK(shmctl(id, IPC_STAT, &ds));
        ERR(shmctl(id, IPC_SET, &ds), EPERM);
        ERR(shmctl(id, IPC_RMID, NULL), EPERM);
    });
    struct shmid_ds ds;
    OK(shmctl(id, IPC_STAT, &ds));
    ds.shm_perm.uid = 1000;
    ds.shm_perm.mode = 0200;
    OK(shmctl(id, IPC_SET, &ds));
    AS_NOBODY({
        ERR(shmctl(id, IPC_STAT, &ds), EACCES);
        ERR(shmat(id, NULL, 0), EACCES);
        OK(shmctl(id, IPC_RMID, NULL));
    });
    ERR(shmctl(id, IPC_STAT, &ds), EINVAL);
}

CASE(shm_information) {
    struct shminfo limits;
    OK(shmctl(0, IPC_INFO, (void *)&limits));
    char text[4096], max[32];
    read_file("/proc/sys/kernel/shmmax", max, sizeof max);
    EQ(limits.shmmax, strtoul(max, NULL, 10));
    int id = OK(shmget(own_key(4), PAGE, IPC_CREAT | 0600));
    struct shm_info use;
    int highest = OK(shmctl(0, SHM_INFO, (void *)&use));
    CHECK(use.used_ids >= 1 && use.shm_tot >= 1);
    bool found = false;
    struct shmid_ds ds;
    for (int i = 0; i <= highest; i++) found |= shmctl(i, SHM_STAT, &ds) == id;
    CHECK(found);
    read_file("/proc/sysvipc/shm", text, sizeof text);
    int key, number;
    char *line = strchr(text, '\n');
    for (found = false; line && sscanf(line + 1, "%d %d", &key, &number) == 2; line = strchr(line + 1, '\n'))
        found |= number == id && key == own_key(4);
    CHECK(found);
    OK(shmctl(id, SHM_LOCK, NULL));
    OK(shmctl(id, IPC_STAT, &ds));
    CHECK(ds.shm_perm.mode & SHM_LOCKED);
    OK(shmctl(id, SHM_UNLOCK, NULL));
    OK(shmctl(id, IPC_RMID, NULL));
}

static int sem_do(int id, int number, int change, int flags) {
    struct sembuf op = {number, change, flags};
    return semop(id, &op, 1);
}

CASE(sem_values) {
    int id = OK(semget(IPC_PRIVATE, 3, 0600));
    EQ(semctl(id, 0, GETVAL), 0);
    OK(semctl(id, 1, SETVAL, (union semun){.val = 5}));
    EQ(semctl(id, 1, GETVAL), 5);
    EQ(semctl(id, 1, GETPID), getpid());
    OK(sem_do(id, 1, -2, 0));
    unsigned short all[3];
    OK(semctl(id, 0, GETALL, (union semun){.array = all}));
    EQ(all[1], 3);
    all[0] = 7;
    OK(semctl(id, 0, SETALL, (union semun){.array = all}));
    EQ(semctl(id, 0, GETVAL), 7);
    ERR(semctl(id, 3, GETVAL), EINVAL);
    ERR(semctl(id, 0, SETVAL, (union semun){.val = 40000}), ERANGE);
    ERR(sem_do(id, 0, 32767, 0), ERANGE);
    ERR(sem_do(id, 3, 1, 0), EFBIG);
    ERR(sem_do(id, 0, -8, IPC_NOWAIT), EAGAIN);
    ERR(sem_do(id, 0, 0, IPC_NOWAIT), EAGAIN);
    // All or nothing.
    struct sembuf two[2] = {{0, -7, 0}, {1, -9, IPC_NOWAIT}};
    ERR(semop(id, two, 2), EAGAIN);
    EQ(semctl(id, 0, GETVAL), 7);
    ERR(semop(id, two, 0), EINVAL);
    ERR(semop(id, two, 100000), E2BIG);
    struct semid_ds ds;
    OK(semctl(id, 0, IPC_STAT, (union semun){.buf = &ds}));
    EQ(ds.sem_nsems, 3);
    CHECK(ds.sem_otime > 0 && ds.sem_ctime > 0);
    OK(semctl(id, 0, IPC_RMID));
    ERR(semctl(id, 0, GETVAL), EINVAL);
    ERR(sem_do(id, 0, 1, 0), EINVAL);
}

CASE(sem_keys) {
    key_t key = own_key(1);
    ERR(semget(key, 1, 0), ENOENT);
    ERR(semget(key, 0, IPC_CREAT | 0600), EINVAL);
    int id = OK(semget(key, 2, IPC_CREAT | 0600));
    EQ(OK(semget(key, 0, 0)), id);
    ERR(semget(key, 3, 0), EINVAL);
    ERR(semget(key, 1, IPC_CREAT | IPC_EXCL), EEXIST);
    ERR(semget(IPC_PRIVATE, 40000, 0600), EINVAL);
    ERR(semget(IPC_PRIVATE, -1, 0600), EINVAL);
    OK(semctl(id, 0, IPC_RMID));
}

CASE(sem_waits) {
    int id = OK(semget(IPC_PRIVATE, 2, 0600));
    pid_t down = OK(fork());
    if (down == 0) _exit(sem_do(id, 0, -2, 0) == 0 ? 0 : 1);
    WAIT_UNTIL(semctl(id, 0, GETNCNT) == 1);
    OK(sem_do(id, 0, 1, 0));
    pid_t zero = OK(fork());
    if (zero == 0) _exit(sem_do(id, 0, 0, 0) == 0 ? 0 : 1);
    WAIT_UNTIL(semctl(id, 0, GETZCNT) == 1);
    EQ(semctl(id, 0, GETNCNT), 1);
    OK(sem_do(id, 0, 1, 0));
    expect_exit(down, 0);
    expect_exit(zero, 0);
    EQ(semctl(id, 0, GETNCNT) + semctl(id, 0, GETZCNT), 0);
    struct timespec t = {0, 3000000};
    struct sembuf op = {1, -1, 0};
    ERR(semtimedop(id, &op, 1, &t), EAGAIN);
    t.tv_nsec = -1;
    ERR(semtimedop(id, &op, 1, &t), EINVAL);
    pid_t removed = OK(fork());
    if (removed == 0) _exit(sem_do(id, 1, -1, 0) == -1 && errno == EIDRM ? 0 : 1);
    WAIT_UNTIL(semctl(id, 1, GETNCNT) == 1);
    OK(semctl(id, 0, IPC_RMID));
    expect_exit(removed, 0);
}

static void on_signal(int signo) {}

CASE(sem_wait_is_interrupted) {
    int id = OK(semget(IPC_PRIVATE, 1, 0600));
    pid_t pid = OK(fork());
    if (pid == 0) {
        // Not restarted, whatever the action says.
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        OK(sigaction(SIGUSR1, &action, NULL));
        OK(sem_do(id, 0, 1, 0));
        _exit(sem_do(id, 0, -5, 0) == -1 && errno == EINTR ? 0 : 1);
    }
    WAIT_UNTIL(semctl(id, 0, GETNCNT) == 1);
    OK(kill(pid, SIGUSR1));
    expect_exit(pid, 0);
    EQ(semctl(id, 0, GETNCNT), 0);
    OK(semctl(id, 0, IPC_RMID));
}

CASE(sem_undo) {
    int id = OK(semget(IPC_PRIVATE, 2, 0600));
    OK(semctl(id, 0, SETVAL, (union semun){.val = 5}));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(sem_do(id, 0, -3, SEM_UNDO));
        OK(sem_do(id, 0, 1, SEM_UNDO));
        OK(sem_do(id, 1, 4, SEM_UNDO));
        OK(sem_do(id, 1, -4, 0));
        // A child of its own has nothing to undo.
        pid_t child = OK(fork());
        if (child == 0) _exit(0);
        expect_exit(child, 0);
        EQ(semctl(id, 0, GETVAL), 3);
        raise(SIGKILL);
    }
    expect_killed(pid, SIGKILL);
    EQ(semctl(id, 0, GETVAL), 5);
    EQ(semctl(id, 1, GETVAL), 0);
    pid = OK(fork());
    if (pid == 0) {
        OK(sem_do(id, 0, -3, SEM_UNDO));
        // Setting the value forgets what was to be undone.
        OK(semctl(id, 0, SETVAL, (union semun){.val = 9}));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(semctl(id, 0, GETVAL), 9);
    OK(semctl(id, 0, IPC_RMID));
}

CASE(sem_permissions_and_information) {
    if (getuid() != 0) skip_case("needs root");
    int id = OK(semget(own_key(2), 1, IPC_CREAT | 0604));
    AS_NOBODY({
        EQ(OK(semctl(id, 0, GETVAL)), 0);
        OK(sem_do(id, 0, 0, 0));
        ERR(sem_do(id, 0, 1, 0), EACCES);
        ERR(semctl(id, 0, SETVAL, (union semun){.val = 1}), EACCES);
        ERR(semctl(id, 0, IPC_RMID), EPERM);
    });
    struct seminfo info;
    OK(semctl(0, 0, IPC_INFO, (union semun){.info = &info}));
    EQ(info.semvmx, 32767);
    int highest = OK(semctl(0, 0, SEM_INFO, (union semun){.info = &info}));
    CHECK(info.semusz >= 1);
    bool found = false;
    struct semid_ds ds;
    for (int i = 0; i <= highest; i++) found |= semctl(i, 0, SEM_STAT, (union semun){.buf = &ds}) == id;
    CHECK(found);
    char text[4096], number[16];
    read_file("/proc/sysvipc/sem", text, sizeof text);
    snprintf(number, sizeof number, " %d ", id);
    CHECK(strstr(text, number));
    OK(semctl(id, 0, IPC_RMID));
}

struct message {
    long type;
    char text[64];
};

static int put(int id, long type, const char *text, int flags) {
    struct message m = {.type = type};
    strcpy(m.text, text);
    return msgsnd(id, &m, strlen(text), flags);
}

CASE(msg_by_type) {
    int id = OK(msgget(IPC_PRIVATE, 0600));
    OK(put(id, 3, "three", 0));
    OK(put(id, 1, "one", 0));
    OK(put(id, 2, "", 0));
    OK(put(id, 1, "one again", 0));
    struct msqid_ds ds;
    OK(msgctl(id, IPC_STAT, &ds));
    EQ(ds.msg_qnum, 4);
    EQ(ds.__msg_cbytes, 17);
    EQ(ds.msg_lspid, getpid());
    struct message m;
    EQ(msgrcv(id, &m, sizeof m.text, 1, 0), 3);
    EQ(memcmp(m.text, "one", 3), 0);
    EQ(msgrcv(id, &m, sizeof m.text, -2, 0), 9);
    EQ(m.type, 1);
    EQ(msgrcv(id, &m, sizeof m.text, 3, MSG_EXCEPT), 0);
    EQ(m.type, 2);
    ERR(msgrcv(id, &m, sizeof m.text, 9, IPC_NOWAIT), ENOMSG);
    ERR(msgrcv(id, &m, 2, 0, 0), E2BIG);
    EQ(msgrcv(id, &m, 2, 0, MSG_NOERROR), 2);
    EQ(m.type, 3);
    ERR(msgrcv(id, &m, sizeof m.text, 0, IPC_NOWAIT), ENOMSG);
    ERR(put(id, 0, "x", 0), EINVAL);
    ERR(msgsnd(id, &m, 1 << 20, 0), EINVAL);
    ERR(msgrcv(id, &m, -1, 0, 0), EINVAL);
    OK(msgctl(id, IPC_RMID, NULL));
    ERR(put(id, 1, "x", 0), EINVAL);
}

CASE(msg_waits) {
    int id = OK(msgget(IPC_PRIVATE, 0600));
    pid_t reader = OK(fork());
    if (reader == 0) {
        struct message m;
        _exit(msgrcv(id, &m, sizeof m.text, 5, 0) == 2 && !memcmp(m.text, "me", 2) ? 0 : 1);
    }
    WAIT_UNTIL(process_state(reader) == 'S');
    OK(put(id, 4, "not me", 0));
    OK(put(id, 5, "me", 0));
    expect_exit(reader, 0);
    struct msqid_ds ds;
    OK(msgctl(id, IPC_STAT, &ds));
    EQ(ds.msg_qnum, 1);
    ds.msg_qbytes = 10;
    OK(msgctl(id, IPC_SET, &ds));
    ERR(put(id, 1, "12345", IPC_NOWAIT), EAGAIN);
    pid_t writer = OK(fork());
    if (writer == 0) _exit(put(id, 1, "12345", 0) == 0 ? 0 : 1);
    WAIT_UNTIL(process_state(writer) == 'S');
    struct message m;
    EQ(msgrcv(id, &m, sizeof m.text, 0, 0), 6);
    expect_exit(writer, 0);
    EQ(msgrcv(id, &m, sizeof m.text, 0, 0), 5);
    pid_t removed = OK(fork());
    if (removed == 0) _exit(msgrcv(id, &m, sizeof m.text, 0, 0) == -1 && errno == EIDRM ? 0 : 1);
    WAIT_UNTIL(process_state(removed) == 'S');
    OK(msgctl(id, IPC_RMID, NULL));
    expect_exit(removed, 0);
}

CASE(msg_keys_permissions_and_information) {
    if (getuid() != 0) skip_case("needs root");
    key_t key = own_key(1);
    ERR(msgget(key, 0), ENOENT);
    int id = OK(msgget(key, IPC_CREAT | 0604));
    EQ(OK(msgget(key, 0)), id);
    ERR(msgget(key, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
    OK(put(id, 1, "x", 0));
    AS_NOBODY({
        struct message m;
        ERR(put(id, 1, "y", 0), EACCES);
        ERR(msgget(key, 0602), EACCES);
        EQ(msgrcv(id, &m, sizeof m.text, 0, 0), 1);
        ERR(msgctl(id, IPC_RMID, NULL), EPERM);
    });
    struct msginfo info;
    char max[32], text[4096], number[16];
    OK(msgctl(0, IPC_INFO, (void *)&info));
    read_file("/proc/sys/kernel/msgmax", max, sizeof max);
    EQ(info.msgmax, atoi(max));
    int highest = OK(msgctl(0, MSG_INFO, (void *)&info));
    CHECK(info.msgpool >= 1);
    bool found = false;
    struct msqid_ds ds;
    for (int i = 0; i <= highest; i++) found |= msgctl(i, MSG_STAT, &ds) == id;
    CHECK(found);
    read_file("/proc/sysvipc/msg", text, sizeof text);
    snprintf(number, sizeof number, " %d ", id);
    CHECK(strstr(text, number));
    OK(msgctl(id, IPC_RMID, NULL));
}
CASE(the_next_identifier_can_be_chosen) {
    OK(unshare(CLONE_NEWIPC));
    char text[32];
    for (int kind = 0; kind < 3; kind++) {
        const char *path = kind == 0   ? "/proc/sys/kernel/msg_next_id"
                           : kind == 1 ? "/proc/sys/kernel/sem_next_id"
                                       : "/proc/sys/kernel/shm_next_id";
        read_file(path, text, sizeof text);
        STR_EQ(text, "-1\n");
        write_file(path, "327700");
        read_file(path, text, sizeof text);
        STR_EQ(text, "327700\n");
        for (int i = 0; i < 2; i++) {
            int id = OK(kind == 0   ? msgget(IPC_PRIVATE, 0600)
                        : kind == 1 ? semget(IPC_PRIVATE, 1, 0600)
                                    : shmget(IPC_PRIVATE, 4096, 0600));
            // The second one is any.
            if (i == 0) EQ(id, 327700);
            if (i == 1) CHECK(id != 327701);
        }
        read_file(path, text, sizeof text);
        STR_EQ(text, "-1\n");
        int fd = OK(open(path, O_WRONLY));
        ERR(write(fd, "-5", 2), EINVAL);
        // What is taken is not given twice.
        write_file(path, "327700");
        int id = OK(kind == 0   ? msgget(IPC_PRIVATE, 0600)
                    : kind == 1 ? semget(IPC_PRIVATE, 1, 0600)
                                : shmget(IPC_PRIVATE, 4096, 0600));
        CHECK(id != 327700);
    }
}
CASE(the_first_identifier_is_zero) {
    OK(unshare(CLONE_NEWIPC));
    EQ(OK(msgget(IPC_PRIVATE, 0600)), 0);
    EQ(OK(semget(IPC_PRIVATE, 1, 0600)), 0);
    EQ(OK(shmget(IPC_PRIVATE, 4096, 0600)), 0);
    EQ(OK(shmget(IPC_PRIVATE, 4096, 0600)), 1);
    OK(shmctl(0, IPC_RMID, NULL));
    CHECK(shmget(IPC_PRIVATE, 4096, 0600) > 1);
}
