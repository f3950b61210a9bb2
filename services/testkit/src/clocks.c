/* Loaded into a program before the C library (LD_PRELOAD): its wall clock is wrong by WRONG_CLOCK seconds. Its monotonic clock is right. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static time_t skew;

__attribute__((constructor)) static void read_skew(void) {
    const char *seconds = getenv("WRONG_CLOCK");
    if (seconds) skew = atoll(seconds);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) now->tv_sec += skew;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* librdkafka makes with gettimeofday the instant until which it waits, and the kernel waits by its own clock. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*wait)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec right = *until;
    if (!wait) *(void **)&wait = dlsym(RTLD_NEXT, "cnd_timedwait");
    right.tv_sec -= skew;
    return wait(condition, mutex, &right);
}
