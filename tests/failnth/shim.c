/* Makes the n-th call of one kind fail, in this process and those that it forks: see ground.py.
 *
 * Preloaded, since Python's os, io, socket and subprocess, paramiko, and threads all end in these functions of
 * the C library. What is executed is another program, and is left alone.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, CONNECT, FORK, MAKE, READ, RECV, SEND, THREAD, PIPE, KINDS };
enum { DEPTHS = 8 };

/* The order and the report, in a file that the tests map too: ground.py has the same layout. */
struct order {
    int kind, error, first, last, depth, trace;
    int hits;
    int seen[DEPTHS][KINDS];
    char at[100]; /* only calls about a path with this in it */
    char where[400];
};

static struct order *order;
static char calls[500]; /* where nothing is to fail, each call is a line of this file */
static int depth;
static pid_t self;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void in_child(void) {
    depth++;
    self = getpid();
}

void failnth_arm(const char *path) {
    static int hooked;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    order = mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    snprintf(calls, sizeof calls, "%s.calls", path);
    depth = 0;
    self = getpid();
    if (!hooked++) pthread_atfork(NULL, NULL, in_child);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAILNTH");
    if (!path) return;
    failnth_arm(path);
    unsetenv("FAILNTH");
    unsetenv("LD_PRELOAD");
}

static int starts(const char *path, const char *with) { return !strncmp(path, with, strlen(with)); }

/* Python's own files, the system's and ours are read while modules are imported: not what is meant. */
static int meant(const char *path) {
    if (starts(path, "/proc/") || starts(path, "/sys/") || starts(path, "/usr/") || starts(path, "/lib")) return 0;
    if (starts(path, "/etc/") && !starts(path, "/etc/ssh")) return 0;
    return !strstr(path, "/orchestrator/") && !strstr(path, "/site-packages/") && !strstr(path, "/.venv/") &&
           !strstr(path, "/tests/failnth/");
}

static int fails(int kind, const char *what) {
    if (!order || getpid() != self || depth >= DEPTHS) return 0;
    if (order->at[0] && !strstr(what, order->at)) return 0;
    int number = __atomic_add_fetch(&order->seen[depth][kind], 1, __ATOMIC_SEQ_CST);
    if (order->kind < 0) {
        char line[600];
        int size = snprintf(line, sizeof line, "%d %d %s\n", depth, kind, what);
        int fd = syscall(SYS_openat, AT_FDCWD, calls, O_WRONLY | O_APPEND | O_CLOEXEC); /* ours may be closed */
        syscall(SYS_write, fd, line, size < (int)sizeof line ? size : (int)sizeof line - 1);
        syscall(SYS_close, fd);
    }
    if (kind != order->kind || depth != order->depth || number < order->first || number > order->last) return 0;
    if (__atomic_fetch_add(&order->hits, 1, __ATOMIC_SEQ_CST) == 0) {
        snprintf(order->where, sizeof order->where, "%s", what);
        if (order->trace) pthread_kill(pthread_self(), SIGUSR2);
    }
    errno = order->error;
    return 1;
}

static int fails_at(int kind, const char *path) { return meant(path) && fails(kind, path); }

static int fails_on(int fd, int file, int stream) {
    if (!order || getpid() != self) return 0;
    char link[64], path[300] = "";
    struct stat about;
    if (fstat(fd, &about)) return 0;
    int kind = S_ISREG(about.st_mode) ? file : S_ISSOCK(about.st_mode) ? stream : -1;
    if (kind < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0) return 0;
    return fails_at(kind, path);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return fails_at(OPEN, path) ? -1 : syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return fails_at(OPEN, path) ? -1 : syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return fails_at(OPEN, path) ? -1 : syscall(SYS_openat, at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return fails_at(OPEN, path) ? -1 : syscall(SYS_openat, at, path, flags, mode);
}
int __open64_2(const char *path, int flags) { return fails_at(OPEN, path) ? -1 : syscall(SYS_openat, AT_FDCWD, path, flags, 0); }
DIR *opendir(const char *path) {
    REAL(opendir);
    return fails_at(OPEN, path) ? NULL : real(path);
}

int mkdir(const char *path, mode_t mode) { return fails_at(MAKE, path) ? -1 : syscall(SYS_mkdirat, AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return fails_at(MAKE, path) ? -1 : syscall(SYS_mkdirat, at, path, mode); }
int mkfifo(const char *path, mode_t mode) {
    return fails_at(MAKE, path) ? -1 : syscall(SYS_mknodat, AT_FDCWD, path, mode | S_IFIFO, 0);
}
int link(const char *from, const char *to) { return fails_at(MAKE, to) ? -1 : syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int at, const char *from, int in, const char *to, int flags) {
    return fails_at(MAKE, to) ? -1 : syscall(SYS_linkat, at, from, in, to, flags);
}
int symlink(const char *from, const char *to) { return fails_at(MAKE, to) ? -1 : syscall(SYS_symlinkat, from, AT_FDCWD, to); }

ssize_t write(int fd, const void *data, size_t size) { return fails_on(fd, WRITE, SEND) ? -1 : syscall(SYS_write, fd, data, size); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails_on(fd, WRITE, SEND) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    return fails_on(fd, WRITE, SEND) ? -1 : syscall(SYS_writev, fd, pieces, count);
}
ssize_t read(int fd, void *data, size_t size) { return fails_on(fd, READ, RECV) ? -1 : syscall(SYS_read, fd, data, size); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    return fails_on(fd, READ, RECV) ? -1 : syscall(SYS_pread64, fd, data, size, at);
}
ssize_t recv(int fd, void *data, size_t size, int flags) {
    return fails(RECV, "recv") ? -1 : syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL);
}
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    return fails(RECV, "recvmsg") ? -1 : syscall(SYS_recvmsg, fd, message, flags);
}
ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *from, socklen_t *length) {
    return fails(RECV, "recvfrom") ? -1 : syscall(SYS_recvfrom, fd, data, size, flags, from, length);
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    return fails(SEND, "send") ? -1 : syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return fails(SEND, "sendmsg") ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}

int fsync(int fd) { return fails_on(fd, FSYNC, -1) ? -1 : syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return fails_on(fd, FSYNC, -1) ? -1 : syscall(SYS_fdatasync, fd); }
int rename(const char *from, const char *to) {
    return fails_at(RENAME, to) ? -1 : syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int at, const char *from, int in, const char *to) {
    return fails_at(RENAME, to) ? -1 : syscall(SYS_renameat2, at, from, in, to, 0);
}

int connect(int fd, const struct sockaddr *to, socklen_t size) { return fails(CONNECT, "connect") ? -1 : syscall(SYS_connect, fd, to, size); }
int socket(int domain, int type, int protocol) { return fails(PIPE, "socket") ? -1 : syscall(SYS_socket, domain, type, protocol); }
int socketpair(int domain, int type, int protocol, int ends[2]) {
    return fails(PIPE, "socketpair") ? -1 : syscall(SYS_socketpair, domain, type, protocol, ends);
}
int pipe(int ends[2]) { return fails(PIPE, "pipe") ? -1 : syscall(SYS_pipe2, ends, 0); }
int pipe2(int ends[2], int flags) { return fails(PIPE, "pipe") ? -1 : syscall(SYS_pipe2, ends, flags); }

pid_t fork(void) {
    REAL(fork);
    return fails(FORK, "fork") ? -1 : real();
}
pid_t vfork(void) { return fork(); } /* vfork may be fork, and a wrapper cannot return twice in one frame */
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
                char *const argv[], char *const env[]) {
    REAL(posix_spawn);
    return fails(FORK, path) ? errno : real(pid, path, actions, how, argv, env);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument) {
    REAL(pthread_create);
    return fails(THREAD, "thread") ? errno : real(thread, how, run, argument);
}
