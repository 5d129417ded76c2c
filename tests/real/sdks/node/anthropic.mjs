// Anthropic's SDK before the proxy.

import Anthropic from "@anthropic-ai/sdk";
import { all, GATE, QUESTION, READ_TOKENS, usage } from "./report.mjs";

const { TOKENWEIR_URL, KEY, KEY_UNKNOWN, KEY_SPENT, KEY_LIMITED } = process.env;
const at = (apiKey) => new Anthropic({ baseURL: TOKENWEIR_URL, apiKey, maxRetries: 0, timeout: 20_000 });
const client = at(KEY);
const messages = [{ role: "user", content: QUESTION }];
const asked = (model) => ({ model, max_tokens: 600, messages });

function take(told, answer) {
  told.text = answer.content.map((block) => block.text ?? "").join("");
  told.arguments = answer.content.filter((block) => block.input).map((block) => JSON.stringify(block.input)).join("");
  told.finish = answer.stop_reason;
  const used = answer.usage;
  const prompt = used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens;
  told.usage = usage(prompt, used.cache_read_input_tokens, used.output_tokens);
}

async function plain(client, model, told) {
  take(told, await client.messages.create(asked(model)));
}

async function streamed(request, told) {
  take(told, await client.messages.stream(request).finalMessage());
}

async function leave(model, told) {
  const stream = await client.messages.create({ ...asked(model), stream: true });
  const texts = [];
  for await (const event of stream) {
    if (event.delta?.text) texts.push(event.delta.text);
    if (texts.length === READ_TOKENS) break; // closes the stream
  }
  told.text = texts.join("");
}

await all(
  {
    plain: (model, told) => plain(client, model, told),
    stream: (model, told) => streamed(asked(model), told),
    tools: (model, told) => streamed({ ...asked(model), tools: [{ name: "open_gate", input_schema: GATE }] }, told),
    leave,
    broken: (model, told) => streamed(asked(model), told),
    count_tokens: async (model, told) => {
      told.counted = (await client.messages.countTokens({ model, messages })).input_tokens;
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
  ({ constructor, message, status = 0, error }) => ({ type: constructor.name, status, kind: error?.error?.type, message }),
);
