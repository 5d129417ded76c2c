/* Reads one HTTP answer of the scripted provider, however a proxy cut and framed it, and checks every byte of its body.
   Law: an answer that is not exactly the script is an error with a reason; nothing is forgiven. */
#ifndef ANSWER_H
#define ANSWER_H
#include "rig.h"

#define HEAD_BYTES_MAX 4096 /* answers' heads are a few hundred bytes here */
#define SLOT_BYTES 1024     /* the longest piece that is compared at once: the JSON answer */

enum where { IN_HEAD, IN_SIZE, IN_CHUNK, AFTER_CHUNK, IN_LENGTH, AT_END, ENDED };

struct answer {
    bool stream, usage;  /* what the script has to be */
    unsigned events;     /* content events the script has; UINT32_MAX: they never end */
    enum where where;
    uint64_t left;       /* bytes of the chunk, or of the whole body */
    unsigned piece;      /* content events, then finish, usage, [DONE] */
    size_t line_bytes, slot_bytes;
    uint64_t stamp_ns;   /* send time of the last content event */
    const char *wrong;   /* why this is not the script */
    char line[HEAD_BYTES_MAX + 1];
    char slot[SLOT_BYTES];
};

/* Called after each content event that was right. */
typedef void on_event(struct answer *a, void *owner);

static inline void expect(struct answer *a, bool stream, bool usage, unsigned events) {
    a->stream = stream;
    a->usage = usage;
    a->events = events;
    a->where = IN_HEAD;
    a->piece = 0;
    a->line_bytes = a->slot_bytes = 0;
    a->wrong = NULL;
}

/* The fixed pieces after the content events. NULL: nothing more may come. */
static inline const char *fixed_piece(const struct answer *a) {
    static const char *const with_usage[] = {FINISH_EVENT, USAGE_EVENT, DONE_EVENT, NULL};
    static const char *const without[] = {FINISH_EVENT, DONE_EVENT, NULL};
    if (!a->stream) return a->piece ? NULL : JSON_ANSWER;
    unsigned k = a->piece - a->events;
    if (a->usage) return k < 3 ? with_usage[k] : NULL;
    return k < 2 ? without[k] : NULL;
}

static inline bool is_event(struct answer *a) {
    const char *stamp = a->slot + sizeof E_STAMP - 1, *mid = stamp + STAMP_DIGITS;
    const char *seq = mid + sizeof E_SEQ - 1, *end = seq + SEQ_DIGITS;
    a->stamp_ns = get_digits(stamp, STAMP_DIGITS);
    return !memcmp(a->slot, E_STAMP, sizeof E_STAMP - 1) && !memcmp(mid, E_SEQ, sizeof E_SEQ - 1) &&
           get_digits(seq, SEQ_DIGITS) == a->piece && !memcmp(end, E_END, sizeof E_END - 1);
}

static inline void take_body(struct answer *a, const char *bytes, size_t n, on_event *seen, void *owner) {
    while (n && !a->wrong) {
        bool content = a->stream && a->piece < a->events;
        const char *fixed = content ? NULL : fixed_piece(a);
        size_t want = content ? EVENT_BYTES : fixed ? strlen(fixed) : 0;
        if (!want) { a->wrong = "bytes after the end of the script"; return; }
        size_t take = want - a->slot_bytes < n ? want - a->slot_bytes : n;
        memcpy(a->slot + a->slot_bytes, bytes, take);
        a->slot_bytes += take;
        bytes += take;
        n -= take;
        if (a->slot_bytes < want) return;
        a->slot_bytes = 0;
        if (content ? !is_event(a) : memcmp(a->slot, fixed, want)) { a->wrong = "a piece that is not the script's"; return; }
        a->piece++;
        if (content) seen(a, owner);
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
    else if (length && !a->stream) a->where = IN_LENGTH, a->left = (uint64_t)atoll(length + 17);
    else a->wrong = "a body without the framing it should have";
}

static inline void take_size(struct answer *a) {
    char *end;
    a->left = strtoull(a->line, &end, 16);
    if (end == a->line || strcmp(end, "\r\n")) a->wrong = "a chunk size that is none";
    a->where = a->left ? IN_CHUNK : AT_END;
}

static inline void finish_answer(struct answer *a) {
    bool content = a->stream && a->piece < a->events;
    if (content || a->slot_bytes || fixed_piece(a)) a->wrong = "an end before the end of the script";
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
