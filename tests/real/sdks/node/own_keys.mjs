// Official SDKs with the provider credential of their client, before the proxy: both ways to send both keys.

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { all, QUESTION } from "./report.mjs";

const { TOKENWEIR_URL, KEY_BYOK, OWN_KEY } = process.env;
const messages = [{ role: "user", content: QUESTION }];
const ours = { "x-tokenweir-key": KEY_BYOK };
const theirs = { "x-tokenweir-provider-key": OWN_KEY };

function openai(model, options) {
  const client = new OpenAI({ baseURL: `${TOKENWEIR_URL}/v1`, maxRetries: 0, ...options });
  return client.chat.completions.create({ model, messages });
}

function anthropic(model, options) {
  const client = new Anthropic({ baseURL: TOKENWEIR_URL, apiKey: null, maxRetries: 0, ...options });
  return client.messages.create({ model, max_tokens: 9, messages });
}

const answers = {
  "openai/own-chat": (model) => openai(model, { apiKey: OWN_KEY, defaultHeaders: ours }),
  "openai/own-chat-extra": (model) => openai(model, { apiKey: KEY_BYOK, defaultHeaders: theirs }),
  "openai/own-refused": (model) => openai(model, { apiKey: OWN_KEY, defaultHeaders: ours }),
  "anthropic/own-messages": (model) => anthropic(model, { apiKey: OWN_KEY, defaultHeaders: ours }),
  "anthropic/own-token": (model) => anthropic(model, { authToken: OWN_KEY, defaultHeaders: ours }),
  "anthropic/own-messages-extra": (model) => anthropic(model, { apiKey: KEY_BYOK, defaultHeaders: theirs }),
};

await all(
  Object.fromEntries(Object.entries(answers).map(([model, ask]) => [model, () => ask(model)])),
  ({ constructor, message, status = 0 }) => ({ type: constructor.name, status, message }),
);
