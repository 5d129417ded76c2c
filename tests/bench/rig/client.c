/* The load client: client streams|requests|hold --port N --wire W [--header H]... and what the mode takes; see main().
   streams   S streams at once, each of N events; measured while all of them run
   requests  R requests over C keep-alive connections, at most --rate a second; JSON, or with --stream streams of --length
             events, one each --gap-ms; with --chunked JSON of no known length; with prompts of --prompt-bytes
   hold      S streams opened and held until standard input ends: silent ones, or with --deaf fast ones that nobody reads
   Prints one JSON object. A sample is an event's lateness (streams) or a request's time to its first body byte (requests);
   a gap is the time between two events of one stream.
   Law: the processor time of the watched processes and the units counted belong to exactly the same window. */
#include "answer.h"

#define OPENING_MAX 64 /* streams asked for and not yet answered: fewer than any server's accept queue */
#define WATCHED_MAX 32

struct conn {
    int fd;
    bool going;  /* its first event has come */
    bool asking; /* a request of it is not answered yet */
    uint64_t sent_ns, came_ns;
    struct answer answer;
};

static struct {
    const char *mode;
    const struct wire *wire;
    char headers[2048];
    unsigned port, streams, events, pace_ms, burst, requests, connections, rate, seconds, settle_ms, length, gap_ms, prompt_bytes, watched;
    bool stream, usage, deaf, chunked;
    clockid_t watch[WATCHED_MAX];
} o = {.wire = WIRES, .streams = 1, .events = 10, .pace_ms = 20, .burst = 1, .requests = 1,
       .connections = 1, .seconds = 60, .length = 2};

static struct {
    unsigned opened, going, done, errors;
    uint64_t began_ns, ended_ns, cpu_ns, units;
    bool open, closed; /* the window */
    const char *why;   /* the first error */
    uint32_t *samples, *gaps;
    size_t sampled, gapped, room;
} seen;

static int poll_fd;
static char *request;
static size_t request_bytes;

static uint64_t cpu_ns(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < o.watched; i++) {
        struct timespec t;
        if (clock_gettime(o.watch[i], &t)) die("a watched process is gone");
        sum += (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    return sum;
}

static void open_window(void) {
    seen.open = true;
    seen.cpu_ns = cpu_ns();
    seen.began_ns = now_ns();
}

/* Waits until the watched processes are quiet (under 1 % of a core), so that work put off is counted too. */
static void settle(void) {
    uint64_t limit_ns = now_ns() + 1000000u * (uint64_t)o.settle_ms, last = cpu_ns();
    while (now_ns() < limit_ns) {
        usleep(200000);
        uint64_t cpu = cpu_ns();
        if (cpu - last < 2000000) return;
        last = cpu;
    }
}

static void close_window(void) {
    if (!seen.open || seen.closed) return;
    seen.closed = true;
    seen.ended_ns = now_ns();
    settle();
    seen.cpu_ns = cpu_ns() - seen.cpu_ns;
}

static uint32_t bounded(uint64_t ns) {
    return ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static void sample(uint64_t ns) {
    if (seen.sampled < seen.room) seen.samples[seen.sampled++] = bounded(ns);
}

/* A prompt of words, no two lines alike. */
static char *prompt(void) {
    char *text = malloc(o.prompt_bytes + 64);
    if (!text) die("no memory");
    size_t n = (size_t)sprintf(text, "How much of the river went by?");
    for (unsigned line = 0; n < o.prompt_bytes; line++) n += (size_t)sprintf(text + n, " %u boats and a \\\"weir\\\".", line);
    return text;
}

static void write_request(const char *model, bool stream) {
    char *words = prompt(), path[256];
    size_t room = strlen(words) + sizeof o.headers + 1024;
    char *body = malloc(room);
    request = malloc(2 * room);
    if (!body || !request) die("no memory");
    const char *messages = strcmp(o.wire->name, "responses") ? "messages" : "input";
    int n = strcmp(o.wire->name, "gemini")
        ? snprintf(body, room, "{\"model\":\"%s\",%s\"%s\":[{\"role\":\"user\",\"content\":\"%s\"}]%s%s}", model,
                   strcmp(o.wire->name, "messages") ? "" : "\"max_tokens\":1000,", messages, words,
                   stream ? ",\"stream\":true" : "", stream && o.usage ? ",\"stream_options\":{\"include_usage\":true}" : "")
        : snprintf(body, room, "{\"contents\":[{\"role\":\"user\",\"parts\":[{\"text\":\"%s\"}]}]}", words);
    snprintf(path, sizeof path, o.wire->path, model);
    request_bytes = (size_t)snprintf(request, 2 * room,
                                     "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nContent-Type: application/json\r\n"
                                     "Content-Length: %d\r\n%s\r\n%s", path, o.port, n, o.headers, body);
    free(words);
    free(body);
}

/* Connects; on the loopback the kernel answers at once, whether or not the server has accepted. */
static void dial(struct conn *c) {
    struct sockaddr_in address = loopback(o.port);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) die("connect: %s", strerror(errno));
    send_at_once(c->fd);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
}

static void ask(struct conn *c, bool stream, unsigned events) {
    expect(&c->answer, stream ? o.wire : NULL, stream && o.usage, events);
    c->asking = true;
    c->sent_ns = now_ns();
    if (send(c->fd, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) c->answer.wrong = "a request that nobody took";
}

/* Reads once. False when the connection is at its end, right (the answer is whole) or wrong. */
static bool read_once(struct conn *c, on_event *each) {
    static char bytes[1 << 18];
    ssize_t got = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
        if (c->answer.where != ENDED) c->answer.wrong = got ? strerror(errno) : "closed before the end";
        return false;
    }
    take(&c->answer, bytes, (size_t)got, each, c);
    return !c->answer.wrong && c->answer.where != ENDED;
}

static void count_end(struct conn *c) {
    seen.done++;
    if (!c->answer.wrong) return;
    seen.errors++;
    if (!seen.why) seen.why = c->answer.wrong;
}

/* The window is open from when every stream has had its first event until the first of them has had its last. */
static void stream_event(struct answer *a, void *owner) {
    struct conn *c = owner;
    if (!c->going) {
        c->going = true;
        if (++seen.going == o.streams) open_window();
        return;
    }
    if (!seen.open || seen.closed) return;
    uint64_t now = now_ns();
    seen.units++;
    sample(now - a->stamp_ns);
    if (c->came_ns && seen.gapped < seen.room) seen.gaps[seen.gapped++] = bounded(now - c->came_ns);
    c->came_ns = now;
    if (a->content == o.events) close_window();
}

static void open_streams(struct conn *all, unsigned events) {
    while (seen.opened < o.streams && seen.opened - seen.going < OPENING_MAX + seen.errors) {
        struct conn *c = &all[seen.opened++];
        dial(c);
        ask(c, true, events);
    }
}

static const char *hidden(void) {
    return strcmp(o.wire->name, "hidden") ? "" : "-h1";
}

static void run_streams(struct conn *all) {
    char model[64];
    snprintf(model, sizeof model, "bench-p%u-n%u-b%u%s", o.pace_ms, o.events, o.burst, hidden());
    write_request(model, true);
    while (seen.done < o.streams) {
        struct epoll_event ready[256];
        open_streams(all, o.events);
        int n = wait_until(poll_fd, ready, 256, UINT64_MAX);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (read_once(c, stream_event)) continue;
            close(c->fd);
            count_end(c);
        }
    }
    if (!seen.closed && !seen.why) seen.errors++, seen.why = "streams too short: never all of them at once";
}

static void held_event(struct answer *a, void *owner) {
    struct conn *c = owner;
    (void)a;
    if (!c->going) seen.going++;
    c->going = true;
}

/* Holds the streams until standard input ends; says on a line of its own when all are open. */
static void run_hold(struct conn *all) {
    bool told = false, held = true;
    write_request(o.deaf ? "bench-p0-n1000000-b16" : "bench-idle", true);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, 0, &(struct epoll_event){.events = EPOLLIN, .data.ptr = NULL});
    while (held) {
        struct epoll_event ready[256];
        open_streams(all, o.deaf ? 1000000 : UINT32_MAX);
        int n = wait_until(poll_fd, ready, 256, UINT64_MAX);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!c) held = false;
            else if (!read_once(c, held_event)) close(c->fd), count_end(c);
            else if (o.deaf && c->going) epoll_ctl(poll_fd, EPOLL_CTL_DEL, c->fd, NULL);
        }
        if (!told && seen.going + seen.errors >= o.streams) {
            told = true;
            printf("{\"open\": %u}\n", o.streams - seen.errors);
            fflush(stdout);
        }
    }
}

static void no_event(struct answer *a, void *owner) {
    (void)a;
    (void)owner;
}

static void one_answer(struct conn *c, struct conn **idle, unsigned *idle_n) {
    bool before = c->answer.piece || c->answer.slot_bytes;
    bool more = read_once(c, no_event);
    if (!before && (c->answer.piece || c->answer.slot_bytes)) sample(now_ns() - c->sent_ns);
    if (more) return;
    if (!c->asking || c->answer.wrong) { /* the server let go of an idle connection, or something is wrong */
        close(c->fd);
        dial(c);
    }
    if (!c->asking) return;
    c->asking = false;
    count_end(c);
    idle[(*idle_n)++] = c;
}

static void run_requests(struct conn *all) {
    struct conn **idle = calloc(o.connections, sizeof *idle);
    unsigned idle_n = 0, asked = 0;
    uint64_t gap_ns = o.rate ? 1000000000u / o.rate : 0;
    if (!idle) die("no memory");
    char model[64];
    if (o.stream) snprintf(model, sizeof model, "bench-p%u-n%u-b1%s", o.gap_ms, o.length, hidden());
    else snprintf(model, sizeof model, o.chunked ? "bench-json-c1" : "bench-json");
    write_request(model, o.stream);
    for (; idle_n < o.connections; idle_n++) dial(idle[idle_n] = &all[idle_n]);
    open_window();
    uint64_t due_ns = now_ns();
    while (seen.done < o.requests) {
        struct epoll_event ready[256];
        for (; idle_n && asked < o.requests && now_ns() >= due_ns; asked++, due_ns += gap_ns) ask(idle[--idle_n], o.stream, o.length);
        int n = wait_until(poll_fd, ready, 256, idle_n && asked < o.requests ? due_ns : UINT64_MAX);
        for (int i = 0; i < n; i++) one_answer(ready[i].data.ptr, idle, &idle_n);
    }
    seen.units = seen.done;
    close_window();
    free(idle);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(const uint32_t *sorted, size_t n, double share) {
    return n ? sorted[(size_t)(share * (double)(n - 1))] / 1000.0 : 0;
}

static void report(void) {
    double seconds = seen.closed ? (double)(seen.ended_ns - seen.began_ns) / 1e9 : 0;
    qsort(seen.samples, seen.sampled, sizeof *seen.samples, by_size);
    qsort(seen.gaps, seen.gapped, sizeof *seen.gaps, by_size);
    printf("{\"done\": %u, \"errors\": %u, \"why\": \"%s\", \"seconds\": %.6f, \"units\": %llu, \"per_s\": %.1f, \"cpu_ns\": %llu, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"gap_p99_us\": %.1f}\n",
           seen.done, seen.errors, seen.why ? seen.why : "", seconds, (unsigned long long)seen.units,
           seconds > 0 ? (double)seen.units / seconds : 0.0, (unsigned long long)seen.cpu_ns,
           percentile_us(seen.samples, seen.sampled, 0.5), percentile_us(seen.samples, seen.sampled, 0.99),
           percentile_us(seen.samples, seen.sampled, 1), percentile_us(seen.gaps, seen.gapped, 0.99));
}

static void add_header(const char *header) {
    size_t used = strlen(o.headers);
    if ((size_t)snprintf(o.headers + used, sizeof o.headers - used, "%s\r\n", header) >= sizeof o.headers - used)
        die("too many headers");
}

static void watch(const char *pid) {
    if (o.watched == WATCHED_MAX || clock_getcpuclockid(atoi(pid), &o.watch[o.watched++])) die("no such process to watch: %s", pid);
}

static void parse(int argc, char **argv) {
    const struct { const char *name; unsigned *number; } numbers[] = {
        {"port", &o.port}, {"streams", &o.streams}, {"events", &o.events}, {"pace-ms", &o.pace_ms}, {"burst", &o.burst},
        {"requests", &o.requests}, {"connections", &o.connections}, {"rate", &o.rate}, {"seconds", &o.seconds},
        {"settle-ms", &o.settle_ms}, {"length", &o.length}, {"gap-ms", &o.gap_ms}, {"prompt-bytes", &o.prompt_bytes}};
    o.mode = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i] + 2;
        bool known = !strncmp(argv[i], "--", 2);
        if (known && !strcmp(name, "stream")) { o.stream = true; continue; }
        if (known && !strcmp(name, "usage")) { o.usage = true; continue; }
        if (known && !strcmp(name, "deaf")) { o.deaf = true; continue; }
        if (known && !strcmp(name, "chunked")) { o.chunked = true; continue; }
        if (!known || i + 1 == argc) die("what is %s?", argv[i]);
        const char *value = argv[++i];
        if (!strcmp(name, "wire")) o.wire = wire_named(value);
        else if (!strcmp(name, "header")) add_header(value);
        else if (!strcmp(name, "watch")) watch(value);
        else {
            size_t k = 0;
            while (k < sizeof numbers / sizeof *numbers && strcmp(name, numbers[k].name)) k++;
            if (k == sizeof numbers / sizeof *numbers) die("what is --%s?", name);
            *numbers[k].number = (unsigned)strtoul(value, NULL, 10);
        }
    }
    if (!o.port || !o.streams || !o.connections || o.events < 2) die("usage: client streams|requests|hold --port N ...");
}

int main(int argc, char **argv) {
    parse(argc, argv);
    live_bounded(o.seconds);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct conn *all = calloc(o.streams > o.connections ? o.streams : o.connections, sizeof *all);
    seen.room = !strcmp(o.mode, "streams") ? (size_t)o.streams * o.events : o.requests;
    seen.samples = calloc(seen.room, sizeof *seen.samples);
    seen.gaps = calloc(seen.room, sizeof *seen.gaps);
    if (!all || !seen.samples || !seen.gaps) die("no memory");
    if (!strcmp(o.mode, "streams")) run_streams(all);
    else if (!strcmp(o.mode, "requests")) run_requests(all);
    else if (!strcmp(o.mode, "hold")) run_hold(all);
    else die("usage: client streams|requests|hold ...");
    report();
    return 0;
}
