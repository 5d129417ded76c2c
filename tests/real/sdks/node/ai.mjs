// The AI SDK with its provider for OpenAI's language, before the proxy: chat, and responses, which is its default.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { all, GATE, QUESTION, READ_TOKENS, usage } from "./report.mjs";

const { TOKENWEIR_URL, KEY, KEY_UNKNOWN, KEY_SPENT, KEY_LIMITED } = process.env;
const at = (apiKey) => createOpenAI({ baseURL: `${TOKENWEIR_URL}/v1`, apiKey });
const openai = at(KEY);
const tools = { open_gate: tool({ inputSchema: jsonSchema(GATE) }), take_note: tool({ inputSchema: jsonSchema({ type: "object" }) }) };

async function take(told, result) {
  told.text = await result.text;
  told.arguments = (await result.toolCalls).map((call) => JSON.stringify(call.input)).join("");
  told.finish = await result.finishReason;
  const used = await result.usage;
  told.usage = usage(used.inputTokens, used.inputTokenDetails.cacheReadTokens, used.outputTokens);
}

async function plain(model, told) {
  await take(told, await generateText({ model, prompt: QUESTION, maxRetries: 0 }));
}

async function streamed(model, told, more = {}) {
  let raised;
  const result = streamText({ model, prompt: QUESTION, maxRetries: 0, onError: ({ error }) => (raised = error), ...more });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  if (raised) throw raised;
  await take(told, result);
  if (text !== told.text) throw new Error(`the pieces are ${text}`);
}

async function leave(model, told) {
  const leaving = new AbortController();
  const result = streamText({ model: openai.chat(model), prompt: QUESTION, maxRetries: 0, abortSignal: leaving.signal });
  const texts = [];
  for await (const piece of result.textStream) {
    if (texts.length < READ_TOKENS) texts.push(piece);
    if (texts.length === READ_TOKENS) leaving.abort();
  }
  told.text = texts.join("");
}

await all(
  {
    plain: (model, told) => plain(openai.chat(model), told),
    stream_usage: (model, told) => streamed(openai.chat(model), told), // it asks for the usage by itself
    tools: (model, told) => streamed(openai.chat(model), told, { tools }),
    leave,
    broken: (model, told) => streamed(openai.chat(model), told),
    responses: (model, told) => plain(openai(model), told),
    responses_stream: (model, told) => streamed(openai(model), told),
    responses_tools: (model, told) => streamed(openai(model), told, { tools }),
    unknown_key: (model, told) => plain(at(KEY_UNKNOWN).chat(model), told),
    spent: (model, told) => plain(at(KEY_SPENT).chat(model), told),
    limited: async (model, told) => {
      await plain(at(KEY_LIMITED).chat(model), told);
      await plain(at(KEY_LIMITED).chat(model), {});
    },
  },
  ({ name, message, statusCode = 0, data }) => ({ type: name, status: statusCode, kind: data?.error?.code, message }),
);
