// OpenAI's SDK before the proxy.

import OpenAI from "openai";
import { all, GATE, QUESTION, READ_TOKENS, usage } from "./report.mjs";

const { TOKENWEIR_URL, KEY, KEY_UNKNOWN, KEY_SPENT, KEY_LIMITED } = process.env;
const at = (apiKey) => new OpenAI({ baseURL: `${TOKENWEIR_URL}/v1`, apiKey, maxRetries: 0, timeout: 20_000 });
const client = at(KEY);
const asked = (model) => ({ model, messages: [{ role: "user", content: QUESTION }] });
const withUsage = { stream_options: { include_usage: true } };

function take(told, answer) {
  const { message, finish_reason } = answer.choices[0];
  told.text = message.content ?? "";
  told.arguments = (message.tool_calls ?? []).map((call) => call.function.arguments).join("");
  told.finish = finish_reason;
  const used = answer.usage;
  if (used) told.usage = usage(used.prompt_tokens, used.prompt_tokens_details?.cached_tokens, used.completion_tokens);
}

async function plain(client, model, told) {
  take(told, await client.chat.completions.create(asked(model)));
}

async function streamed(request, told) {
  take(told, await client.chat.completions.stream(request).finalChatCompletion());
}

async function leave(model, told) {
  const stream = await client.chat.completions.create({ ...asked(model), stream: true });
  const texts = [];
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) texts.push(chunk.choices[0].delta.content);
    if (texts.length === READ_TOKENS) break; // closes the stream
  }
  told.text = texts.join("");
}

function responded(told, answer) {
  told.text = answer.output_text;
  told.arguments = answer.output.map((item) => item.arguments ?? "").join("");
  told.finish = answer.status;
  const used = answer.usage;
  told.usage = usage(used.input_tokens, used.input_tokens_details.cached_tokens, used.output_tokens);
}

async function respondStreamed(request, told) {
  responded(told, await client.responses.stream(request).finalResponse());
}

const responseAsked = (model) => ({ model, input: QUESTION });

await all(
  {
    plain: (model, told) => plain(client, model, told),
    stream: (model, told) => streamed(asked(model), told),
    stream_usage: (model, told) => streamed({ ...asked(model), ...withUsage }, told),
    tools: (model, told) => {
      const tools = [{ type: "function", function: { name: "open_gate", parameters: GATE } }];
      return streamed({ ...asked(model), ...withUsage, tools }, told);
    },
    leave,
    broken: (model, told) => streamed(asked(model), told),
    responses: async (model, told) => responded(told, await client.responses.create(responseAsked(model))),
    responses_stream: (model, told) => respondStreamed(responseAsked(model), told),
    responses_tools: (model, told) => {
      const tools = [{ type: "function", name: "open_gate", parameters: GATE, strict: false }];
      return respondStreamed({ ...responseAsked(model), tools }, told);
    },
    embeddings: async (model, told) => {
      const made = await client.embeddings.create({ model, input: QUESTION, encoding_format: "float" });
      told.vector = made.data[0].embedding;
      told.usage = usage(made.usage.prompt_tokens, 0, 0);
    },
    models: async (_, told) => {
      told.models = [];
      for await (const model of client.models.list()) told.models.push(model.id);
    },
    unknown_key: (model, told) => plain(at(KEY_UNKNOWN), model, told),
    spent: (model, told) => plain(at(KEY_SPENT), model, told),
    limited: async (model, told) => {
      await plain(at(KEY_LIMITED), model, told);
      await plain(at(KEY_LIMITED), model, {});
    },
  },
  ({ constructor, message, status = 0, code }) => ({ type: constructor.name, status, kind: code, message }),
);
