/* A scripted provider: provider PORT SECONDS. Listens on the loopback (port 0: a free one), prints the port, ends by itself.
   Law: what it sends depends on the request alone: its path says the wire, and the model's name is the script:
     bench-p20-n500-b1   500 events, a burst of 1 (one write) each 20 ms; p0: as fast as the socket takes them
     bench-p20-n9-b1-h1  the same with what hides the lengths of tokens
     bench-idle          head and first event, then silence
     bench-json-c1       without "stream": a JSON answer in chunks, not of a known length
   Streams are given evenly spread phases, so that every system under test sees the same arrivals. */
#include "wires.h"

#define REQUEST_BYTES_MAX (512 << 10) /* untouched, it takes no memory */
#define TICK_NS 1000000u
#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nCache-Control: no-cache\r\n" \
             "x-request-id: req_bench\r\nTransfer-Encoding: chunked\r\n\r\n"

struct conn {
    int fd;
    bool streaming, usage, scheduled, gone;
    uint64_t pace_ns, due_ns;
    unsigned seq, events, burst;
    const struct wire *wire;
    char *unsent;
    size_t unsent_bytes, in_bytes;
    char in[REQUEST_BYTES_MAX + 1];
};

static int poll_fd;
static struct conn **heap; /* streams by their next due time */
static size_t heap_n, heap_room;

static void push(struct conn *c) {
    if (heap_n == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 1024;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap) die("no memory");
    }
    size_t i = heap_n++;
    for (; i && heap[(i - 1) / 2]->due_ns > c->due_ns; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
    c->scheduled = true;
}

static struct conn *pop(void) {
    struct conn *top = heap[0], *last = heap[--heap_n];
    size_t i = 0, kid;
    while ((kid = 2 * i + 1) < heap_n) {
        if (kid + 1 < heap_n && heap[kid + 1]->due_ns < heap[kid]->due_ns) kid++;
        if (heap[kid]->due_ns >= last->due_ns) break;
        heap[i] = heap[kid];
        i = kid;
    }
    heap[i] = last;
    top->scheduled = false;
    return top;
}

/* A scheduled connection is freed by whoever takes it from the heap. */
static void hang_up(struct conn *c) {
    if (!c->gone) close(c->fd);
    c->gone = true;
    free(c->unsent);
    c->unsent = NULL;
    if (!c->scheduled) free(c);
}

static void listen_for(struct conn *c, uint32_t what) {
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = what, .data.ptr = c});
}

/* Sends all, or keeps what the socket did not take. False when the connection is gone (and c with it). */
static bool send_or_keep(struct conn *c, const char *bytes, size_t n) {
    ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return hang_up(c), false;
    size_t done = sent < 0 ? 0 : (size_t)sent;
    if (done == n) return true;
    char *rest = malloc(n - done);
    if (!rest) die("no memory");
    memcpy(rest, bytes + done, n - done);
    free(c->unsent);
    c->unsent = rest;
    c->unsent_bytes = n - done;
    listen_for(c, EPOLLIN | EPOLLOUT);
    return true;
}

static size_t chunk(char *to, const char *bytes, size_t n) {
    int head = sprintf(to, "%zx\r\n", n);
    memcpy(to + head, bytes, n);
    memcpy(to + head + n, "\r\n", 2);
    return (size_t)head + n + 2;
}

static size_t event_chunk(char *to, const char *template, unsigned seq) {
    char event[PIECE_BYTES_MAX];
    size_t stamp_at;
    return chunk(to, event, write_event(event, template, seq, now_ns(), &stamp_at));
}

static size_t closing_chunks(char *to, const struct conn *c) {
    size_t n = event_chunk(to, c->wire->finish, c->seq);
    if (c->usage && c->wire->usage) n += event_chunk(to + n, c->wire->usage, c->seq);
    if (c->wire->done) n += event_chunk(to + n, c->wire->done, c->seq);
    return n + (size_t)sprintf(to + n, "0\r\n\r\n");
}

/* Sends the next burst, with the head and what opens the stream when it is the `first`, and plans the one after it. */
static void next_burst(struct conn *c, bool first) {
    static char out[sizeof HEAD + (PIECE_BYTES_MAX + 16) * (BURST_MAX + 4)];
    size_t n = first ? (size_t)sprintf(out, HEAD, c->wire->type) : 0;
    if (first && c->wire->opening) n += event_chunk(out + n, c->wire->opening, 0);
    for (unsigned i = 0; i < c->burst && c->seq < c->events; i++, c->seq++) n += event_chunk(out + n, c->wire->event, c->seq);
    bool last = c->seq == c->events && c->pace_ns != UINT64_MAX;
    if (last) {
        n += closing_chunks(out + n, c);
        c->streaming = false;
    }
    if (!send_or_keep(c, out, n) || last || c->pace_ns == UINT64_MAX) return;
    c->due_ns += c->pace_ns;
    if (!c->unsent) push(c); /* else: when the socket has taken the rest */
}

/* True when the body has "key": value, whatever white space is between. Enough for bodies that are our own. */
static const char *says(const char *body, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(body, quoted);
    if (!at) return "";
    at += strlen(quoted);
    return at + strspn(at, " :");
}

static unsigned script(const char *model, char letter, unsigned otherwise) {
    const char *end = model + 1 + strcspn(model + 1, "\":");
    for (const char *at = strchr(model, '-'); at && at < end; at = strchr(at + 1, '-'))
        if (at[1] == letter && at[2] >= '0' && at[2] <= '9') return (unsigned)atoi(at + 2);
    return otherwise;
}

/* Phases in whole milliseconds, by the golden ratio: any number of streams is spread evenly over the pace, in whatever
   order they came. Whole ones, because events that share a tick arrive together, as they do from a server that is busy;
   with a wake-up for each event of its own, one would measure the kernel's wake-ups and little else. */
static uint64_t phase_ns(uint64_t pace_ns) {
    static uint32_t turn;
    turn += 2654435769u;
    return ((uint64_t)turn * (pace_ns / TICK_NS) >> 32) * TICK_NS;
}

static void start_stream(struct conn *c, const struct wire *wire, const char *model, const char *body) {
    bool idle = !strncmp(model + 1, "bench-idle", 10);
    c->wire = script(model, 'h', 0) ? wire_named("hidden") : wire;
    uint64_t now = now_ns();
    c->streaming = true;
    c->usage = !strncmp(says(body, "include_usage"), "true", 4);
    c->seq = 0;
    c->events = idle ? 1 : script(model, 'n', 3);
    c->burst = script(model, 'b', 1);
    if (c->burst < 1 || c->burst > BURST_MAX) c->burst = 1;
    c->pace_ns = idle ? UINT64_MAX : 1000000u * (uint64_t)script(model, 'p', 20);
    c->due_ns = now;
    if (!idle && c->pace_ns) c->due_ns = now - now % c->pace_ns + phase_ns(c->pace_ns);
    next_burst(c, true);
}

static void answer(struct conn *c, const char *status, const char *body, bool chunked) {
    char out[PIECE_BYTES_MAX];
    size_t n = (size_t)sprintf(out, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nx-request-id: req_bench\r\n", status);
    if (chunked) {
        n += (size_t)sprintf(out + n, "Transfer-Encoding: chunked\r\n\r\n");
        n += chunk(out + n, body, strlen(body));
        n += (size_t)sprintf(out + n, "0\r\n\r\n");
    } else {
        n += (size_t)sprintf(out + n, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    }
    send_or_keep(c, out, n);
}

static const struct wire *wire_of(const char *head, const char *line_end) {
    for (size_t i = 0; i < WIRES_N; i++) {
        size_t tail = WIRES[i].tail ? strlen(WIRES[i].tail) : SIZE_MAX;
        if (line_end && tail < (size_t)(line_end - head) && !strncmp(line_end - tail, WIRES[i].tail, tail)) return &WIRES[i];
    }
    return NULL;
}

static void serve(struct conn *c, char *head, const char *body) {
    char *line_end = strstr(head, " HTTP/1.1\r\n");
    const struct wire *wire = wire_of(head, line_end);
    if (strncmp(head, "POST ", 5) || !wire) {
        answer(c, "404 Not Found", "{\"error\":{\"message\":\"no such path\",\"type\":\"invalid_request_error\"}}\n", false);
        return;
    }
    const char *named = strstr(head, "/models/");
    bool in_path = named && named < line_end;
    const char *model = in_path ? named + sizeof "/models" - 1 : says(body, "model");
    if (in_path || !strncmp(says(body, "stream"), "true", 4)) start_stream(c, wire, model, body);
    else answer(c, "200 OK", JSON_ANSWER, script(model, 'c', 0) != 0);
}

/* Takes a whole request from the buffer, if there is one. */
static void try_request(struct conn *c) {
    c->in[c->in_bytes] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    size_t head = (size_t)(end - c->in) + 4, body = length && length < end ? (size_t)atol(length + 17) : 0;
    if (head + body > REQUEST_BYTES_MAX) return hang_up(c);
    if (c->in_bytes < head + body) return;
    c->in_bytes = 0; /* nobody pipelines here */
    serve(c, c->in, c->in + head);
}

static void readable(struct conn *c) {
    ssize_t got = recv(c->fd, c->in + c->in_bytes, REQUEST_BYTES_MAX - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0 || c->streaming) return hang_up(c);
    c->in_bytes += (size_t)got;
    try_request(c);
}

static void writable(struct conn *c) {
    char *rest = c->unsent;
    c->unsent = NULL;
    listen_for(c, EPOLLIN);
    if (!rest) return;
    bool here = send_or_keep(c, rest, c->unsent_bytes);
    free(rest);
    if (here && !c->unsent && c->streaming && c->pace_ns != UINT64_MAX) push(c);
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct conn *c = calloc(1, sizeof *c);
        if (!c) die("no memory");
        c->fd = fd;
        send_at_once(fd);
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
    }
}

static int open_listener(unsigned port) {
    struct sockaddr_in address = loopback(port);
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) die("listen: %s", strerror(errno));
    getsockname(fd, (void *)&address, &size);
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void send_what_is_due(void) {
    uint64_t now = now_ns();
    for (int i = 0; i < 256 && heap_n && heap[0]->due_ns <= now; i++) { /* then look at the sockets again */
        struct conn *c = pop();
        if (c->gone) free(c);
        else next_burst(c, false);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage: provider PORT SECONDS");
    live_bounded((unsigned)atoi(argv[2]));
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = open_listener((unsigned)atoi(argv[1]));
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.ptr = NULL});
    for (;;) {
        struct epoll_event ready[256];
        int n = wait_until(poll_fd, ready, 256, heap_n ? heap[0]->due_ns : UINT64_MAX);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!c) accept_all(listener);
            else if (ready[i].events & (EPOLLERR | EPOLLHUP)) hang_up(c);
            else if (ready[i].events & EPOLLOUT) writable(c);
            else readable(c);
        }
        send_what_is_due();
    }
}
