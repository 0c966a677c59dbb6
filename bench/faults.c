/* Stands between a process and the C library: counts the calls that change files below one folder, and at a chosen one
   fails, ends the process, or (always) writes down what was asked for, so that a loss of power can be played through. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { COUNT, FAIL_IO, FAIL_FULL, KILL, TORN };
static char folder[PATH_MAX];
static long calls, chosen;
static int mode, journal = -1;

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

void faults_arm(const char *where, long at, int how, const char *log) {
    REAL(open);
    strncpy(folder, where, sizeof folder - 1);
    calls = 0;
    chosen = at;
    mode = how;
    journal = *log ? real(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600) : -1;
}

long faults_calls(void) { return calls; }

static int ours(const char *path) {
    size_t length = strlen(folder);
    return length && path && !strncmp(path, folder, length) && strchr("/", path[length]) && !strstr(path, "-shm");
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return fd != journal && ours(path);
}

static void note(const char *what, const char *path, const char *other, long at, const void *data, long length) {
    if (journal < 0) return;
    REAL(write);
    char line[2 * PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%ld\n", what, path, other, at, length);
    if (real(journal, line, size) < 0 || (length && real(journal, data, length) < 0)) abort();
}

/* Whether this call is to fail; a process that is to end ends here. */
static int fails(void) {
    if (++calls != chosen || mode == COUNT || mode == TORN) return 0;
    if (mode == KILL) raise(SIGKILL);
    errno = mode == FAIL_FULL ? ENOSPC : EIO;
    return 1;
}

static void torn(void) {
    if (mode == TORN && calls == chosen) raise(SIGKILL);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(write);
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd, data, length);
    if (fails()) return -1;
    if (mode == TORN && calls == chosen) length = length / 2;
    struct stat status;
    int end = fcntl(fd, F_GETFL) & O_APPEND;
    long at = end && !fstat(fd, &status) ? status.st_size : lseek(fd, 0, SEEK_CUR);
    note("write", path, "", at, data, length);
    ssize_t done = real(fd, data, length);
    torn();
    return done;
}

#define PWRITE(name, offset)                                                    \
    ssize_t name(int fd, const void *data, size_t length, offset at) {          \
        REAL(name);                                                             \
        char path[PATH_MAX];                                                    \
        if (!path_of(fd, path)) return real(fd, data, length, at);              \
        if (fails()) return -1;                                                 \
        if (mode == TORN && calls == chosen) length = length / 2;               \
        note("write", path, "", at, data, length);                              \
        ssize_t done = real(fd, data, length, at);                              \
        torn();                                                                 \
        return done;                                                            \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define SYNC(name)                                      \
    int name(int fd) {                                  \
        REAL(name);                                     \
        char path[PATH_MAX];                            \
        if (!path_of(fd, path)) return real(fd);        \
        if (fails()) return -1;                         \
        note("sync", path, "", 0, "", 0);               \
        int done = real(fd);                            \
        torn();                                         \
        return done;                                    \
    }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name, offset)                          \
    int name(int fd, offset length) {                   \
        REAL(name);                                     \
        char path[PATH_MAX];                            \
        if (!path_of(fd, path)) return real(fd, length);\
        if (fails()) return -1;                         \
        note("truncate", path, "", length, "", 0);      \
        int done = real(fd, length);                    \
        torn();                                         \
        return done;                                    \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define ALLOCATE(name, offset)                                  \
    int name(int fd, offset at, offset length) {                \
        REAL(name);                                             \
        char path[PATH_MAX];                                    \
        if (!path_of(fd, path)) return real(fd, at, length);    \
        if (fails()) return errno;                              \
        int done = real(fd, at, length);                        \
        torn();                                                 \
        return done;                                            \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        REAL(name);                                                             \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t rights = flags & O_CREAT ? va_arg(more, mode_t) : 0;             \
        va_end(more);                                                           \
        int makes = ours(path) && flags & O_CREAT && access(path, F_OK);        \
        int cuts = ours(path) && flags & O_TRUNC && !access(path, F_OK);        \
        if ((makes || cuts) && fails()) return -1;                              \
        if (makes) note("create", path, "", 0, "", 0);                          \
        if (cuts) note("truncate", path, "", 0, "", 0);                         \
        int done = real(path, flags, rights);                                   \
        if (makes || cuts) torn();                                              \
        return done;                                                            \
    }
OPEN(open)
OPEN(open64)

#define PATHS(name, word, more, given, second)          \
    int name(const char *path more) {                   \
        REAL(name);                                     \
        if (!ours(path)) return real(path given);       \
        if (fails()) return -1;                         \
        note(word, path, second, 0, "", 0);             \
        int done = real(path given);                    \
        torn();                                         \
        return done;                                    \
    }
#define COMMA ,
PATHS(unlink, "unlink", , , "")
PATHS(rmdir, "unlink", , , "")
PATHS(mkdir, "mkdir", COMMA mode_t rights, COMMA rights, "")
PATHS(rename, "rename", COMMA const char *other, COMMA other, other)
