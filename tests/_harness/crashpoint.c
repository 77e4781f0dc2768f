/* An LD_PRELOAD library that counts the calls of a process which change files under
 * one path prefix, over all of its threads, and makes one of them go wrong.
 *
 * Armed by the environment (CRASHPOINT_PREFIX, _MODE, _AT, _LOG) or, in a process that
 * is already running, by crashpoint_arm(). Every wrapper ends in a raw system call, so
 * that nothing of libc is counted twice and a forked child needs no dynamic linking.
 * Writes through a shared mapping, stdio and io_uring pass unseen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN = 1, WRITE = 2, GROW = 4, SYNC = 8, NAME = 16, REMOVE = 32, ALL = 63 };
enum action { PASS, KILL, STOP, TORN, SHORT, FAIL, LIE };

/* Calls of the kinds given are counted; from count AT (to AT, unless sticky) they do
 * the action. A write of one byte cannot be torn, so these modes do not count it. */
struct mode {
  const char *name;
  int kinds;
  enum action action;
  int error;
  int sticky;
};
static const struct mode MODES[] = {
    {"count", ALL, PASS, 0, 0},
    {"kill", ALL, KILL, 0, 0},
    {"stop", ALL, STOP, 0, 0},
    {"torn", WRITE, TORN, 0, 0},
    {"short", WRITE, SHORT, 0, 0},
    {"eio", ALL, FAIL, EIO, 0},
    {"enospc", ALL & ~REMOVE, FAIL, ENOSPC, 0},
    {"full", ALL & ~REMOVE, FAIL, ENOSPC, 1},
    {"nosync", SYNC, LIE, 0, 1},
};

static const struct mode *mode;
static char prefix[PATH_MAX], log_path[PATH_MAX];
static size_t prefix_length;
static long at;
static atomic_long calls, faults;

/* Returns 0, or -1 when the mode is unknown. `prefix` must be a resolved path. */
int crashpoint_arm(const char *path, const char *name, long number, const char *log) {
  mode = NULL;
  for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++)
    if (!strcmp(name, MODES[i].name)) mode = &MODES[i];
  snprintf(prefix, sizeof prefix, "%s", path);
  prefix_length = strlen(prefix);
  snprintf(log_path, sizeof log_path, "%s", log ? log : "");
  at = number;
  atomic_store(&calls, 0);
  atomic_store(&faults, 0);
  return mode ? 0 : -1;
}
void crashpoint_disarm(void) { mode = NULL; }
long crashpoint_calls(void) { return atomic_load(&calls); }
long crashpoint_faults(void) { return atomic_load(&faults); }

__attribute__((constructor)) static void arm_from_environment(void) {
  const char *path = getenv("CRASHPOINT_PREFIX"), *name = getenv("CRASHPOINT_MODE");
  const char *number = getenv("CRASHPOINT_AT");
  if (path && name && crashpoint_arm(path, name, number ? atol(number) : 0,
                                     getenv("CRASHPOINT_LOG")))
    abort();
}

static int inside(const char *path) {
  return !strncmp(path, prefix, prefix_length) &&
         (path[prefix_length] == '/' || !path[prefix_length]);
}

static int fd_path(int fd, char out[PATH_MAX]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(fd == AT_FDCWD ? "/proc/self/cwd" : link, out, PATH_MAX - 1);
  out[n < 0 ? 0 : n] = 0;
  return n > 0;
}

/* The absolute path that a call names, its folder resolved where there is one. */
static void name_path(int dir, const char *path, char out[PATH_MAX]) {
  char whole[PATH_MAX * 2 + 2], base[PATH_MAX];
  if (path[0] == '/')
    snprintf(whole, sizeof whole, "%s", path);
  else if (fd_path(dir, base))
    snprintf(whole, sizeof whole, "%s/%s", base, path);
  else
    whole[0] = 0;
  size_t n = strlen(whole);
  while (n > 1 && whole[n - 1] == '/') whole[--n] = 0;
  char *slash = strrchr(whole, '/');
  if (slash && slash != whole) {
    *slash = 0;
    if (realpath(whole, base)) {
      snprintf(out, PATH_MAX, "%s/%s", base, slash + 1);
      return;
    }
    *slash = '/';
  }
  snprintf(out, PATH_MAX, "%s", whole);
}

static void die(void) {
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

static void note(long number, const char *call, const char *path) {
  char line[PATH_MAX + 64];
  int n = snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
  int fd = syscall(SYS_openat, AT_FDCWD, log_path,
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || syscall(SYS_write, fd, line, n) != n) abort();
  syscall(SYS_close, fd);
}

/* Counts one call. Kills and stops here; other actions are returned, with errno set for FAIL. */
static enum action meet(enum kind kind, const char *call, const char *path) {
  if (!(mode->kinds & kind) || !inside(path)) return PASS;
  long number = atomic_fetch_add(&calls, 1) + 1;
  if (log_path[0]) note(number, call, path);
  if (mode->action == PASS) return PASS;
  if (mode->sticky ? number < at : number != at) return PASS;
  atomic_fetch_add(&faults, 1);
  if (mode->action == KILL) die();
  if (mode->action == STOP) {
    syscall(SYS_kill, getpid(), SIGSTOP);
    return PASS;
  }
  if (mode->action == FAIL) errno = mode->error;
  return mode->action;
}
static enum action meet_name(enum kind kind, const char *call, int dir, const char *path) {
  if (!mode) return PASS;
  int saved = errno;
  char full[PATH_MAX];
  name_path(dir, path, full);
  errno = saved;
  return meet(kind, call, full);
}
static enum action meet_names(const char *call, int d1, const char *p1, int d2,
                              const char *p2) {
  if (!mode) return PASS;
  char first[PATH_MAX];
  name_path(d1, p1, first);
  return inside(first) ? meet_name(NAME, call, d1, p1) : meet_name(NAME, call, d2, p2);
}
static enum action meet_fd(enum kind kind, const char *call, int fd) {
  if (!mode) return PASS;
  int saved = errno;
  char path[PATH_MAX];
  if (!fd_path(fd, path)) path[0] = 0;
  errno = saved;
  return meet(kind, call, path);
}

/* offset -1 is the file's own position. */
static ssize_t write_all(const char *call, int fd, const struct iovec *v, int n,
                         off_t offset, int flags) {
  size_t total = 0;
  for (int i = 0; i < n; i++) total += v[i].iov_len;
  int divisible = total >= 2 || !mode || !(mode->action == TORN || mode->action == SHORT);
  enum action action = divisible ? meet_fd(WRITE, call, fd) : PASS;
  if (action == FAIL) return -1;
  if (action != TORN && action != SHORT) {
    if (offset < 0 && !flags) return syscall(SYS_writev, fd, v, n);
    return syscall(SYS_pwritev2, fd, v, n, offset, 0, flags);
  }
  size_t left = total / 2;
  int kept = 0;
  struct iovec half[n];
  for (; kept < n && left; kept++) {
    half[kept] = v[kept];
    if (half[kept].iov_len > left) half[kept].iov_len = left;
    left -= half[kept].iov_len;
  }
  ssize_t written = syscall(SYS_pwritev2, fd, half, kept, offset, 0, flags);
  if (action == TORN) die();
  return written;
}
ssize_t write(int fd, const void *data, size_t n) {
  if (!mode) return syscall(SYS_write, fd, data, n);
  struct iovec v = {(void *)data, n};
  return write_all("write", fd, &v, 1, -1, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset) {
  struct iovec v = {(void *)data, n};
  return write_all("pwrite", fd, &v, 1, offset, 0);
}
ssize_t writev(int fd, const struct iovec *v, int n) {
  return write_all("writev", fd, v, n, -1, 0);
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t offset) {
  return write_all("pwritev", fd, v, n, offset, 0);
}
ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off_t offset, int flags) {
  return write_all("pwritev2", fd, v, n, offset, flags);
}
ssize_t pwrite(int, const void *, size_t, off_t) __attribute__((alias("pwrite64")));
ssize_t pwritev(int, const struct iovec *, int, off_t)
    __attribute__((alias("pwritev64")));
ssize_t pwritev2(int, const struct iovec *, int, off_t, int)
    __attribute__((alias("pwritev64v2")));

/* These two move bytes inside the kernel. A torn one copies half. */
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t n,
                        unsigned flags) {
  enum action action = n >= 2 ? meet_fd(WRITE, "copy_file_range", out) : PASS;
  if (action == FAIL) return -1;
  if (action != PASS) n /= 2;
  ssize_t done = syscall(SYS_copy_file_range, in, from, out, to, n, flags);
  if (action == TORN) die();
  return done;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t n) {
  enum action action = n >= 2 ? meet_fd(WRITE, "sendfile", out) : PASS;
  if (action == FAIL) return -1;
  if (action != PASS) n /= 2;
  ssize_t done = syscall(SYS_sendfile, out, in, offset, n);
  if (action == TORN) die();
  return done;
}
ssize_t sendfile(int, int, off_t *, size_t) __attribute__((alias("sendfile64")));

/* O_TMPFILE holds the bit of O_DIRECTORY, which alone takes no mode. */
static int takes_mode(int flags) {
  return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}
int openat64(int dir, const char *path, int flags, ...) {
  mode_t bits = 0;
  if (takes_mode(flags)) {
    va_list rest;
    va_start(rest, flags);
    bits = va_arg(rest, mode_t);
    va_end(rest);
  }
  if ((takes_mode(flags) || flags & O_TRUNC) &&
      meet_name(OPEN, "open", dir, path) == FAIL) return -1;
  return syscall(SYS_openat, dir, path, flags, bits);
}
int openat(int, const char *, int, ...) __attribute__((alias("openat64")));
int open64(const char *path, int flags, ...) {
  mode_t bits = 0;
  if (takes_mode(flags)) {
    va_list rest;
    va_start(rest, flags);
    bits = va_arg(rest, mode_t);
    va_end(rest);
  }
  return openat64(AT_FDCWD, path, flags, bits);
}
int open(const char *, int, ...) __attribute__((alias("open64")));
int __openat64_2(int dir, const char *path, int flags) {
  return openat64(dir, path, flags, 0);
}
int __openat_2(int, const char *, int) __attribute__((alias("__openat64_2")));
int __open64_2(const char *path, int flags) { return open64(path, flags, 0); }
int __open_2(const char *, int) __attribute__((alias("__open64_2")));
int creat64(const char *path, mode_t bits) {
  return openat64(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, bits);
}
int creat(const char *, mode_t) __attribute__((alias("creat64")));

#define BY_FD(kind, call, function, number, params, ...)                                \
  int function params {                                                                 \
    enum action action = meet_fd(kind, call, fd);                                       \
    if (action == FAIL) return -1;                                                      \
    return action == LIE ? 0 : syscall(number, __VA_ARGS__);                            \
  }
BY_FD(SYNC, "fsync", fsync, SYS_fsync, (int fd), fd)
BY_FD(SYNC, "fdatasync", fdatasync, SYS_fdatasync, (int fd), fd)
BY_FD(SYNC, "syncfs", syncfs, SYS_syncfs, (int fd), fd)
BY_FD(GROW, "ftruncate", ftruncate64, SYS_ftruncate, (int fd, off_t n), fd, n)
BY_FD(GROW, "fallocate", fallocate64, SYS_fallocate,
      (int fd, int how, off_t start, off_t n), fd, how, start, n)
int ftruncate(int, off_t) __attribute__((alias("ftruncate64")));
int fallocate(int, int, off_t, off_t) __attribute__((alias("fallocate64")));
int posix_fallocate64(int fd, off_t offset, off_t n) {
  int saved = errno;
  int error = fallocate64(fd, 0, offset, n) ? errno : 0;
  errno = saved;
  return error;
}
int posix_fallocate(int, off_t, off_t) __attribute__((alias("posix_fallocate64")));
int truncate64(const char *path, off_t n) {
  if (meet_name(GROW, "truncate", AT_FDCWD, path) == FAIL) return -1;
  return syscall(SYS_truncate, path, n);
}
int truncate(const char *, off_t) __attribute__((alias("truncate64")));

int mkdirat(int dir, const char *path, mode_t bits) {
  if (meet_name(NAME, "mkdir", dir, path) == FAIL) return -1;
  return syscall(SYS_mkdirat, dir, path, bits);
}
int mkdir(const char *path, mode_t bits) { return mkdirat(AT_FDCWD, path, bits); }
int unlinkat(int dir, const char *path, int flags) {
  const char *call = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
  if (meet_name(REMOVE, call, dir, path) == FAIL) return -1;
  return syscall(SYS_unlinkat, dir, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int renameat2(int d1, const char *p1, int d2, const char *p2, unsigned flags) {
  if (meet_names("rename", d1, p1, d2, p2) == FAIL) return -1;
  return syscall(SYS_renameat2, d1, p1, d2, p2, flags);
}
int renameat(int d1, const char *p1, int d2, const char *p2) {
  return renameat2(d1, p1, d2, p2, 0);
}
int rename(const char *p1, const char *p2) {
  return renameat2(AT_FDCWD, p1, AT_FDCWD, p2, 0);
}
int linkat(int d1, const char *p1, int d2, const char *p2, int flags) {
  if (meet_names("link", d1, p1, d2, p2) == FAIL) return -1;
  return syscall(SYS_linkat, d1, p1, d2, p2, flags);
}
int link(const char *p1, const char *p2) { return linkat(AT_FDCWD, p1, AT_FDCWD, p2, 0); }
int symlinkat(const char *target, int dir, const char *path) {
  if (meet_name(NAME, "symlink", dir, path) == FAIL) return -1;
  return syscall(SYS_symlinkat, target, dir, path);
}
int symlink(const char *target, const char *path) {
  return symlinkat(target, AT_FDCWD, path);
}
