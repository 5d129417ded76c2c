/* The events of streams, as providers of each wire send them.
   Law: an event is its template, its sequence number and a send time, and nothing else. In a template, STAMP is the send
   time, SEQ the number in eight digits, both in the text, because that is what differs from event to event in life;
   COUNT is how many there are with this one, TOTAL the same with 12 tokens of a prompt, and HIDDEN some padding of 1 to 16
   characters, as OpenAI hides the length of its tokens. */
#ifndef WIRES_H
#define WIRES_H
#include "rig.h"

#define STAMP "\1"
#define SEQ "\2"
#define COUNT "\3"
#define HIDDEN "\4"
#define TOTAL "\5"

struct wire {
    const char *name;
    const char *path;    /* the client's; %s: the model */
    const char *tail;    /* how the path of a request ends */
    const char *type;
    const char *opening; /* before the first event of content; NULL: nothing */
    const char *event;   /* one event of content: some 280 bytes */
    const char *finish;
    const char *usage;   /* NULL: the provider tells it elsewhere, unasked */
    const char *done;    /* NULL: the last one was the last */
};

#define SSE_TYPE "text/event-stream; charset=utf-8"
#define CHAT(members) "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1750000000," \
                      "\"model\":\"bench\"," members "}\n\n"
/* `"usage":null` is on every event because OpenAI puts it there once include_usage is on. */
#define CHAT_EVENT(more) CHAT("\"system_fingerprint\":\"fp_bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" " \
                              STAMP " " SEQ "\"},\"logprobs\":null,\"finish_reason\":null}]," \
                              "\"service_tier\":\"default\",\"usage\":null" more)
#define CHAT_FINISH CHAT("\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null")
#define CHAT_USAGE CHAT("\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":200,\"total_tokens\":212}")
#define CHAT_DONE "data: [DONE]\n\n"

#define RESPONSE(status, usage) "{\"id\":\"resp_bench\",\"object\":\"response\",\"created_at\":1750000000,\"status\":\"" status \
                                "\",\"error\":null,\"incomplete_details\":null,\"instructions\":null,\"model\":\"bench\"," \
                                "\"output\":[],\"parallel_tool_calls\":true,\"temperature\":1.0,\"tool_choice\":\"auto\"," \
                                "\"tools\":[],\"top_p\":1.0,\"usage\":" usage ",\"metadata\":{}}"
#define MESSAGE_USAGE(output) "{\"input_tokens\":12,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0," \
                              "\"output_tokens\":" output "}"
#define GEMINI(text, finish) "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"" text "\"}],\"role\": \"model\"}" \
                             finish ",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 12,\"candidatesTokenCount\": " \
                             COUNT ",\"totalTokenCount\": " TOTAL ",\"promptTokensDetails\": [{\"modality\": \"TEXT\"," \
                             "\"tokenCount\": 12}]},\"modelVersion\": \"bench\",\"responseId\": \"resp-bench\"}\r\n\r\n"
#define OLLAMA(text, members) "{\"model\":\"bench\",\"created_at\":\"2026-11-22T10:00:00." SEQ "1Z\",\"message\":{" \
                              "\"role\":\"assistant\",\"content\":\"" text "\"}," members "}\n"

static const struct wire WIRES[] = {
    {"chat", "/v1/chat/completions", "/chat/completions", SSE_TYPE,
     NULL, CHAT_EVENT(""), CHAT_FINISH, CHAT_USAGE, CHAT_DONE},
    {"hidden", "/v1/chat/completions", NULL, SSE_TYPE,
     NULL, CHAT_EVENT(",\"obfuscation\":\"" HIDDEN "\""), CHAT_FINISH, CHAT_USAGE, CHAT_DONE},
    {"responses", "/v1/responses", "/responses", SSE_TYPE,
     "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":"
     RESPONSE("in_progress", "null") "}\n\n",
     "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":" COUNT
     ",\"item_id\":\"msg_bench0123456789abcdef0123456789abcdef\",\"output_index\":0,\"content_index\":0,\"delta\":\" "
     STAMP " " SEQ "\",\"logprobs\":[],\"obfuscation\":\"" HIDDEN "\"}\n\n",
     "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"sequence_number\":" COUNT
     ",\"item_id\":\"msg_bench0123456789abcdef0123456789abcdef\",\"output_index\":0,\"content_index\":0,\"text\":\"\"}\n\n",
     NULL,
     "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":" COUNT ",\"response\":"
     RESPONSE("completed", "{\"input_tokens\":12,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":200,"
     "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":212}") "}\n\n"},
    {"messages", "/v1/messages", "/messages", SSE_TYPE,
     "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_bench\",\"type\":\"message\","
     "\"role\":\"assistant\",\"model\":\"bench\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":"
     MESSAGE_USAGE("1") "}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
     "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n",
     "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\","
     "\"text\":\" " STAMP " " SEQ "\"}}\n\n",
     "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {"
     "\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":"
     MESSAGE_USAGE("200") "}\n\n",
     NULL, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
    {"gemini", "/v1beta/models/%s:streamGenerateContent?alt=sse", ":streamGenerateContent?alt=sse", "text/event-stream",
     NULL, GEMINI(" " STAMP " " SEQ, ""), GEMINI("", ",\"finishReason\": \"STOP\""), NULL, NULL},
    {"ollama", "/api/chat", "/chat", "application/x-ndjson",
     NULL, OLLAMA(" " STAMP " " SEQ, "\"done\":false"),
     OLLAMA("", "\"done\":true,\"done_reason\":\"stop\",\"total_duration\":4883583458,\"load_duration\":1334875,"
     "\"prompt_eval_count\":12,\"prompt_eval_duration\":342546000,\"eval_count\":200,\"eval_duration\":4535599000"),
     NULL, NULL},
};
#define WIRES_N (sizeof WIRES / sizeof *WIRES)

static inline const struct wire *wire_named(const char *name) {
    for (size_t i = 0; i < WIRES_N; i++)
        if (!strcmp(WIRES[i].name, name)) return &WIRES[i];
    die("no such wire: %s", name);
}

/* Writes the template's event number `seq`; how long it is. `*stamp_at`: where its send time is, or PIECE_BYTES_MAX. */
static inline size_t write_event(char *to, const char *template, unsigned seq, uint64_t stamp_ns, size_t *stamp_at) {
    static const char padding[] = "aB3dE5gH7jK9mN1p";
    size_t n = 0, part;
    *stamp_at = PIECE_BYTES_MAX;
    for (; *template; template++) {
        switch (*template) {
        case '\1': put_digits(to + n, STAMP_DIGITS, stamp_ns); *stamp_at = n; n += STAMP_DIGITS; break;
        case '\2': put_digits(to + n, SEQ_DIGITS, seq); n += SEQ_DIGITS; break;
        case '\3': n += (size_t)sprintf(to + n, "%u", seq + 1); break;
        case '\5': n += (size_t)sprintf(to + n, "%u", seq + 13); break;
        case '\4': part = 1 + (seq * 2654435769u >> 28); memcpy(to + n, padding, part); n += part; break;
        default: to[n++] = *template;
        }
    }
    return n;
}
#endif
