/* Reads one HTTP answer of the scripted provider, however a proxy cut and framed it, and checks every byte of its body.
   Law: an answer that is not exactly the script is an error with a reason; nothing is forgiven. */
#ifndef ANSWER_H
#define ANSWER_H
#include "wires.h"

#define HEAD_BYTES_MAX 4096 /* answers' heads are a few hundred bytes here */

enum where { IN_HEAD, IN_SIZE, IN_CHUNK, AFTER_CHUNK, IN_LENGTH, AT_END, ENDED };

struct answer {
    const struct wire *wire; /* what the script has to be; NULL: the JSON answer */
    bool usage;
    unsigned events;     /* content events the script has; UINT32_MAX: they never end */
    enum where where;
    uint64_t left;       /* bytes of the chunk, or of the whole body */
    unsigned piece;      /* of the script, and those before it */
    unsigned content;    /* content events so far */
    size_t line_bytes, slot_bytes, want_bytes;
    size_t stamp_at;
    uint64_t stamp_ns;   /* send time of the last content event */
    const char *wrong;   /* why this is not the script */
    char line[HEAD_BYTES_MAX + 1];
    char slot[PIECE_BYTES_MAX], want[PIECE_BYTES_MAX];
};

/* Called after each content event that was right. */
typedef void on_event(struct answer *a, void *owner);

static inline void expect(struct answer *a, const struct wire *wire, bool usage, unsigned events) {
    a->wire = wire;
    a->usage = usage;
    a->events = events;
    a->where = IN_HEAD;
    a->piece = a->content = 0;
    a->line_bytes = a->slot_bytes = a->want_bytes = 0;
    a->wrong = NULL;
}

/* The template of the current piece: opening, content, finish, usage, done. NULL: nothing more may come. */
static inline const char *piece_of(const struct answer *a) {
    const struct wire *w = a->wire;
    if (!w) return a->piece ? NULL : JSON_ANSWER;
    unsigned opening = w->opening ? 1 : 0;
    if (a->piece < opening) return w->opening;
    if (a->content < a->events) return w->event;
    const char *closing[] = {w->finish, a->usage ? w->usage : NULL, w->done};
    unsigned k = a->piece - opening - a->events;
    for (unsigned i = 0; i < 3; i++)
        if (closing[i] && !k--) return closing[i];
    return NULL;
}

static inline bool is_piece(struct answer *a) {
    if (a->stamp_at == PIECE_BYTES_MAX) return !memcmp(a->slot, a->want, a->want_bytes);
    size_t behind = a->stamp_at + STAMP_DIGITS;
    a->stamp_ns = get_digits(a->slot + a->stamp_at, STAMP_DIGITS);
    return !memcmp(a->slot, a->want, a->stamp_at) && !memcmp(a->slot + behind, a->want + behind, a->want_bytes - behind);
}

static inline void take_body(struct answer *a, const char *bytes, size_t n, on_event *seen, void *owner) {
    while (n && !a->wrong) {
        if (!a->want_bytes) {
            const char *piece = piece_of(a);
            if (!piece) { a->wrong = "bytes after the end of the script"; return; }
            a->want_bytes = write_event(a->want, piece, a->content, 0, &a->stamp_at);
        }
        size_t take = a->want_bytes - a->slot_bytes < n ? a->want_bytes - a->slot_bytes : n;
        memcpy(a->slot + a->slot_bytes, bytes, take);
        a->slot_bytes += take;
        bytes += take;
        n -= take;
        if (a->slot_bytes < a->want_bytes) return;
        if (!is_piece(a)) { a->wrong = "a piece that is not the script's"; return; }
        bool content = a->wire && piece_of(a) == a->wire->event;
        a->slot_bytes = a->want_bytes = 0;
        a->piece++;
        if (content) a->content++, seen(a, owner);
    }
}

/* Adds to the line until `mark` closes it. True when it is whole (and ends with the mark). */
static inline bool take_line(struct answer *a, const char **bytes, size_t *n, const char *mark) {
    size_t marked = strlen(mark);
    while (*n) {
        if (a->line_bytes == HEAD_BYTES_MAX) { a->wrong = "a head that does not end"; return false; }
        a->line[a->line_bytes++] = *(*bytes)++;
        --*n;
        if (a->line_bytes >= marked && !memcmp(a->line + a->line_bytes - marked, mark, marked)) {
            a->line[a->line_bytes] = 0;
            a->line_bytes = 0;
            return true;
        }
    }
    return false;
}

static inline void take_head(struct answer *a) {
    const char *length = strcasestr(a->line, "\r\ncontent-length:");
    bool chunked = strcasestr(a->line, "\r\ntransfer-encoding: chunked") != NULL;
    if (strncmp(a->line, "HTTP/1.1 200 ", 13)) a->wrong = "a status that is not 200";
    else if (chunked) a->where = IN_SIZE;
    else if (length && !a->wire) a->where = IN_LENGTH, a->left = (uint64_t)atoll(length + 17);
    else a->wrong = "a body without the framing it should have";
}

static inline void take_size(struct answer *a) {
    char *end;
    a->left = strtoull(a->line, &end, 16);
    if (end == a->line || strcmp(end, "\r\n")) a->wrong = "a chunk size that is none";
    a->where = a->left ? IN_CHUNK : AT_END;
}

static inline void finish_answer(struct answer *a) {
    if (a->slot_bytes || piece_of(a)) a->wrong = "an end before the end of the script";
    a->where = ENDED;
}

/* The empty line that closes a chunk or, after the last one, the answer; no trailers are in the script. */
static inline void take_gap(struct answer *a) {
    if (strcmp(a->line, "\r\n")) a->wrong = "something where a chunk should end";
    else if (a->where == AFTER_CHUNK) a->where = IN_SIZE;
    else finish_answer(a);
}

/* Reads on; stops at the first thing that is wrong. */
static inline void take(struct answer *a, const char *bytes, size_t n, on_event *seen, void *owner) {
    while (n && !a->wrong) {
        switch (a->where) {
        case IN_HEAD: if (take_line(a, &bytes, &n, "\r\n\r\n")) take_head(a); break;
        case IN_SIZE: if (take_line(a, &bytes, &n, "\r\n")) take_size(a); break;
        case AFTER_CHUNK: if (take_line(a, &bytes, &n, "\r\n")) take_gap(a); break;
        case AT_END: if (take_line(a, &bytes, &n, "\r\n")) take_gap(a); break;
        case ENDED: a->wrong = "bytes after the answer"; break;
        case IN_CHUNK:
        case IN_LENGTH: {
            size_t part = a->left < n ? (size_t)a->left : n;
            take_body(a, bytes, part, seen, owner);
            bytes += part;
            n -= part;
            a->left -= part;
            if (a->left || a->wrong) break;
            if (a->where == IN_CHUNK) a->where = AFTER_CHUNK;
            else finish_answer(a);
        }
        }
    }
}
#endif
