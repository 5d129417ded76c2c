/* What the scripted provider and the load client share: the clock, the JSON answer, and small socket helpers; the events
   of streams are in wires.h.
   Law: every byte the provider sends is fixed, but for a send time and what a sequence number makes of it, so that the
   client can check each byte without asking anybody. */
#ifndef RIG_H
#define RIG_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STAMP_DIGITS 18 /* CLOCK_MONOTONIC in ns: eighteen digits last 31 years of uptime */
#define SEQ_DIGITS 8
#define BURST_MAX 64 /* events in one write; 64 of them are 24 KiB, well inside a socket buffer */
#define PIECE_BYTES_MAX 4096 /* the longest event of a script, and the JSON answer */

#define JSON_ANSWER "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"bench\"," \
                    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"A weir lets the river by " \
                    "and tells how much of it went; that is all that it does, and it does it day and night.\"," \
                    "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12," \
                    "\"completion_tokens\":26,\"total_tokens\":38,\"prompt_tokens_details\":{\"cached_tokens\":0}," \
                    "\"completion_tokens_details\":{\"reasoning_tokens\":0}},\"system_fingerprint\":\"fp_bench\"}\n"

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* Ends with its parent and, come what may, after `seconds`; wakes up to the microsecond, not to the kernel's 50. */
static inline void live_bounded(unsigned seconds) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    signal(SIGPIPE, SIG_IGN);
    alarm(seconds);
}

static inline struct sockaddr_in loopback(unsigned port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void send_at_once(int fd) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

/* Waits for sockets until `due_ns` on the monotonic clock (UINT64_MAX: for ever). */
static inline int wait_until(int poll, struct epoll_event *events, int room, uint64_t due_ns) {
    struct timespec span, *timeout = NULL;
    if (due_ns != UINT64_MAX) {
        uint64_t now = now_ns(), left = due_ns > now ? due_ns - now : 0;
        span = (struct timespec){.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        timeout = &span;
    }
    int n = epoll_pwait2(poll, events, room, timeout, NULL);
    if (n < 0 && errno != EINTR) die("epoll: %s", strerror(errno));
    return n < 0 ? 0 : n;
}

static inline void put_digits(char *to, int digits, uint64_t value) {
    while (digits--) to[digits] = (char)('0' + value % 10), value /= 10;
}

static inline uint64_t get_digits(const char *from, int digits) {
    uint64_t value = 0;
    while (digits--) value = value * 10 + (uint64_t)(*from++ - '0');
    return value;
}
#endif
